"""Training: feeds of experience, checkpoints, and the one loop that every run goes through."""

from looped_actor.training.checkpoint import Bookmark, CheckpointError, Checkpoints
from looped_actor.training.offline import Nets, OfflineMetrics, OfflineState, OfflineTrainer
from looped_actor.training.online import OnlineMetrics, OnlineState, OnlineTrainer
from looped_actor.training.runner import BrokenTrainingError, Ending, Report, Schedule, Trainer, run

__all__ = [
    "Bookmark",
    "BrokenTrainingError",
    "CheckpointError",
    "Checkpoints",
    "Ending",
    "Nets",
    "OfflineMetrics",
    "OfflineState",
    "OfflineTrainer",
    "OnlineMetrics",
    "OnlineState",
    "OnlineTrainer",
    "Report",
    "Schedule",
    "Trainer",
    "run",
]
