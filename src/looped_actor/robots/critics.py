"""Quality of value and critics on validation data.

A good value decreases with the number of steps, and of subtasks, to the goal. Good critics rank the dataset
action above other actions. An actor can learn no more than that, however well the value ranks states.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from looped_actor.algorithms.gciql import CriticFn, ValueFn
from looped_actor.offline import Dataset
from looped_actor.robots.graded import count_subtasks

PAIRS = 4096
"""Pairs of a state and a goal."""
MAX_STEPS = 200
"""Most steps from a state to its goal."""
FIRST_STEPS = (1, 6, 21, 51, 101, MAX_STEPS + 1)
"""First number of steps of each group in `by_steps`."""


def critic_results(value: ValueFn, critics: CriticFn, data: Dataset, env_name: str) -> dict[str, Any]:
    """Return results on pairs of a state and a later state of its episode as goal, as JSON.

    Correlations of the value are Spearman's, -1 at best. A path in the data need not be the shortest, so no
    value reaches that for steps. `prefers` is the share of pairs for which the lower critic ranks the dataset
    action above that of another pair: 0.5 for random critics.
    """
    rng = np.random.default_rng(0)
    rows = np.asarray(data.index.transition_rows)[rng.integers(0, data.transitions, PAIRS)]
    most = np.minimum(np.asarray(data.index.last_rows)[rows] + 1 - rows, MAX_STEPS)
    steps = 1 + (rng.uniform(size=PAIRS) * most).astype(int)
    states, goals = (np.asarray(data.states[some], np.float32) for some in (rows, rows + steps))
    pairs = jnp.asarray(states), jnp.asarray(goals)
    q, q_other = (
        np.asarray(critics(*pairs, jnp.asarray(data.actions[some], jnp.float32)).min(axis=0))
        for some in (rows, rng.permutation(rows))
    )
    values = np.asarray(value(*pairs))
    measures = {"value": values, "prefers": q > q_other}
    names = {n: f"{FIRST_STEPS[n - 1]} - {FIRST_STEPS[n] - 1}" for n in range(1, len(FIRST_STEPS))}
    results = {
        "pairs": PAIRS,
        "steps_correlation": _rank_correlation(values, steps),
        "prefers": float(measures["prefers"].mean()),
        "by_steps": _group_means(measures, np.digitize(steps, FIRST_STEPS), names),
    }
    subtasks = count_subtasks(env_name, states, goals)
    if subtasks is not None:
        results["subtasks_correlation"] = _rank_correlation(values, subtasks)
        names = {n: str(n) for n in np.unique(subtasks).tolist()}
        results["by_subtasks"] = _group_means(measures, subtasks, names)
    return results


def _rank_correlation(values: np.ndarray, distances: np.ndarray) -> float | None:
    """Return Spearman's correlation; None if all values, or all distances, are equal."""
    from scipy.stats import rankdata  # takes most of a second to import

    if not (np.ptp(values) and np.ptp(distances)):
        return None
    return float(np.corrcoef(rankdata(values), rankdata(distances))[0, 1])


def _group_means(
    measures: dict[str, np.ndarray], groups: np.ndarray, names: dict[int, str]
) -> dict[str, Any]:
    """Return the means of all measures over each group that is not empty, and its size."""
    means = {}
    for group, name in names.items():
        mask = groups == group
        if mask.any():
            means[name] = {measure: float(values[mask].mean()) for measure, values in measures.items()}
            means[name]["pairs"] = int(mask.sum())
    return means
