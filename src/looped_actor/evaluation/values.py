"""What tells that a value is good: it falls with the steps, and with the subtasks, that are left."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.stats import rankdata

from looped_actor.algorithms.gciql import Value
from looped_actor.offline import Dataset
from looped_actor.offline.graded import subtasks_left

PAIRS = 4096
FARTHEST = 200
STEPS = (1, 6, 21, 51, 101, FARTHEST + 1)
"""Where the groups of steps begin that are counted together."""


def value_facts(value: Value, data: Dataset, world: str) -> dict[str, Any]:
    """How a value ranks pairs of a state and a later one of its episode: facts that JSON can hold.

    Correlations are Spearman's, -1 at best. What lies between two states need not be the shortest way, so
    no value reaches that for steps.
    """
    chance = np.random.default_rng(0)
    rows = np.asarray(data.index.begins)[chance.integers(0, data.transitions, PAIRS)]
    most = np.minimum(np.asarray(data.index.last)[rows] + 1 - rows, FARTHEST)
    steps = 1 + (chance.uniform(size=PAIRS) * most).astype(int)
    states, goals = (np.asarray(data.states[some], np.float32) for some in (rows, rows + steps))
    values = np.asarray(value(jnp.asarray(states), jnp.asarray(goals)))
    facts = {"pairs": PAIRS, "steps_correlation": _ranked(values, steps)}
    facts["by_steps"] = _means(values, np.digitize(steps, STEPS), _names())
    left = subtasks_left(world, states, goals)
    if left is not None:
        facts["subtasks_correlation"] = _ranked(values, left)
        facts["by_subtasks"] = _means(values, left, {n: str(n) for n in np.unique(left).tolist()})
    return facts


def _names() -> dict[int, str]:
    return {n: f"{STEPS[n - 1]} - {STEPS[n] - 1}" for n in range(1, len(STEPS))}


def _ranked(values: np.ndarray, distance: np.ndarray) -> float | None:
    """Their rank correlation; None where all are alike."""
    if not (np.ptp(values) and np.ptp(distance)):
        return None
    return float(np.corrcoef(rankdata(values), rankdata(distance))[0, 1])


def _means(values: np.ndarray, groups: np.ndarray, names: dict[int, str]) -> dict[str, Any]:
    """The mean value of each group, and how many are in it."""
    return {
        name: {"value": float(values[groups == group].mean()), "pairs": int((groups == group).sum())}
        for group, name in names.items()
        if (groups == group).any()
    }
