"""`Packed`: turn halting into time when learning, by looping examples of like depth together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Real, Shaped

from looped_actor.checks import at_least_one
from looped_actor.loop.executions import Execution, Split, early_exit_in_chunks
from looped_actor.loop.hardware import default_chunk
from looped_actor.loop.state import LoopProblem, LoopResult


@dataclass(frozen=True)
class Packed(Execution):
    """Sort by expected depth, cut into chunks, and run `EarlyExit` on each, one after the other.

    A chunk costs the loops of its deepest example, so the batch costs about the sum of its loops
    when the expectation is good. The expectation (say, the loops an example took when it was
    collected) decides the order and nothing else: result and gradient are the same for any.
    Without one, the examples are taken as they come.

    `chunk` is the largest number of examples looped together; by default, what suits the hardware.
    """

    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None:
            at_least_one(self, "chunk")

    def chunk_for(self, latent_size: int) -> int:
        """Examples to loop together, by the size of their latents."""
        return default_chunk(latent_size) if self.chunk is None else self.chunk

    def split(self, batch: int, latent_size: int) -> Split:
        """A few chunks at a time: they go forward before they go back, and are sorted anew in between."""
        chunk, count = even_chunks(batch, self.chunk_for(latent_size))
        return Split(chunk * count, Packed(chunk))

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
        executed, executed_back = (
            count.sum(dtype=jnp.int32) for count in (results.executed, results.executed_back)
        )
        return LoopResult(latent, loops, stop, divergence, executed, executed_back, latents)


MakePolicy = Callable[[PyTree, Execution], Callable[..., Any]]
"""Parameters, and how its loops are to run, to a policy: observations to decisions with `loop`."""
Loss = Callable[[Any, PyTree], tuple[Float[Array, " b"], Any]]
"""A policy and examples to the loss of each example, and a pytree of numbers to report of each."""


CHUNKS_AT_ONCE = 8
"""At most, that go forward before they go back, to be sorted anew by the depths they turned out to have."""


class MeanGradient(NamedTuple):
    """The gradient of a mean over examples."""

    loss: Float[Array, ""]
    terms: Any
    """Means of what the loss reports."""
    gradient: PyTree


def mean_gradient(
    loss: Loss,
    policy: MakePolicy,
    parameters: PyTree,
    examples: PyTree[Shaped[Array, "b ..."]],
    execution: Execution,
    *,
    expected_loops: Real[Array, " b"] | None = None,
) -> MeanGradient:
    """The gradient of a mean loss over a minibatch, for any learner.

    By `Packed`, it is taken a few chunks at a time. Inside a net, `Packed` chunks the loop alone, and all
    latents of the minibatch wait for its loss; here these few go forward, through the loss and back before
    the next begin, and only sums remain of them. The gradient is the same, in the memory of a few chunks.

    Args:
      loss: of each example.
      policy: makes the policy that the loss asks.
      parameters: to differentiate by.
      examples: the minibatch.
      execution: how its loops run.
      expected_loops: a guess of each example's depth. Only ever changes the time it takes.
    """
    batch = jax.tree.leaves(examples)[0].shape[0]
    part, within = execution.split(batch, _latent_size(loss, policy(parameters, execution), examples))
    cut = _cut(batch, part, expected_loops)
    real = (jnp.arange(cut.rows.size) < batch).reshape(cut.rows.shape)

    def share_of_chunk(parameters: PyTree, rows: Int[Array, " c"], real: Bool[Array, " c"]) -> tuple:
        losses, terms = loss(policy(parameters, within), jax.tree.map(lambda leaf: leaf[rows], examples))

        def share(values: Real[Array, " c"]) -> Float[Array, ""]:
            return jnp.where(real, values, 0).sum() / batch

        return share(losses), jax.lax.stop_gradient(jax.tree.map(share, terms))

    def add_chunk(sums: MeanGradient, chunk: tuple) -> tuple[MeanGradient, None]:
        (value, terms), gradient = jax.value_and_grad(share_of_chunk, has_aux=True)(parameters, *chunk)
        return jax.tree.map(jnp.add, sums, MeanGradient(value, terms, gradient)), None

    shapes = jax.eval_shape(share_of_chunk, parameters, cut.rows[0], real[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (*shapes, parameters))
    return jax.lax.scan(add_chunk, MeanGradient(*nothing), (cut.rows, real))[0]


def _latent_size(loss: Loss, decide: Callable[..., Any], examples: PyTree) -> int:
    """Numbers in the latent of one example: what the policy returns when the loss asks it. Costs nothing."""
    sizes = []

    def watched(*observation: Any, **options: Any) -> Any:
        decision = decide(*observation, **options)
        sizes.append(decision.loop.latent.size // decision.loop.latent.shape[0])
        return decision

    jax.eval_shape(lambda: loss(watched, examples))
    return sizes[-1]


class _Cut(NamedTuple):
    """A batch in chunks."""

    rows: Int[Array, "n c"]
    """Which examples each chunk has. Beyond the last, the last again."""
    place: Int[Array, " b"]
    """Where each example is among them."""


def _cut(batch: int, chunk: int, expected_loops: Real[Array, " b"] | None) -> _Cut:
    """Examples of like depth together, in chunks of at most `chunk`."""
    chunks = -(-batch // chunk)
    size = -(-batch // chunks)  # as even as possible, so that little is padded
    order = jnp.arange(batch) if expected_loops is None else jnp.argsort(expected_loops)
    # The last example fills what is missing: a copy is never deeper than its chunk.
    rows = order[jnp.minimum(jnp.arange(chunks * size), batch - 1)].reshape(chunks, size)
    return _Cut(rows, jnp.argsort(order))


def even_chunks(batch: int, chunk: int) -> tuple[int, int]:
    """The size of a chunk, and how many go forward together, that leave the least of a batch to be padded.

    Chunks may be half as large as wished, no less; of equals, the larger.
    """
    chunk = min(chunk, batch)
    sizes = range(chunk, (chunk - 1) // 2, -1)
    counts = range(min(CHUNKS_AT_ONCE, -(-batch // chunk)), 0, -1)

    def padded(even: tuple[int, int]) -> int:
        return -(-batch // (even[0] * even[1])) * even[0] * even[1]

    return min(((size, count) for size in sizes for count in counts), key=padded)
