"""`Packed`: turn halting into time when learning, by looping examples of similar depth together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Real, Shaped

from looped_actor.loop.executions import Execution, early_exit_in_chunks
from looped_actor.loop.microbatch import default_microbatch
from looped_actor.loop.state import LoopProblem, LoopResult
from looped_actor.utils.checks import at_least_one

MAX_MICROBATCHES_TOGETHER = 8
"""Microbatches that go forward before they go backward, to be sorted anew by the depths that they took."""


@dataclass(frozen=True)
class Packed(Execution):
    """Sort by expected depth, cut into microbatches, and run `EarlyExit` on each, one after the other.

    A microbatch costs the loops of its deepest example, so the batch costs about the sum of its loops when
    the expectation is good. The expectation (say, the loops an example took when it was collected) decides
    the order and nothing else: result and gradient are the same for any. Without one, the examples are taken
    in the order in which they are given.
    """

    microbatch: int | None = None
    """Maximum number of examples looped together. None: what suits the device."""

    def __post_init__(self) -> None:
        if self.microbatch is not None:
            at_least_one(self, "microbatch")

    def microbatch_for(self, latent_size: int) -> int:
        """Return how many examples with latents of `latent_size` scalars to loop together."""
        return default_microbatch(latent_size) if self.microbatch is None else self.microbatch

    def gradient_group(self, batch: int, latent_size: int) -> tuple[int, "Packed"]:
        """A few microbatches at a time: they go forward before they go backward, sorted anew in between."""
        size, count = even_microbatches(batch, self.microbatch_for(latent_size))
        return size * count, Packed(size)

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
        parts = _partition(batch, self.microbatch_for(z0.size // batch), expected_loops)
        z0, x = jax.tree.map(lambda leaf: leaf[parts.rows], (z0, x))
        results = early_exit_in_chunks(problem, z0, x, record)

        def unpack(leaf: Array) -> Array:
            return leaf.reshape(parts.rows.size, *leaf.shape[2:])[parts.place]

        latent, loops, stop, divergence = jax.tree.map(unpack, tuple(results[:4]))
        latents = None
        if results.latents is not None:
            latents = jnp.moveaxis(unpack(jnp.moveaxis(results.latents, 1, 2)), 0, 1)
        executed, executed_back = (
            count.sum(dtype=jnp.int32) for count in (results.executed, results.executed_back)
        )
        return LoopResult(
            latent=latent,
            loops=loops,
            stop=stop,
            divergence=divergence,
            executed=executed,
            executed_back=executed_back,
            latents=latents,
        )


MakePolicy = Callable[[PyTree, Execution], Callable[..., Any]]
"""Parameters and an execution to a policy: observations to a `PolicyOutput`."""
Loss = Callable[[Any, PyTree], tuple[Float[Array, " b"], Any]]
"""A policy and examples to the loss of each example, and a pytree of metrics of each."""


class MeanGradient(NamedTuple):
    """The gradient of a mean over examples."""

    loss: Float[Array, ""]
    metrics: Any
    """Means of the metrics that the loss returned."""
    gradient: PyTree


def mean_gradient(
    loss: Loss,
    make_policy: MakePolicy,
    parameters: PyTree,
    examples: PyTree[Shaped[Array, "b ..."]],
    execution: Execution,
    *,
    expected_loops: Real[Array, " b"] | None = None,
) -> MeanGradient:
    """Return the gradient of the mean loss of a minibatch, for any learner.

    With `Packed`, it is taken a few microbatches at a time. Inside a net, `Packed` splits the loop alone, and
    all latents of the minibatch wait for its loss; here these few go forward, through the loss and backward
    before the next begin, and only sums remain of them. The gradient is the same, in the memory of a few
    microbatches.

    Args:
      loss: loss and metrics of each example.
      make_policy: makes the policy that the loss calls.
      parameters: to differentiate by.
      examples: the minibatch.
      execution: how its loops run.
      expected_loops: a guess of each example's depth. Only ever changes the time it takes.
    """
    batch = jax.tree.leaves(examples)[0].shape[0]
    latent_size = _latent_size(loss, make_policy(parameters, execution), examples)
    group, within = execution.gradient_group(batch, latent_size)
    parts = _partition(batch, group, expected_loops)
    real = (jnp.arange(parts.rows.size) < batch).reshape(parts.rows.shape)

    def weighted_loss(parameters: PyTree, rows: Int[Array, " c"], real: Bool[Array, " c"]) -> tuple:
        losses, metrics = loss(
            make_policy(parameters, within), jax.tree.map(lambda leaf: leaf[rows], examples)
        )

        def share(values: Real[Array, " c"]) -> Float[Array, ""]:
            return jnp.where(real, values, 0).sum() / batch

        return share(losses), jax.lax.stop_gradient(jax.tree.map(share, metrics))

    def add_group(sums: MeanGradient, part: tuple) -> tuple[MeanGradient, None]:
        (value, metrics), gradient = jax.value_and_grad(weighted_loss, has_aux=True)(parameters, *part)
        return jax.tree.map(jnp.add, sums, MeanGradient(value, metrics, gradient)), None

    shapes = jax.eval_shape(weighted_loss, parameters, parts.rows[0], real[0])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (*shapes, parameters))
    return jax.lax.scan(add_group, MeanGradient(*zeros), (parts.rows, real))[0]


def _latent_size(loss: Loss, policy: Callable[..., Any], examples: PyTree) -> int:
    """Return the scalars in the latent of one example, from the shapes that the policy returns."""
    sizes = []

    def watched(*observation: Any, **options: Any) -> Any:
        output = policy(*observation, **options)
        sizes.append(output.loop.latent.size // output.loop.latent.shape[0])
        return output

    jax.eval_shape(lambda: loss(watched, examples))
    return sizes[-1]


class _Partition(NamedTuple):
    """A batch in parts of one size."""

    rows: Int[Array, "n c"]
    """Examples of each part. Beyond the last, the last again."""
    place: Int[Array, " b"]
    """Position of each example in `rows`."""


def _partition(batch: int, size: int, expected_loops: Real[Array, " b"] | None) -> _Partition:
    """Put examples of similar depth together, in parts of at most `size`."""
    parts = -(-batch // size)
    size = -(-batch // parts)  # as even as possible, so that little is padded
    order = jnp.arange(batch) if expected_loops is None else jnp.argsort(expected_loops)
    # The last example fills what is missing: a copy is never deeper than its part.
    rows = order[jnp.minimum(jnp.arange(parts * size), batch - 1)].reshape(parts, size)
    return _Partition(rows, jnp.argsort(order))


def even_microbatches(batch: int, size: int) -> tuple[int, int]:
    """Return the size of microbatches, and how many go together, that leave the least of a batch to be
    padded.

    They may be half as large as `size`, no less; of equals, the larger.
    """
    size = min(size, batch)
    sizes = range(size, (size - 1) // 2, -1)
    counts = range(min(MAX_MICROBATCHES_TOGETHER, -(-batch // size)), 0, -1)

    def padded(even: tuple[int, int]) -> int:
        return -(-batch // (even[0] * even[1])) * even[0] * even[1]

    return min(((size, count) for size in sizes for count in counts), key=padded)
