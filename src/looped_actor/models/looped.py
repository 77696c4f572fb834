"""The looped trunk: one core, applied to a latent until the policy that is read from it stops changing."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.loop import (
    Carry,
    Distribution,
    HaltingRule,
    LoopProblem,
    LoopResult,
    PolicyKL,
    run_loop,
)
from looped_actor.models.fprm import CoreConfig, FPRMCore
from looped_actor.models.layers import DEFAULT_INITIAL, InitialWeights
from looped_actor.models.tokenizers import Tokens

ReadLatent = Callable[[Float[Array, "b t d"]], Distribution]
"""Latents to the policy that is read from them."""


@runtime_checkable
class Trunk(Protocol):
    """From tokens to a latent. Trunks that do not loop ignore the options of a loop."""

    @property
    def width(self) -> int:
        """Channels of a token."""
        ...

    @property
    def halting(self) -> HaltingRule | None:
        """Halting rule; None for trunks that do not loop."""
        ...

    @property
    def max_loops(self) -> int:
        """Cap, or fixed depth."""
        ...

    @property
    def carry_latent(self) -> bool:
        """True if a decision starts from the latent of the last one of its episode."""
        ...

    def __call__(
        self, tokens: Tokens, readout: ReadLatent, *, record: bool = False, **options: Any
    ) -> LoopResult:
        """Return the latents of a batch. The options are those of `run_loop`, and `carry`."""
        ...

    def flops(self, tokens: int, loops: float, readout: int) -> float:
        """Return the FLOPs of one example at a number of loops, one readout costing `readout`."""
        ...


class InitialLatent(nnx.Variable):
    """Latent before the first loop, z_0: fixed, never trained, saved with the policy."""


def make_initial_latent(config: CoreConfig, initial: InitialWeights, rngs: nnx.Rngs) -> InitialLatent:
    """Draw one random vector for all tokens of all examples."""
    return InitialLatent(initial.latent(rngs.params(), config.width))


def broadcast_latent(start: InitialLatent, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """Return z_0 for every token of a batch, without gradient."""
    return jnp.broadcast_to(jax.lax.stop_gradient(start[...]).astype(x.dtype), x.shape)


class LoopedTrunk(nnx.Module):
    """One core, looped.

    Args:
      config: the shape of the core.
      halting: the halting rule in training; a call may bring another. Default: `PolicyKL()`.
      convolution: convolve the cells of a board in every loop.
      carry_latent: start a decision from the latent in which the last one of its episode ended.
      initial: distributions of the initial weights.
      rngs: random streams.
    """

    def __init__(
        self,
        config: CoreConfig,
        halting: HaltingRule | None = None,
        *,
        convolution: bool = True,
        carry_latent: bool = False,
        initial: InitialWeights = DEFAULT_INITIAL,
        rngs: nnx.Rngs,
    ):
        self.width = config.width
        self.halting = PolicyKL() if halting is None else halting
        self.carry_latent = carry_latent
        self.core = FPRMCore(config, convolution=convolution, initial=initial, rngs=rngs)
        self.start = make_initial_latent(config, initial, rngs)

    @property
    def max_loops(self) -> int:
        return self.halting.max_loops

    def __call__(
        self,
        tokens: Tokens,
        readout: ReadLatent,
        *,
        halting: HaltingRule | None = None,
        carry: Carry | None = None,
        record: bool = False,
        **options: Any,
    ) -> LoopResult:
        """Loop each example until its halting rule is satisfied."""
        problem, z0 = self.problem(readout, halting), self.initial_latent(tokens)
        z0 = z0 if carry is None else carry.initial_latent(z0)
        return run_loop(
            problem.step, problem.readout, z0, tokens, halting=problem.halting, record=record, **options
        )

    def initial_latent(self, tokens: Tokens) -> Float[Array, "b t d"]:
        """Return the latents before the first loop, where nothing is carried."""
        return broadcast_latent(self.start, tokens.embedding)

    def problem(self, readout: ReadLatent, halting: HaltingRule | None = None) -> LoopProblem:
        """Return the step, the readout and the halting rule of the loop."""
        return LoopProblem(
            step=lambda z, tokens: self.core(z, tokens.embedding, tokens.grid),
            readout=lambda z, tokens: readout(z),
            halting=self.halting if halting is None else halting,
        )

    def flops(self, tokens: int, loops: float, readout: int) -> float:
        """Count the core in every loop, and the readout before the first and after each."""
        return loops * self.core.flops(tokens) + (loops + 1) * readout
