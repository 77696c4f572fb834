"""Runs that differ in their seed: mean success, its intervals, and comparisons of arms."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from looped_actor.analysis.compare import while_training
from looped_actor.analysis.drawing import ARMS
from looped_actor.analysis.tables import Row, distinct, of
from looped_actor.evaluation.intervals import (
    Interval,
    paired_difference,
    t_interval,
    unpaired_difference,
    wilson,
    wilson_over_levels,
)

CURVE_PART = 0.75
"""Part of a run after which its curve should have flattened."""


class OverSeeds(NamedTuple):
    """Success of runs with different seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for one run."""
    seeds: Interval | None
    """95% interval for other seeds on these levels: Student's t; None for one run."""
    levels: Interval
    """95% interval for these runs on other levels."""

    def columns(self, played: str) -> dict[str, float | None]:
        """Return the columns of a table; `played` is levels or episodes."""
        return {
            "success": self.mean,
            "deviation": self.deviation,
            "seeds_low": self.seeds and self.seeds.low,
            "seeds_high": self.seeds and self.seeds.high,
            f"{played}_low": self.levels.low,
            f"{played}_high": self.levels.high,
        }


def outcome_table(texts: Sequence[str | None]) -> Bool[np.ndarray, "runs levels"] | None:
    """Return the outcomes of runs that played the same levels; None where a run did not record them."""
    if not all(texts) or len({len(str(text)) for text in texts}) > 1:
        return None
    return np.array([[mark == "+" for mark in str(text)] for text in texts])


def over_seeds(solved: Sequence[int], played: Sequence[int], outcomes: Sequence[str | None]) -> OverSeeds:
    """Return the success of runs that played the same levels.

    Where a run has not recorded its `outcomes`, levels count as those of one run: all runs might have solved
    the same ones.
    """
    shares, table = np.array(solved) / np.array(played), outcome_table(outcomes)
    mean = float(shares.mean())
    levels = wilson(mean * min(played), min(played)) if table is None else wilson_over_levels(table)
    if len(shares) < 2:
        return OverSeeds(mean, None, None, levels)
    return OverSeeds(mean, float(shares.std(ddof=1)), t_interval(shares, 0.0, 1.0), levels)


def percent(mean: float | None, deviation: float | None) -> str:
    """A mean and its deviation, for people."""
    if mean is None:
        return "-"
    return f"{100 * mean:.1f}" + ("%" if deviation is None else f" +- {100 * deviation:.1f}%")


def last_evaluations(rows: Sequence[Row]) -> list[Row]:
    """How each run ended: its test, or where there is none, its last evaluation."""

    def last(row: Row) -> tuple[int, bool]:
        return row["steps"], row.get("split") == "test"

    return [max(of(rows, run=run), key=last) for run in distinct(rows, "run")]


def ends_table(rows: Sequence[Row]) -> list[dict]:
    """Return a row for each arm, from evaluations during training, with what the paper reports."""
    table = []
    lasts = last_evaluations(rows)
    for task, learner in distinct(lasts, "task", "learner"):
        for arm in [arm for arm in ARMS if of(lasts, task=task, learner=learner, arm=arm)]:
            own = of(lasts, task=task, learner=learner, arm=arm)
            solved, played = ([row[name] for row in own] for name in ("solved", "played"))
            success = over_seeds(solved, played, [row.get("outcomes") for row in own])
            optimal = [row["optimal_actions"] for row in own if row["optimal_actions"] is not None]
            watched = [_learned_from(rows, row["run"]) for row in own]
            seen = [max(course)[1] for course in watched if course]
            table.append(
                {
                    "task": task,
                    "learner": learner,
                    "arm": arm,
                    "runs": len(own),
                    "steps": own[0]["steps"],
                    "played": own[0]["played"],
                    **success.columns("levels"),
                    "climbing": int(is_climbing(of(rows, task=task, learner=learner, arm=arm))),
                    "train_success": float(np.mean(seen)) if seen else None,
                    "optimal_actions": float(np.mean(optimal)) if optimal else None,
                    "loops": float(np.mean([row["loops"] for row in own])),
                    "paper": own[0]["paper"],
                    "paper_deviation": own[0]["paper_deviation"],
                }
            )
    return table


def _learned_from(rows: Sequence[Row], run: str) -> list[tuple[int, float]]:
    """Steps, and success on levels that a run learned from, where it was measured."""
    own = [row for row in of(rows, run=run) if row.get("train_success") is not None]
    return [(row["steps"], row["train_success"]) for row in own]


def is_climbing(rows: Sequence[Row]) -> bool:
    """Return whether runs end better than at `CURVE_PART`, by more than the interval of the difference.

    Then the arm was stopped before its curve flattened, and its last evaluation says little about what more
    steps would give. Levels count as those of one run. Fewer than three evaluations tell nothing.
    """
    lasts, earlier, played = [], [], []
    for run in distinct(rows, "run"):
        course = sorted(while_training(of(rows, run=run)), key=lambda row: row["steps"])
        if len(course) < 3:
            return False
        whole = course[-1]["steps"]
        lasts.append(course[-1]["success"])
        earlier.append(min(course[:-1], key=lambda row: abs(row["steps"] - CURVE_PART * whole))["success"])
        played.append(course[-1]["played"])
    return unpaired_difference(np.array(lasts), np.array(earlier), min(played)).levels.low > 0


def difference_rows(rows: Sequence[Row], arm: str) -> list[dict]:
    """Return a row for each other arm with which an arm shares a task and seeds: how far it is ahead."""
    lasts, table = last_evaluations(rows), []
    for task, learner in distinct(lasts, "task", "learner"):
        own = of(lasts, task=task, learner=learner)
        for other in [other for other in ARMS if other != arm]:
            pair = [{row["seed"]: row for row in of(own, arm=name)} for name in (arm, other)]
            seeds = sorted(pair[0].keys() & pair[1].keys())
            if not seeds:
                continue
            first, second = ([runs[seed] for seed in seeds] for runs in pair)
            outcomes = outcome_table([row.get("outcomes") for row in (*first, *second)])
            if outcomes is None:
                mine, theirs = (np.array([row["success"] for row in some]) for some in (first, second))
                apart = unpaired_difference(mine, theirs, min(row["played"] for row in (*first, *second)))
            else:
                apart = paired_difference(outcomes[: len(seeds)], outcomes[len(seeds) :])
            table.append(
                {
                    "task": task,
                    "learner": learner,
                    "arm": arm,
                    "other": other,
                    "seeds": len(seeds),
                    "by_level": int(outcomes is not None),
                    "ahead": apart.mean,
                    "low": apart.widest.low,
                    "high": apart.widest.high,
                    "levels_low": apart.levels.low,
                    "levels_high": apart.levels.high,
                    "seeds_low": apart.seeds and apart.seeds.low,
                    "seeds_high": apart.seeds and apart.seeds.high,
                }
            )
    return table


def verdict(ends: Sequence[Row], differences: Sequence[Row], other: str) -> str | None:
    """Return a sentence on how far an arm of `difference_rows` is ahead; None if one is missing."""
    if not (found := of(differences, other=other)):
        return None
    (apart,) = found
    arms = apart["arm"], other
    climbing = [ARMS[arm] for arm in arms if of(ends, arm=arm)[0]["climbing"]]
    names = " and ".join(ARMS[arm] for arm in arms)
    if climbing:
        still = f"{' and '.join(climbing)} still {'climbs' if len(climbing) == 1 else 'climb'} at the end"
        return f"{names}: too short to compare, {still}; give a larger `--budget` and another `--out`."
    between = f"{100 * apart['low']:.1f} to {100 * apart['high']:.1f}"
    said = f"{ARMS[apart['arm']]} is {_points(apart['ahead'])} {ARMS[other]} (95% interval {between})"
    if apart["seeds"] == 1:
        said += "; one seed each, and other seeds may differ by more"
    return said + ("." if apart["low"] > 0 or apart["high"] < 0 else ": undecided.")


def _points(ahead: float) -> str:
    return f"{100 * abs(ahead):.1f} points " + ("ahead of" if ahead >= 0 else "behind")
