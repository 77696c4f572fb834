"""The looped trunk: one core, applied to a latent until the policy that is read from it settles."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.loop import (
    Distribution,
    FixedStart,
    HaltingRule,
    LoopProblem,
    LoopResult,
    Memory,
    PolicyKL,
    Start,
    run_loop,
)
from looped_actor.models.fprm import CoreConfig, FPRMCore
from looped_actor.models.tokenizers import Tokens

ReadLatent = Callable[[Float[Array, "b t d"]], Distribution]
"""Latents to the policy that is read from them."""


@runtime_checkable
class Trunk(Protocol):
    """From tokens to a latent. What does not loop ignores what only a loop needs."""

    @property
    def width(self) -> int:
        """Channels of a token."""
        ...

    @property
    def halting(self) -> HaltingRule | None:
        """When it stops; None where it does not loop."""
        ...

    @property
    def max_loops(self) -> int:
        """Its cap, or its fixed depth."""
        ...

    def __call__(
        self, tokens: Tokens, readout: ReadLatent, *, record: bool = False, **options: Any
    ) -> LoopResult:
        """Think about each example. The options are those of `run_loop`."""
        ...

    def flops(self, tokens: int, loops: float, readout: int) -> float:
        """FLOPs of one example at a number of loops, one readout costing `readout`."""
        ...


class LatentStart(nnx.Variable):
    """The latent before the first loop: fixed, never trained, saved with the policy."""


def latent_start(config: CoreConfig, rngs: nnx.Rngs) -> LatentStart:
    """One random vector for all tokens of all examples."""
    return LatentStart(config.initial.start(rngs.params(), config.width))


def start_like(start: LatentStart, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """The initial latent of a batch, without gradient."""
    return jnp.broadcast_to(jax.lax.stop_gradient(start[...]).astype(x.dtype), x.shape)


class LoopedTrunk(nnx.Module):
    """One core, looped. `halting` is the rule it was trained with; a call may bring another.

    `starting` says where the thoughts of its policy start. A call starts from the memory that it is given.
    """

    def __init__(
        self,
        config: CoreConfig,
        halting: HaltingRule | None = None,
        starting: Start | None = None,
        *,
        rngs: nnx.Rngs,
    ):
        self.width = config.width
        self.halting = PolicyKL() if halting is None else halting
        self.starting = FixedStart() if starting is None else starting
        self.core = FPRMCore(config, rngs=rngs)
        self.start = latent_start(config, rngs)

    @property
    def max_loops(self) -> int:
        """The cap."""
        return self.halting.max_loops

    def __call__(
        self,
        tokens: Tokens,
        readout: ReadLatent,
        *,
        halting: HaltingRule | None = None,
        memory: Memory | None = None,
        record: bool = False,
        **options: Any,
    ) -> LoopResult:
        """Loop each example until the policy that `readout` gives settles."""
        problem = self.problem(readout, halting)
        given = problem.step, problem.readout, self.begin(tokens, memory), tokens
        return run_loop(*given, halting=problem.halting, record=record, **options)

    def begin(self, tokens: Tokens, memory: Memory | None = None) -> Float[Array, "b t d"]:
        """The latent before the first loop: what is carried, or else the fixed one."""
        start = start_like(self.start, tokens.embedding)
        return start if memory is None else memory.start(start)

    def problem(self, readout: ReadLatent, halting: HaltingRule | None = None) -> LoopProblem:
        """What is iterated, and when it stops."""
        return LoopProblem(
            step=lambda z, tokens: self.core(z, tokens.embedding, tokens.grid),
            readout=lambda z, tokens: readout(z),
            halting=self.halting if halting is None else halting,
        )

    def flops(self, tokens: int, loops: float, readout: int) -> float:
        """The core in every loop, and the readout before the first and after each."""
        return loops * self.core.flops(tokens) + (loops + 1) * readout
