"""How sure a share is."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Integer, Real

Z_95 = 1.959963984540054  # 97.5th percentile of the standard normal


class Interval(NamedTuple):
    """Between these, with 95% confidence."""

    low: float
    high: float


def wilson(successes: int, trials: int) -> Interval:
    """Wilson's interval of a share: sensible near 0 and 1, and for few trials."""
    if trials == 0:
        return Interval(0.0, 1.0)
    from scipy.stats import binomtest  # takes most of a second to import

    low, high = binomtest(successes, trials).proportion_ci(method="wilson")
    return Interval(float(low), float(high))


def clustered_mean(
    values: Real[np.ndarray, " n"], clusters: Integer[np.ndarray, " n"]
) -> tuple[float, Interval]:
    """A mean, and its interval where values of one cluster depend on each other: clusters count, not values.

    The variance of a ratio of sums over clusters; of a single cluster nothing can be said, and the interval
    is infinite.
    """
    mean = float(np.mean(values))
    _, cluster = np.unique(clusters, return_inverse=True)
    off = np.bincount(cluster, weights=values - mean)
    if len(off) < 2:
        return mean, Interval(-np.inf, np.inf)
    error = np.sqrt((off**2).sum() * len(off) / (len(off) - 1)) / len(values)
    return mean, Interval(mean - Z_95 * float(error), mean + Z_95 * float(error))
