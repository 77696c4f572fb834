"""Confidence intervals of shares and of differences, for levels and seeds that are not independent."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer, Real

Z_95 = 1.959963984540054  # 97.5th percentile of the standard normal


class Interval(NamedTuple):
    """A 95% confidence interval."""

    low: float
    high: float


def wilson(successes: float, trials: float) -> Interval:
    """Return Wilson's interval of a share, which is sensible near 0 and 1 and for few trials."""
    if trials == 0:
        return Interval(0.0, 1.0)
    share, noise = successes / trials, Z_95**2 / trials
    centre = (share + noise / 2) / (1 + noise)
    half = np.sqrt(noise * share * (1 - share) + noise**2 / 4) / (1 + noise)
    return Interval(max(0.0, float(centre - half)), min(1.0, float(centre + half)))


def wilson_over_levels(outcomes: Bool[np.ndarray, "runs levels"]) -> Interval:
    """Return the interval of the mean success of runs that played the same levels, over other levels.

    A level that is hard for one run is hard for the others, so `runs * levels` outcomes are worth fewer
    independent ones: as many as give the variance that the levels' means show. Copies of a run are worth
    that run.
    """
    runs, levels = outcomes.shape
    share, spread = float(outcomes.mean()), float(outcomes.mean(axis=0).var())
    alone = share * (1 - share)
    trials = min(runs * levels, levels * alone / spread) if spread else (runs if alone else 1) * levels
    return wilson(share * trials, trials)


def t_interval(values: Float[np.ndarray, " n"], least: float, most: float) -> Interval:
    """Return Student's interval of the mean of two values or more, within what a mean can be."""
    from scipy.stats import t  # takes most of a second to import

    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
    half = float(t.ppf(0.975, len(values) - 1)) * error
    return Interval(max(least, mean - half), min(most, mean + half))


class Difference(NamedTuple):
    """Success of one arm minus that of another, in runs with the same seeds on the same levels."""

    mean: float
    levels: Interval
    """Interval of the difference over other levels."""
    seeds: Interval | None
    """Interval of the difference over other seeds; None for one seed."""

    @property
    def widest(self) -> Interval:
        """The wider interval: it covers other seeds and other levels in 95% of simulated studies."""
        if self.seeds is None or self.seeds.high - self.seeds.low < self.levels.high - self.levels.low:
            return self.levels
        return self.seeds


def paired_difference(
    first: Bool[np.ndarray, "seeds levels"], second: Bool[np.ndarray, "seeds levels"]
) -> Difference:
    """Compare two arms, paired by seed and by level: outcomes at the same place belong together.

    Over levels, one level is added on which the first arm alone succeeds and one for the second (Bonett and
    Price, 2012), so that arms that happen to agree everywhere do not get an interval without width.
    """
    apart = first.astype(float) - second
    mean, by_level = float(apart.mean()), apart.mean(axis=0)
    error = np.append(by_level, [1.0, -1.0]).std(ddof=1) / np.sqrt(len(by_level) + 2)
    levels = Interval(mean - Z_95 * float(error), mean + Z_95 * float(error))
    return Difference(mean, levels, t_interval(apart.mean(axis=1), -1.0, 1.0) if len(apart) > 1 else None)


def unpaired_difference(
    first: Float[np.ndarray, " seeds"], second: Float[np.ndarray, " seeds"], levels: int
) -> Difference:
    """Compare two arms of which only each run's share is known, on that many levels.

    Levels count as those of one run, as if every run of an arm solved the same ones.
    """
    mean = float(first.mean() - second.mean())
    error = np.sqrt(sum(share * (1 - share) for share in (first.mean(), second.mean())) / levels)
    over_levels = Interval(mean - Z_95 * float(error), mean + Z_95 * float(error))
    return Difference(mean, over_levels, t_interval(first - second, -1.0, 1.0) if len(first) > 1 else None)


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
