"""The loop: one latent, one shared step, a halting rule, and an execution. See `run_loop`."""

from looped_actor.loop.distributions import Categorical, DiagonalGaussian, Distribution, UnitGaussian
from looped_actor.loop.executions import EarlyExit, Execution, FrozenScan
from looped_actor.loop.halting import (
    FixedLoops,
    HaltingRule,
    LatentResidual,
    PolicyKL,
    Readout,
    StopReason,
)
from looped_actor.loop.packing import MeanGradient, Packed, mean_gradient
from looped_actor.loop.run import run_loop
from looped_actor.loop.starts import Carried, FixedStart, Memory, Start, starting_of
from looped_actor.loop.state import LoopProblem, LoopResult, Step
from looped_actor.loop.streaming import OpenLoop, Streamed, Streaming, Thought

__all__ = [
    "Carried",
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "EarlyExit",
    "Execution",
    "FixedLoops",
    "FixedStart",
    "FrozenScan",
    "HaltingRule",
    "LatentResidual",
    "LoopProblem",
    "LoopResult",
    "MeanGradient",
    "Memory",
    "OpenLoop",
    "Packed",
    "PolicyKL",
    "Readout",
    "Start",
    "Step",
    "StopReason",
    "Streamed",
    "Streaming",
    "Thought",
    "UnitGaussian",
    "mean_gradient",
    "run_loop",
    "starting_of",
]
