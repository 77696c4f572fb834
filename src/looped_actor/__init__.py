"""Policies that think in loops: adaptive-depth transformers for reinforcement learning, in JAX.

`run_loop` gives adaptive depth to any step of yours; `Actor` and `ActorCritic` put the paper's nets
together; `load_policy` loads what `looped-actor train` has trained. What is exported here is the public
API; each name says more in its own docstring.
"""

from typing import TYPE_CHECKING, Any

from looped_actor.loop import (
    Categorical,
    DiagonalGaussian,
    EarlyExit,
    FixedLoops,
    FrozenScan,
    LatentResidual,
    LoopProblem,
    LoopResult,
    OpenLoop,
    Packed,
    PolicyKL,
    StopReason,
    Streaming,
    UnitGaussian,
    mean_gradient,
    run_loop,
)
from looped_actor.models import (
    DRC,
    Actor,
    ActorCritic,
    CellLogits,
    CoreConfig,
    DRCConfig,
    FPRMCore,
    GaussianMean,
    GaussianMeanAndStd,
    GoalObservation,
    LoopedTrunk,
    PairedTokenizer,
    PlanesTokenizer,
    ReadoutLogits,
    ScalarTokenizer,
    Stack,
    ValueHead,
    VectorTokenizer,
)
from looped_actor.registration import register_environments
from looped_actor.version import __version__

if TYPE_CHECKING:
    from looped_actor.experiments.policies import Policy, load_policy

register_environments()


def __getattr__(name: str) -> Any:
    """Names that need the whole house (levels, checkpoints) are imported when they are first asked for."""
    if name in ("Policy", "load_policy"):
        from looped_actor.experiments import policies

        return getattr(policies, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
