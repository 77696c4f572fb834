"""Adaptive-depth policies for reinforcement learning in JAX.

`run_loop` gives adaptive depth to any step; `Actor` assembles the paper's nets; `load_policy` loads policies
that `looped-actor train` has trained. The names exported here are the public API.

Names are imported at their first use, so that `looped-actor --help` does not wait for JAX.
"""

import importlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from looped_actor.registration import register_environments
from looped_actor.utils.interrupts import exit_on_interrupt, is_command
from looped_actor.version import __version__

if TYPE_CHECKING:
    from looped_actor.algorithms import (
        GCIQL,
        PPO,
        Action,
        GCIQLConfig,
        Imitation,
        ImitationConfig,
        PPOConfig,
        make_policy,
    )
    from looped_actor.envs import *
    from looped_actor.envs.gymnasium import VectorGym
    from looped_actor.loop import *
    from looped_actor.models import *
    from looped_actor.policy.export import export
    from looped_actor.policy.policy import Policy
    from looped_actor.puzzles.boxoban.env import Boxoban, WindowedBoxoban
    from looped_actor.puzzles.rush_hour.env import RushHour
    from looped_actor.runs.config import CustomConfig
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
    "looped_actor.training",
    "looped_actor.training.sharding",
    "looped_actor.envs.gymnasium",
    "looped_actor.puzzles.boxoban.env",
    "looped_actor.puzzles.rush_hour.env",
    "looped_actor.policy.policy",
    "looped_actor.policy.export",
    "looped_actor.runs.config",
    "looped_actor.runs.presets",
    "looped_actor.runs.load",
    "looped_actor.runs.train",
    "looped_actor.runs.evaluate",
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
    "GCIQL",
    "PPO",
    "Action",
    "Actor",
    "Boxoban",
    "Carry",
    "Categorical",
    "CellLogits",
    "CoreConfig",
    "CustomConfig",
    "DRCConfig",
    "DiagonalGaussian",
    "Distribution",
    "EarlyExit",
    "Environment",
    "Execution",
    "FPRMCore",
    "FixedLoops",
    "FrozenScan",
    "GCIQLConfig",
    "GaussianMean",
    "GaussianMeanAndStd",
    "GoalObservation",
    "GoalTokenizer",
    "HaltingRule",
    "Imitation",
    "ImitationConfig",
    "LatentResidual",
    "Logger",
    "LoopProblem",
    "LoopResult",
    "LoopedTrunk",
    "Outcome",
    "PPOConfig",
    "Packed",
    "PairedTokenizer",
    "PlanesTokenizer",
    "Policy",
    "PolicyHead",
    "PolicyKL",
    "PolicyModel",
    "PolicyOutput",
    "Readout",
    "ReadoutLogits",
    "Report",
    "RushHour",
    "Stack",
    "Step",
    "StopReason",
    "StreamablePolicy",
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
    "make_policy",
    "mean_gradient",
    "preset",
    "run_loop",
    "train",
]
