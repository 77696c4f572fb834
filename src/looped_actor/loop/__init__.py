"""The loop: one latent, one shared step, a halting rule, and an execution. See `run_loop`."""

from looped_actor.loop.carry import Carry, empty_carry, zero_carry
from looped_actor.loop.distributions import Categorical, DiagonalGaussian, Distribution, UnitGaussian
from looped_actor.loop.executions import EarlyExit, Execution, FrozenScan
from looped_actor.loop.halting import FixedLoops, HaltingRule, LatentResidual, PolicyKL, Readout, StopReason
from looped_actor.loop.packing import MeanGradient, Packed, mean_gradient
from looped_actor.loop.run import run_loop
from looped_actor.loop.state import LoopProblem, LoopResult, Step
from looped_actor.loop.streaming import StreamablePolicy, Streaming, StreamOutput, StreamResult

__all__ = [
    "Carry",
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "EarlyExit",
    "Execution",
    "FixedLoops",
    "FrozenScan",
    "HaltingRule",
    "LatentResidual",
    "LoopProblem",
    "LoopResult",
    "MeanGradient",
    "Packed",
    "PolicyKL",
    "Readout",
    "Step",
    "StopReason",
    "StreamOutput",
    "StreamResult",
    "StreamablePolicy",
    "Streaming",
    "UnitGaussian",
    "empty_carry",
    "mean_gradient",
    "run_loop",
    "zero_carry",
]
