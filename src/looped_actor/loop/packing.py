"""`Packed`: turn halting into time when learning, by looping examples of like depth together."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from looped_actor.loop.executions import EarlyExit, Execution
from looped_actor.loop.state import LoopProblem, LoopResult


@dataclass(frozen=True)
class Packed:
    """Sort by expected depth, cut into chunks, and run `EarlyExit` on each, one after the other.

    A chunk costs the loops of its deepest example, so the batch costs about the sum of its loops
    when the expectation is good. The expectation (say, the loops an example took when it was
    collected) decides the order and nothing else: result and gradient are the same for any.
    Without one, the examples are taken as they come.

    `chunk` is the largest number of examples looped together. On CPU 8 to 16 is best, because a
    chunk then stays in cache; an accelerator wants enough to be busy. `inner` runs a chunk.
    """

    chunk: int = 8
    inner: Execution = field(default_factory=EarlyExit)

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; it must be at least 1")

    def run(
        self,
        problem: LoopProblem,
        z0: Float[Array, "b ..."],
        x: PyTree,
        expected_loops: Float[Array, " b"] | Int[Array, " b"] | None = None,
        record: bool = False,
    ) -> LoopResult:
        """See `Execution.run`."""
        batch = z0.shape[0]
        chunks = -(-batch // self.chunk)
        size = -(-batch // chunks)  # as even as possible, so that little is padded
        order = jnp.arange(batch) if expected_loops is None else jnp.argsort(expected_loops)
        # The last example fills what is missing: a copy is never deeper than its chunk.
        filled = order[jnp.minimum(jnp.arange(chunks * size), batch - 1)]

        def pack(leaf: Array) -> Array:
            return leaf[filled].reshape(chunks, size, *leaf.shape[1:])

        results = jax.lax.map(
            lambda chunk: self.inner.run(problem, *chunk, expected_loops=None, record=record),
            jax.tree.map(pack, (z0, x)),
        )
        place = jnp.argsort(order)

        def unpack(leaf: Array) -> Array:
            return leaf.reshape(chunks * size, *leaf.shape[2:])[place]

        latent, loops, stop, divergence = jax.tree.map(unpack, tuple(results[:4]))
        latents = None
        if results.latents is not None:
            latents = jnp.moveaxis(unpack(jnp.moveaxis(results.latents, 1, 2)), 0, 1)
        return LoopResult(latent, loops, stop, divergence, results.executed.sum(), latents)
