"""The untied baselines: the same core, copied instead of looped.

Iso-Params is a stack of one (the parameters of the looped trunk, one pass); Iso-FLOPs is a stack of
as many cores as the looped trunk may loop (its computation, that many times its parameters).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from looped_actor.errors import UserError
from looped_actor.loop import LoopResult, Memory
from looped_actor.models.fprm import CoreConfig, FPRMCore
from looped_actor.models.looped import LoopedTrunk, ReadLatent, latent_start, start_like
from looped_actor.models.tokenizers import Tokens


class Stack(nnx.Module):
    """`copies` cores with parameters of their own, applied once each, one after the other."""

    halting = None

    def __init__(self, config: CoreConfig, copies: int, *, rngs: nnx.Rngs):
        if copies < 1:
            raise UserError(f"copies is {copies}; it must be at least 1")
        self.width, self.copies = config.width, copies

        @nnx.split_rngs(splits=copies)
        @nnx.vmap
        def make(rngs: nnx.Rngs) -> FPRMCore:
            return FPRMCore(config, rngs=rngs)

        self.cores = make(rngs)
        self.start = latent_start(config, rngs)

    @property
    def max_loops(self) -> int:
        """A core counts as a loop."""
        return self.copies

    def __call__(
        self, tokens: Tokens, readout: ReadLatent, *, record: bool = False, **options: Any
    ) -> LoopResult:
        """Pass each example through all cores; nothing halts, so that other options do not matter.

        A core counts as a loop.
        """
        start = start_like(self.start, tokens.embedding)
        latent, latents = through(self.cores, start, tokens, record=record)
        return LoopResult.of_fixed_depth(latent, self.copies, latents)

    def flops(self, tokens: int, loops: float, readout: int) -> float:
        """Every core once, whatever the loops."""
        return self.copies * self.cores.flops(tokens)


def through(
    cores: FPRMCore,
    z: Float[Array, "b t d"],
    tokens: Tokens,
    *,
    loops: Int[Array, " b"] | None = None,
    record: bool = False,
) -> tuple[Float[Array, "b t d"], Float[Array, "l b t d"] | None]:
    """Pass latents through a stack of cores: the last latents, and on request those after each core.

    With `loops`, an example passes through its first cores only, one for each of its loops.
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


class Unrolled(nnx.Module):
    """A looped trunk in which every loop has a copy of the core: the same latents, and `cores` to
    differentiate by one loop at a time."""

    def __init__(self, trunk: LoopedTrunk):
        self.looped, self.width, self.halting = trunk, trunk.width, trunk.halting
        definition, parameters = nnx.split(trunk.core)
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.max_loops, *leaf.shape)), parameters)
        self.cores = nnx.merge(definition, copies)

    @property
    def max_loops(self) -> int:
        """The cap."""
        return self.looped.max_loops

    def __call__(
        self, tokens: Tokens, readout: ReadLatent, *, memory: Memory | None = None, **options: Any
    ) -> LoopResult:
        """Loop as the trunk does, and go the same way once more through the copies."""
        result = jax.lax.stop_gradient(self.looped(tokens, readout, memory=memory, **options))
        start = self.looped.begin(tokens, memory)
        return result._replace(latent=through(self.cores, start, tokens, loops=result.loops)[0])
