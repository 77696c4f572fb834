"""Running statistics of observations, and what they are for: inputs of mean 0 and variance 1.

The last axis holds features (the planes of a board, the scalars of a vector); all others are averaged
over, so that statistics, like parameters, do not depend on the size of a board. Or each cell of a board has
statistics of its own, as in the authors' code.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from looped_actor.algorithms.collectives import all_finite, keep_if, total

SMALLEST_DEVIATION = 1e-3
"""A feature that (almost) never changes is not blown up."""
SMALLEST_OF_A_CELL = 1e-6
"""The same for the cells of a board, as in the authors' code."""


class RunningStatistics(NamedTuple):
    """Number, mean and summed squared deviation of each feature so far."""

    seen: Float[Array, ""]
    mean: Float[Array, "*r n"]
    squares: Float[Array, "*r n"]

    @property
    def deviation(self) -> Float[Array, "*r n"]:
        """Standard deviation of each feature."""
        return jnp.sqrt(self.squares / jnp.maximum(self.seen, 1))

    def update(self, observation: Shaped[Array, "... n"], axis: str | None = None) -> "RunningStatistics":
        """Statistics with a batch added (Chan's parallel formula); one that is not finite is left out.

        Args:
          observation: the batch.
          axis: the mesh axis over which the batch is spread, inside `shard_map`.
        """
        dtype = self.mean.dtype
        features = observation.reshape(-1, *self.mean.shape).astype(dtype)
        count = total(jnp.asarray(len(features), dtype), axis)
        mean = total(features.sum(axis=0), axis) / count
        squares = total(((features - mean) ** 2).sum(axis=0), axis)

        both = self.seen + count
        shift = mean - self.mean
        after = RunningStatistics(
            both,
            self.mean + shift * (count / both),
            self.squares + squares + shift**2 * (self.seen * count / both),
        )
        return keep_if(all_finite(after), after, self)

    def normalise(self, observation: PyTree[Shaped[Array, "... n"]]) -> Any:
        """Observations with features of mean 0 and variance 1; as they are while nothing has been seen.

        Of an observation of several arrays (a state and a goal), each has the same features.
        """
        smallest = SMALLEST_DEVIATION if self.mean.ndim == 1 else SMALLEST_OF_A_CELL
        scale = jnp.where(self.seen > 0, jnp.maximum(self.deviation, smallest), 1)
        return jax.tree.map(
            lambda features: (features.astype(self.mean.dtype) - self.mean) / scale, observation
        )


def no_statistics(features: int | tuple[int, ...]) -> RunningStatistics:
    """Before anything was seen of so many features, or of an array of them."""
    return RunningStatistics(jnp.zeros(()), jnp.zeros(features), jnp.zeros(features))
