"""Training runs: the training loop, checkpoints, loggers and sharding."""

from looped_actor.training.checkpoints import CheckpointError, Checkpoints
from looped_actor.training.fit import BrokenTrainingError, Ending, Report, Schedule, fit
from looped_actor.training.loggers import Logger, WandbLogger
from looped_actor.training.trainer import Trainer

__all__ = [
    "BrokenTrainingError",
    "CheckpointError",
    "Checkpoints",
    "Ending",
    "Logger",
    "Report",
    "Schedule",
    "Trainer",
    "WandbLogger",
    "fit",
]
