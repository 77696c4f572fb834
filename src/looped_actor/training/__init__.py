"""Training: learners and collectors put together, checkpoints, and the one loop of every run."""

from looped_actor.training.checkpoint import CheckpointError, Checkpoints
from looped_actor.training.fit import BrokenTrainingError, Ending, Report, Schedule, fit
from looped_actor.training.gciql import GCIQL, Judges, Nets, OfflineState, gciql_trainer
from looped_actor.training.imitation import Imitation, imitation_trainer
from looped_actor.training.metrics import Logger, WandbLogger
from looped_actor.training.online import OnlineState, PolicyNet
from looped_actor.training.ppo import PPO, ppo_trainer
from looped_actor.training.trainer import Learner, Trainer

__all__ = [
    "GCIQL",
    "PPO",
    "BrokenTrainingError",
    "CheckpointError",
    "Checkpoints",
    "Ending",
    "Imitation",
    "Judges",
    "Learner",
    "Logger",
    "Nets",
    "OfflineState",
    "OnlineState",
    "PolicyNet",
    "Report",
    "Schedule",
    "Trainer",
    "WandbLogger",
    "fit",
    "gciql_trainer",
    "imitation_trainer",
    "ppo_trainer",
]
