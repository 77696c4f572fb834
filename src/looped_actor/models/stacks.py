"""The untied baselines: copies of the core, applied once each.

Iso-Params is a stack of one core: the parameters of the looped trunk, and one pass. Iso-FLOPs is a stack of
as many cores as the looped trunk may loop: its computation, and that many times its parameters.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from looped_actor.loop import LoopResult
from looped_actor.models.fprm import CoreConfig, FPRMCore
from looped_actor.models.layers import DEFAULT_INITIAL, InitialWeights
from looped_actor.models.looped import ReadLatent, broadcast_latent, make_initial_latent
from looped_actor.models.tokenizers import Tokens
from looped_actor.utils.errors import UserError


class Stack(nnx.Module):
    """`copies` cores with separate parameters, each applied once, in sequence."""

    halting, carry_latent = None, False

    def __init__(
        self,
        config: CoreConfig,
        copies: int,
        *,
        convolution: bool = True,
        initial: InitialWeights = DEFAULT_INITIAL,
        rngs: nnx.Rngs,
    ):
        if copies < 1:
            raise UserError(f"copies is {copies}; it must be at least 1")
        self.width, self.copies = config.width, copies

        @nnx.split_rngs(splits=copies)
        @nnx.vmap
        def make(rngs: nnx.Rngs) -> FPRMCore:
            return FPRMCore(config, convolution=convolution, initial=initial, rngs=rngs)

        self.cores = make(rngs)
        self.start = make_initial_latent(config, initial, rngs)

    @property
    def max_loops(self) -> int:
        """A core counts as a loop."""
        return self.copies

    def __call__(
        self, tokens: Tokens, readout: ReadLatent, *, record: bool = False, **options: Any
    ) -> LoopResult:
        """Pass each example through all cores; the options of a loop are ignored."""
        start = broadcast_latent(self.start, tokens.embedding)
        latent, latents = apply_cores(self.cores, start, tokens, record=record)
        return LoopResult.of_fixed_depth(latent, self.copies, latents)

    def flops(self, tokens: int, loops: float, readout: int) -> float:
        """Count every core once."""
        return self.copies * self.cores.flops(tokens)


def apply_cores(
    cores: FPRMCore,
    z: Float[Array, "b t d"],
    tokens: Tokens,
    *,
    loops: Int[Array, " b"] | None = None,
    record: bool = False,
) -> tuple[Float[Array, "b t d"], Float[Array, "l b t d"] | None]:
    """Return the latents after a stack of cores, and with `record` those after each core.

    With `loops`, an example passes through its first `loops` cores only.
    """
    definition, parameters = nnx.split(cores)

    # Like the loop, the backward pass computes a core again rather than store its inside.
    @jax.checkpoint
    def body(z: Array, core: tuple[Int[Array, ""], nnx.State]) -> tuple[Array, Array | None]:
        number, parameters = core
        after = nnx.merge(definition, parameters)(z, tokens.embedding, tokens.grid)
        z = after if loops is None else jnp.where((number < loops)[:, None, None], after, z)
        return z, z if record else None

    count = jax.tree.leaves(parameters)[0].shape[0]
    return jax.lax.scan(body, z, (jnp.arange(count), parameters))
