"""Running statistics of observations, by which policies normalise their inputs to mean 0 and variance 1.

The last axis of an observation holds features (the planes of a board, the scalars of a vector); the
statistics average over all others, so that they, like the parameters, do not depend on the size of a board.
In the authors' recipe each cell of a board has its own statistics.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from looped_actor.training.sharding import sum_over_devices
from looped_actor.utils.trees import all_finite, choose

MIN_STD = 1e-3
"""Floor of the standard deviation, for features that (almost) never change."""
MIN_CELL_STD = 1e-6
"""Floor of the standard deviation of single cells, as in the authors' code."""


class RunningStatistics(NamedTuple):
    """Count, mean and summed squared deviation of each feature."""

    seen: Float[Array, ""]
    """Number of observations."""
    mean: Float[Array, "*r n"]
    squares: Float[Array, "*r n"]

    @property
    def std(self) -> Float[Array, "*r n"]:
        """Standard deviation of each feature."""
        return jnp.sqrt(self.squares / jnp.maximum(self.seen, 1))

    def update(self, observation: Shaped[Array, "... n"], axis: str | None = None) -> "RunningStatistics":
        """Return the statistics with a batch added, by Chan's parallel formula; skip a batch that is not
        finite.

        Args:
          observation: the batch.
          axis: the mesh axis over which the batch is sharded, inside `shard_map`.
        """
        dtype = self.mean.dtype
        features = observation.reshape(-1, *self.mean.shape).astype(dtype)
        count = sum_over_devices(jnp.asarray(len(features), dtype), axis)
        mean = sum_over_devices(features.sum(axis=0), axis) / count
        squares = sum_over_devices(((features - mean) ** 2).sum(axis=0), axis)

        total = self.seen + count
        shift = mean - self.mean
        after = RunningStatistics(
            seen=total,
            mean=self.mean + shift * (count / total),
            squares=self.squares + squares + shift**2 * (self.seen * count / total),
        )
        return choose(all_finite(after), after, self)

    def normalize(self, observation: PyTree[Shaped[Array, "... n"]]) -> Any:
        """Return observations with features of mean 0 and variance 1; unchanged before the first update.

        All arrays of an observation (a state and a goal) have the same features.
        """
        floor = MIN_STD if self.mean.ndim == 1 else MIN_CELL_STD
        scale = jnp.where(self.seen > 0, jnp.maximum(self.std, floor), 1)
        return jax.tree.map(
            lambda features: (features.astype(self.mean.dtype) - self.mean) / scale, observation
        )


def zero_statistics(features: int | tuple[int, ...]) -> RunningStatistics:
    """Return statistics of no observations, for a number of features or an array of them."""
    return RunningStatistics(jnp.zeros(()), jnp.zeros(features), jnp.zeros(features))
