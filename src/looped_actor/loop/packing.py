"""`Packed`: turn halting into time when learning, by looping examples of like depth together."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Real

from looped_actor.loop.executions import early_exit_in_chunks
from looped_actor.loop.state import LoopProblem, LoopResult


@dataclass(frozen=True)
class Packed:
    """Sort by expected depth, cut into chunks, and run `EarlyExit` on each, one after the other.

    A chunk costs the loops of its deepest example, so the batch costs about the sum of its loops
    when the expectation is good. The expectation (say, the loops an example took when it was
    collected) decides the order and nothing else: result and gradient are the same for any.
    Without one, the examples are taken as they come.

    `chunk` is the largest number of examples looped together; by default, see `default_chunk`.
    """

    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; it must be at least 1")

    def run(
        self,
        problem: LoopProblem,
        z0: Float[Array, "b ..."],
        x: PyTree,
        expected_loops: Real[Array, " b"] | None = None,
        record: bool = False,
    ) -> LoopResult:
        """See `Execution.run`."""
        batch = z0.shape[0]
        chunk = default_chunk(z0.size // batch) if self.chunk is None else self.chunk
        chunks = -(-batch // chunk)
        size = -(-batch // chunks)  # as even as possible, so that little is padded
        order = jnp.arange(batch) if expected_loops is None else jnp.argsort(expected_loops)
        # The last example fills what is missing: a copy is never deeper than its chunk.
        filled = order[jnp.minimum(jnp.arange(chunks * size), batch - 1)]

        def pack(leaf: Array) -> Array:
            return leaf[filled].reshape(chunks, size, *leaf.shape[1:])

        results = early_exit_in_chunks(problem, pack(z0), jax.tree.map(pack, x), record)
        place = jnp.argsort(order)

        def unpack(leaf: Array) -> Array:
            return leaf.reshape(chunks * size, *leaf.shape[2:])[place]

        latent, loops, stop, divergence = jax.tree.map(unpack, tuple(results[:4]))
        latents = None
        if results.latents is not None:
            latents = jnp.moveaxis(unpack(jnp.moveaxis(results.latents, 1, 2)), 0, 1)
        return LoopResult(latent, loops, stop, divergence, results.executed.sum(), latents)


def default_chunk(latent_size: int) -> int:
    """Examples to loop together, for examples whose latent holds `latent_size` numbers.

    On CPU, about 25,000 numbers at once: what a loop makes of them then stays in a core's cache, and
    few loops are wasted on neighbours. Measured on two cores: for examples of 101 x 128 numbers,
    chunks of 2 were the fastest in most runs and 4 in others; for 26 x 32, chunks of 16, with 32
    within 5%. An accelerator wants enough to be busy; its 4,000,000 is a guess, not measured.
    """
    at_once = 25_000 if jax.default_backend() == "cpu" else 4_000_000
    return max(1, round(at_once / latent_size))
