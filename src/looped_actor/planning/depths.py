"""Distributions of loops per decision, and policies that take prescribed numbers of loops."""

import statistics
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Array, Int, PyTree

from looped_actor.evaluation.repeats import fingerprint
from looped_actor.loop import HaltingRule, StreamablePolicy
from looped_actor.loop.run import Capped, with_caps

MAX_LOOPS = 16


@dataclass(frozen=True)
class DepthDistribution:
    """Loops per decision: a share at the cap, the others normally distributed."""

    at_cap: float
    """Share of decisions that reach the cap."""
    mean_below: float
    """Mean of the other decisions."""
    deviation: float
    """Standard deviation of the other decisions."""

    def draw(self, count: int) -> Int[np.ndarray, " n"]:
        """Return `count` depths in random order, stratified so that the mean hardly depends on the count."""
        capped = round(self.at_cap * count)
        normal = statistics.NormalDist(self.mean_below, self.deviation)
        free = count - capped
        below = [round(normal.inv_cdf((i + 0.5) / free)) for i in range(free)]
        depths = np.concatenate([np.clip(below, 2, MAX_LOOPS - 1), np.full(capped, MAX_LOOPS)])
        return np.random.default_rng(0).permutation(depths).astype(np.int32)


# Means of 9.8, 15.1 and 4. The paper's policies: 91% of Boxoban's decisions stop before loop 16 and
# 21% of Rush Hour's, so the mean of those that do is (9.8 - 0.09 x 16) / 0.91, and so on.
DISTRIBUTIONS = {
    "boxoban": DepthDistribution(at_cap=0.09, mean_below=9.19, deviation=2.8),
    "rush-hour": DepthDistribution(at_cap=0.79, mean_below=11.7, deviation=2.0),
    "easy": DepthDistribution(at_cap=0.0, mean_below=4.0, deviation=1.2),
}
"""Depths of the paper's policies by task, and of an easy task."""


def never_converging(rule: HaltingRule) -> HaltingRule:
    """Return a rule that does the work of `rule`, but stops at the cap only: no divergence is below zero."""
    return replace(rule, threshold=0.0) if hasattr(rule, "threshold") else rule  # type: ignore[type-var]


def prescribed_depths(observation: PyTree, depths: Int[Array, " n"]) -> Int[Array, " b"]:
    """Return a depth for each observation of a batch. Equal observations have equal depths."""
    return depths[fingerprint(observation)[:, 0] % len(depths)]


def prescribe_depths(policy: StreamablePolicy, depths: Int[Array, " n"]) -> StreamablePolicy:
    """Return a policy that takes loops by `prescribed_depths`. Its rule must be `never_converging`."""
    return replace(
        policy,
        embed=lambda observation: Capped(policy.embed(observation), prescribed_depths(observation, depths)),
        initial_latent=lambda x: policy.initial_latent(x.x),
        problem=with_caps(policy.problem),
    )
