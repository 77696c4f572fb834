"""Training: feeds of experience, checkpoints, and the one loop that every run goes through."""

from looped_actor.training.checkpoint import Bookmark, CheckpointError, Checkpoints
from looped_actor.training.gymnasium import GymnasiumTrainer
from looped_actor.training.imitation import ImitationMetrics, ImitationTrainer
from looped_actor.training.offline import Nets, OfflineMetrics, OfflineState, OfflineTrainer
from looped_actor.training.online import OnlineState, OnlineTrainer
from looped_actor.training.ppo import PPOMetrics, PPOTrainer
from looped_actor.training.runner import BrokenTrainingError, Ending, Report, Schedule, Trainer, run

__all__ = [
    "Bookmark",
    "BrokenTrainingError",
    "CheckpointError",
    "Checkpoints",
    "Ending",
    "GymnasiumTrainer",
    "ImitationMetrics",
    "ImitationTrainer",
    "Nets",
    "OfflineMetrics",
    "OfflineState",
    "OfflineTrainer",
    "OnlineState",
    "OnlineTrainer",
    "PPOMetrics",
    "PPOTrainer",
    "Report",
    "Schedule",
    "Trainer",
    "run",
]
