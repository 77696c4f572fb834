"""Runs that differ only in their seed: mean success with intervals, and comparisons of arms."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from looped_actor.analysis.compare import during_training
from looped_actor.analysis.drawing import ARMS
from looped_actor.analysis.tables import Row, distinct, rows_where
from looped_actor.evaluation.intervals import (
    Interval,
    paired_difference,
    t_interval,
    unpaired_difference,
    wilson,
    wilson_over_levels,
)

FLAT_FROM = 0.75
"""Share of a run after which its curve should be flat."""


class SuccessOverSeeds(NamedTuple):
    """Success of runs with different seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for one run."""
    seeds: Interval | None
    """95% interval for other seeds on these levels, by Student's t; None for one run."""
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
    """Return the outcomes of runs that played the same levels; None if a run did not record them."""
    if not all(texts) or len({len(str(text)) for text in texts}) > 1:
        return None
    return np.array([[mark == "+" for mark in str(text)] for text in texts])


def success_over_seeds(
    solved: Sequence[int], played: Sequence[int], outcomes: Sequence[str | None]
) -> SuccessOverSeeds:
    """Return the success of runs that played the same levels.

    If a run did not record its `outcomes`, levels count as those of one run: all runs might have solved the
    same levels.
    """
    shares, table = np.array(solved) / np.array(played), outcome_table(outcomes)
    mean = float(shares.mean())
    levels = wilson(mean * min(played), min(played)) if table is None else wilson_over_levels(table)
    if len(shares) < 2:
        return SuccessOverSeeds(mean, None, None, levels)
    return SuccessOverSeeds(
        mean=mean,
        deviation=float(shares.std(ddof=1)),
        seeds=t_interval(shares, 0.0, 1.0),
        levels=levels,
    )


def format_percent(mean: float | None, deviation: float | None) -> str:
    """Return a mean and its deviation as text."""
    if mean is None:
        return "-"
    return f"{100 * mean:.1f}" + ("%" if deviation is None else f" +- {100 * deviation:.1f}%")


def last_evaluations(rows: Sequence[Row]) -> list[Row]:
    """Return the test of each run, or its last evaluation if it was not tested."""

    def order(row: Row) -> tuple[int, bool]:
        return row["steps"], row.get("split") == "test"

    return [max(rows_where(rows, run=run), key=order) for run in distinct(rows, "run")]


def ends_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row for each arm, from evaluations during training, with the results of the paper."""
    table = []
    last = last_evaluations(rows)
    for task, learner in distinct(last, "task", "learner"):
        for arm in [arm for arm in ARMS if rows_where(last, task=task, learner=learner, arm=arm)]:
            own = rows_where(last, task=task, learner=learner, arm=arm)
            solved, played = ([row[name] for row in own] for name in ("solved", "played"))
            success = success_over_seeds(solved, played, [row.get("outcomes") for row in own])
            optimal = [row["optimal_actions"] for row in own if row["optimal_actions"] is not None]
            curves = [_train_curve(rows, row["run"]) for row in own]
            train = [max(curve)[1] for curve in curves if curve]
            evaluations = rows_where(rows, task=task, learner=learner, arm=arm)
            table.append(
                {
                    "task": task,
                    "learner": learner,
                    "arm": arm,
                    "runs": len(own),
                    "steps": own[0]["steps"],
                    "played": own[0]["played"],
                    **success.columns("levels"),
                    "climbing": int(is_climbing(evaluations)),
                    "train_success": float(np.mean(train)) if train else None,
                    "optimal_actions": float(np.mean(optimal)) if optimal else None,
                    "loops": float(np.mean([row["loops"] for row in own])),
                    "paper": own[0]["paper"],
                    "paper_deviation": own[0]["paper_deviation"],
                }
            )
    return table


def _train_curve(rows: Sequence[Row], run: str) -> list[tuple[int, float]]:
    """Return steps and success on training levels of a run, if it was measured."""
    own = [row for row in rows_where(rows, run=run) if row.get("train_success") is not None]
    return [(row["steps"], row["train_success"]) for row in own]


def is_climbing(rows: Sequence[Row]) -> bool:
    """Return whether runs end better than at `FLAT_FROM`, by more than the interval of the difference.

    Then the arm was stopped before its curve was flat, and its last evaluation says little about the success
    after more steps. Levels count as those of one run. Fewer than three evaluations are not enough to say.
    """
    last, earlier, played = [], [], []
    for run in distinct(rows, "run"):
        curve = sorted(during_training(rows_where(rows, run=run)), key=lambda row: row["steps"])
        if len(curve) < 3:
            return False
        target = FLAT_FROM * curve[-1]["steps"]
        last.append(curve[-1]["success"])
        earlier.append(min(curve[:-1], key=lambda row: abs(row["steps"] - target))["success"])
        played.append(curve[-1]["played"])
    return unpaired_difference(np.array(last), np.array(earlier), min(played)).levels.low > 0


def difference_rows(rows: Sequence[Row], arm: str) -> list[dict[str, Any]]:
    """Return a row for each arm with which `arm` shares a task and seeds: the difference of success."""
    last, table = last_evaluations(rows), []
    for task, learner in distinct(last, "task", "learner"):
        own = rows_where(last, task=task, learner=learner)
        for other in [other for other in ARMS if other != arm]:
            by_seed = [{row["seed"]: row for row in rows_where(own, arm=name)} for name in (arm, other)]
            seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
            if not seeds:
                continue
            first, second = ([runs[seed] for seed in seeds] for runs in by_seed)
            outcomes = outcome_table([row.get("outcomes") for row in (*first, *second)])
            if outcomes is None:
                success, other_success = (
                    np.array([row["success"] for row in some]) for some in (first, second)
                )
                count = min(row["played"] for row in (*first, *second))
                difference = unpaired_difference(success, other_success, count)
            else:
                difference = paired_difference(outcomes[: len(seeds)], outcomes[len(seeds) :])
            table.append(
                {
                    "task": task,
                    "learner": learner,
                    "arm": arm,
                    "other": other,
                    "seeds": len(seeds),
                    "by_level": int(outcomes is not None),
                    "ahead": difference.mean,
                    "low": difference.widest.low,
                    "high": difference.widest.high,
                    "levels_low": difference.levels.low,
                    "levels_high": difference.levels.high,
                    "seeds_low": difference.seeds and difference.seeds.low,
                    "seeds_high": difference.seeds and difference.seeds.high,
                }
            )
    return table


def verdict(ends: Sequence[Row], differences: Sequence[Row], other: str) -> str | None:
    """Return a sentence that compares an arm of `difference_rows` with another; None if one is missing."""
    if not (found := rows_where(differences, other=other)):
        return None
    (row,) = found
    climbing = [ARMS[arm] for arm in (row["arm"], other) if rows_where(ends, arm=arm)[0]["climbing"]]
    if climbing:
        verb = "climbs" if len(climbing) == 1 else "climb"
        return (
            f"{ARMS[row['arm']]} and {ARMS[other]}: too short to compare, {' and '.join(climbing)} still "
            f"{verb} at the end; give a larger `--budget` and another `--out`."
        )
    points = f"{100 * abs(row['ahead']):.1f} points " + ("ahead of" if row["ahead"] >= 0 else "behind")
    interval = f"95% interval {100 * row['low']:.1f} to {100 * row['high']:.1f}"
    text = f"{ARMS[row['arm']]} is {points} {ARMS[other]} ({interval})"
    if row["seeds"] == 1:
        text += "; one seed each, and other seeds may differ by more"
    return text + ("." if row["low"] > 0 or row["high"] < 0 else ": undecided.")
