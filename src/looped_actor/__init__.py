"""Policies that think in loops: adaptive-depth transformers for reinforcement learning, in JAX.

`run_loop` gives adaptive depth to any step of yours; `Actor` and `ActorCritic` put the paper's nets
together; `load_policy` loads what `looped-actor train` has trained. What is exported here is the public
API; each name says more in its own docstring.

Names are imported when they are first used, so that `looped-actor --help` need not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from looped_actor.registration import register_environments
from looped_actor.version import __version__

if TYPE_CHECKING:
    from looped_actor.loop import *
    from looped_actor.models import *
    from looped_actor.runs.policy import Policy, load_policy

register_environments()

_HOMES = ("looped_actor.loop", "looped_actor.models", "looped_actor.runs.policy")


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
    "Actor",
    "ActorCritic",
    "Categorical",
    "CellLogits",
    "CoreConfig",
    "DRCConfig",
    "DiagonalGaussian",
    "EarlyExit",
    "FPRMCore",
    "FixedLoops",
    "FrozenScan",
    "GaussianMean",
    "GaussianMeanAndStd",
    "GoalObservation",
    "LatentResidual",
    "LoopProblem",
    "LoopResult",
    "LoopedTrunk",
    "OpenLoop",
    "Packed",
    "PairedTokenizer",
    "PlanesTokenizer",
    "Policy",
    "PolicyKL",
    "ReadoutLogits",
    "ScalarTokenizer",
    "Stack",
    "StopReason",
    "Streaming",
    "UnitGaussian",
    "ValueHead",
    "VectorTokenizer",
    "__version__",
    "load_policy",
    "mean_gradient",
    "run_loop",
]
