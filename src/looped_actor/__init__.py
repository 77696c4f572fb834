"""Policies that think in loops: adaptive-depth transformers for reinforcement learning, in JAX.

`run_loop` gives adaptive depth to any step of yours; `Actor` and `ActorCritic` put the paper's nets
together. What is exported here is the public API; each name says more in its own docstring.
"""

from looped_actor.loop import (
    Categorical,
    DiagonalGaussian,
    EarlyExit,
    FixedLoops,
    FrozenScan,
    LatentResidual,
    LoopResult,
    Packed,
    PolicyKL,
    StopReason,
    UnitGaussian,
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
)
from looped_actor.registration import register_environments
from looped_actor.version import __version__

register_environments()

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
    "LoopResult",
    "LoopedTrunk",
    "Packed",
    "PairedTokenizer",
    "PlanesTokenizer",
    "PolicyKL",
    "ReadoutLogits",
    "ScalarTokenizer",
    "Stack",
    "StopReason",
    "UnitGaussian",
    "ValueHead",
    "__version__",
    "run_loop",
]
