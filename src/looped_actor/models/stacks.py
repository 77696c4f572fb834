"""The untied baselines: the same core, copied instead of looped.

Iso-Params is a stack of one (the parameters of the looped trunk, one pass); Iso-FLOPs is a stack of
as many cores as the looped trunk may loop (its computation, that many times its parameters).
"""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array

from looped_actor.loop import LoopResult
from looped_actor.models.fprm import CoreConfig, FPRMCore
from looped_actor.models.looped import ReadLatent, latent_start, start_like
from looped_actor.models.tokenizers import Tokens


class Stack(nnx.Module):
    """`copies` cores with parameters of their own, applied once each, one after the other."""

    halting = None

    def __init__(self, config: CoreConfig, copies: int, *, rngs: nnx.Rngs):
        if copies < 1:
            raise ValueError(f"copies is {copies}; it must be at least 1")
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
        x = tokens.embedding
        definition, parameters = nnx.split(self.cores)

        # Like the loop, the backward pass computes a core again rather than store its inside.
        @jax.checkpoint
        def body(z: Array, parameters: nnx.State) -> tuple[Array, Array | None]:
            z = nnx.merge(definition, parameters)(z, x, tokens.grid)
            return z, z if record else None

        latent, latents = jax.lax.scan(body, start_like(self.start, x), parameters)
        return LoopResult.of_fixed_depth(latent, self.copies, latents)

    def flops(self, tokens: int, loops: float, readout: int) -> float:
        """Every core once, whatever the loops."""
        return self.copies * self.cores.flops(tokens)
