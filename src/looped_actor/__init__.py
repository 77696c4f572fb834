"""Policies that think in loops: adaptive-depth transformers for reinforcement learning, in JAX.

`run_loop` gives adaptive depth to any step of yours; `Actor` and `ActorCritic` put the paper's nets
together; `load_policy` loads what `looped-actor train` has trained. What is exported here is the public
API; each name says more in its own docstring.

Names are imported when they are first used, so that `looped-actor --help` need not wait for JAX.
"""

import importlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from looped_actor.registration import register_environments
from looped_actor.utils.interrupts import exit_on_interrupt, is_command
from looped_actor.version import __version__

if TYPE_CHECKING:
    from looped_actor.algorithms import Acted, PPOConfig
    from looped_actor.algorithms.ppo_trainer import ppo_trainer
    from looped_actor.envs import *
    from looped_actor.envs.gymnasium import VectorGym
    from looped_actor.loop import *
    from looped_actor.models import *
    from looped_actor.policy.export import export
    from looped_actor.policy.policy import Policy
    from looped_actor.runs.config import OwnConfig
    from looped_actor.runs.evaluate import evaluate
    from looped_actor.runs.load import load_policy
    from looped_actor.runs.presets import preset
    from looped_actor.runs.train import train
    from looped_actor.training import Logger, Report, WandbLogger
    from looped_actor.training.sharding import all_devices

with exit_on_interrupt() if is_command() else nullcontext():
    register_environments()

_HOMES = (
    "looped_actor.loop",
    "looped_actor.models",
    "looped_actor.envs",
    "looped_actor.algorithms",
    "looped_actor.training.sharding",
    "looped_actor.envs.gymnasium",
    "looped_actor.training",
    "looped_actor.runs.config",
    "looped_actor.runs.presets",
    "looped_actor.policy.policy",
    "looped_actor.runs.load",
    "looped_actor.runs.train",
    "looped_actor.runs.evaluate",
    "looped_actor.policy.export",
)


def __getattr__(name: str) -> Any:
    """Import the package that a public name comes from."""
    if name in __all__:
        for home in map(importlib.import_module, _HOMES):
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "DRC",
    "Acted",
    "Actor",
    "ActorCritic",
    "ActorCriticOutput",
    "ActorOutput",
    "Boxoban",
    "Carried",
    "Categorical",
    "CellLogits",
    "CoreConfig",
    "DRCConfig",
    "DiagonalGaussian",
    "Distribution",
    "EarlyExit",
    "Environment",
    "Execution",
    "FPRMCore",
    "FixedLoops",
    "FixedStart",
    "FrozenScan",
    "GaussianMean",
    "GaussianMeanAndStd",
    "GoalObservation",
    "GoalTokenizer",
    "HaltingRule",
    "LatentResidual",
    "Logger",
    "LoopProblem",
    "LoopResult",
    "LoopedTrunk",
    "Memory",
    "OpenLoop",
    "Outcome",
    "OwnConfig",
    "PPOConfig",
    "Packed",
    "PairedTokenizer",
    "PlanesTokenizer",
    "Policy",
    "PolicyHead",
    "PolicyKL",
    "PolicyModel",
    "Readout",
    "ReadoutLogits",
    "Report",
    "RushHour",
    "Stack",
    "Start",
    "Step",
    "StopReason",
    "Streaming",
    "Tokenizer",
    "Tokens",
    "Trunk",
    "UnitGaussian",
    "ValueHead",
    "VectorEnv",
    "VectorGym",
    "VectorTokenizer",
    "WandbLogger",
    "WindowedBoxoban",
    "__version__",
    "all_devices",
    "evaluate",
    "export",
    "load_policy",
    "mean_gradient",
    "ppo_trainer",
    "preset",
    "run_loop",
    "train",
]
