"""`Packed`: turn halting into time when learning, by looping examples of like depth together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Real, Shaped

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

    def chunk_for(self, latent_size: int) -> int:
        """Examples to loop together, whose latents hold so many numbers."""
        return default_chunk(latent_size) if self.chunk is None else self.chunk

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
        cut = _cut(batch, self.chunk_for(z0.size // batch), expected_loops)
        z0, x = jax.tree.map(lambda leaf: leaf[cut.rows], (z0, x))
        results = early_exit_in_chunks(problem, z0, x, record)

        def unpack(leaf: Array) -> Array:
            return leaf.reshape(cut.rows.size, *leaf.shape[2:])[cut.place]

        latent, loops, stop, divergence = jax.tree.map(unpack, tuple(results[:4]))
        latents = None
        if results.latents is not None:
            latents = jnp.moveaxis(unpack(jnp.moveaxis(results.latents, 1, 2)), 0, 1)
        return LoopResult(latent, loops, stop, divergence, results.executed.sum(), latents)


Loss = Callable[[PyTree, PyTree], tuple[Float[Array, " c"], Any]]
"""Parameters and examples to the loss of each example, and a pytree of numbers to report of each."""


class MeanGradient(NamedTuple):
    """Of a mean over examples."""

    loss: Float[Array, ""]
    terms: Any
    """Means of what the loss reports."""
    gradient: PyTree


def packed_gradient(
    loss: Loss,
    parameters: PyTree,
    examples: PyTree[Shaped[Array, "b ..."]],
    chunk: int,
    expected_loops: Real[Array, " b"] | None = None,
) -> MeanGradient:
    """The gradient of a mean loss, taken chunk by chunk: `Packed` for a whole learner.

    `Packed` chunks the loop, so all latents of a minibatch wait for its loss. Here a chunk goes forward,
    through the loss and back before the next begins, and only sums remain of it: the same gradient, in
    the memory of one chunk. It needs a loss that is a mean over examples.

    Args:
      loss: of each example. A policy in it should run by `EarlyExit`.
      parameters: to differentiate by.
      examples: the minibatch.
      chunk: the largest number of examples that are computed together.
      expected_loops: a guess of each example's depth. Only ever changes the time it takes.
    """
    batch = jax.tree.leaves(examples)[0].shape[0]
    cut = _cut(batch, chunk, expected_loops)
    weight = (jnp.arange(cut.rows.size) < batch).reshape(cut.rows.shape)

    def mean_of_chunk(parameters: PyTree, rows: Int[Array, " c"], weight: Bool[Array, " c"]) -> tuple:
        losses, terms = loss(parameters, jax.tree.map(lambda leaf: leaf[rows], examples))

        def mean(values: Float[Array, " c"]) -> Float[Array, ""]:
            return jnp.where(weight, values, 0).sum() / batch

        return mean(losses), jax.lax.stop_gradient(jax.tree.map(mean, terms))

    def add_chunk(sums: MeanGradient, rows_and_weight: tuple) -> tuple[MeanGradient, None]:
        take = jax.value_and_grad(mean_of_chunk, has_aux=True)
        (value, terms), gradient = take(parameters, *rows_and_weight)
        return jax.tree.map(jnp.add, sums, MeanGradient(value, terms, gradient)), None

    shapes = jax.eval_shape(mean_of_chunk, parameters, cut.rows[0], weight[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (*shapes, parameters))
    return jax.lax.scan(add_chunk, MeanGradient(*nothing), (cut.rows, weight))[0]


class _Cut(NamedTuple):
    """A batch in chunks."""

    rows: Int[Array, "n c"]
    """Which examples each chunk has. Beyond the last, the last again."""
    place: Int[Array, " b"]
    """Where each example is among them."""


def _cut(batch: int, chunk: int, expected_loops: Real[Array, " b"] | None) -> _Cut:
    """Examples of like depth together, in chunks of at most so many."""
    chunks = -(-batch // chunk)
    size = -(-batch // chunks)  # as even as possible, so that little is padded
    order = jnp.arange(batch) if expected_loops is None else jnp.argsort(expected_loops)
    # The last example fills what is missing: a copy is never deeper than its chunk.
    rows = order[jnp.minimum(jnp.arange(chunks * size), batch - 1)].reshape(chunks, size)
    return _Cut(rows, jnp.argsort(order))


def default_chunk(latent_size: int) -> int:
    """Examples to loop together, for examples whose latent holds `latent_size` numbers.

    On CPU, about 25,000 numbers at once: what a loop makes of them then stays in a core's cache, and
    few loops are wasted on neighbours. Measured on two cores: for examples of 101 x 128 numbers,
    chunks of 2 were the fastest in most runs and 4 in others; for 26 x 32, chunks of 16, with 32
    within 5%. An accelerator wants enough to be busy; its 4,000,000 is a guess, not measured.
    """
    return max(1, round(numbers_at_once() / latent_size))


def numbers_at_once() -> int:
    """Of the latents that are looped together. See `default_chunk`."""
    return 25_000 if jax.default_backend() == "cpu" else 4_000_000
