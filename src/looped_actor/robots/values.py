"""What tells that value and critics are good.

The value falls with the steps, and with the subtasks, that are left. Critics prefer what was done on the
way to any other action: however well the value ranks, an actor learns no more than they know.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from looped_actor.algorithms.gciql import Critics, Value
from looped_actor.offline import Dataset
from looped_actor.robots.graded import subtasks_left

PAIRS = 4096
FARTHEST = 200
STEPS = (1, 6, 21, 51, 101, FARTHEST + 1)
"""Where the groups of steps begin that are counted together."""


def value_facts(value: Value, critics: Critics, data: Dataset, world: str) -> dict[str, Any]:
    """What is known of pairs of a state and a later one of its episode: facts that JSON can hold.

    Correlations of the value are Spearman's, -1 at best. What lies between two states need not be the
    shortest way, so no value reaches that for steps. `prefers` is the share of pairs in which the lower
    critic thinks more of the action that was taken than of another one of the data: a half by chance.
    """
    chance = np.random.default_rng(0)
    rows = np.asarray(data.index.begins)[chance.integers(0, data.transitions, PAIRS)]
    most = np.minimum(np.asarray(data.index.last)[rows] + 1 - rows, FARTHEST)
    steps = 1 + (chance.uniform(size=PAIRS) * most).astype(int)
    states, goals = (np.asarray(data.states[some], np.float32) for some in (rows, rows + steps))
    seen = jnp.asarray(states), jnp.asarray(goals)
    taken, other = (
        np.asarray(critics(*seen, jnp.asarray(data.actions[some], jnp.float32)).min(axis=0))
        for some in (rows, chance.permutation(rows))
    )
    known = {"value": np.asarray(value(*seen)), "prefers": taken > other}
    values = known["value"]
    facts = {"pairs": PAIRS, "steps_correlation": _ranked(values, steps)}
    facts["prefers"] = float(known["prefers"].mean())
    facts["by_steps"] = _means(known, np.digitize(steps, STEPS), _names())
    left = subtasks_left(world, states, goals)
    if left is not None:
        facts["subtasks_correlation"] = _ranked(values, left)
        facts["by_subtasks"] = _means(known, left, {n: str(n) for n in np.unique(left).tolist()})
    return facts


def _names() -> dict[int, str]:
    return {n: f"{STEPS[n - 1]} - {STEPS[n] - 1}" for n in range(1, len(STEPS))}


def _ranked(values: np.ndarray, distance: np.ndarray) -> float | None:
    """Their rank correlation; None where all are alike."""
    from scipy.stats import rankdata  # takes most of a second to import

    if not (np.ptp(values) and np.ptp(distance)):
        return None
    return float(np.corrcoef(rankdata(values), rankdata(distance))[0, 1])


def _means(known: dict[str, np.ndarray], groups: np.ndarray, names: dict[int, str]) -> dict[str, Any]:
    """Means over each group, and how many are in it."""
    found = {}
    for group, name in names.items():
        inside = groups == group
        if inside.any():
            found[name] = {fact: float(values[inside].mean()) for fact, values in known.items()}
            found[name]["pairs"] = int(inside.sum())
    return found
