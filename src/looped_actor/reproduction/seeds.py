"""Runs that differ in their seed only, as one: mean, deviation, and how sure they are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from looped_actor.analysis.drawing import ARMS
from looped_actor.analysis.tables import Row, distinct, of
from looped_actor.evaluation.intervals import Interval, wilson


class OverSeeds(NamedTuple):
    """A share, of runs with different seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None where there is one run only."""
    seeds: Interval | None
    """95%, of the mean over all seeds there might have been: Student's t; None where there is one run."""
    levels: Interval
    """95%, of what these very runs would solve of all levels there might have been: Wilson's, pooled."""

    def columns(self, played: str) -> dict[str, float | None]:
        """Columns of a table in which levels, or episodes, were played."""
        return {
            "success": self.mean,
            "deviation": self.deviation,
            "seeds_low": self.seeds and self.seeds.low,
            "seeds_high": self.seeds and self.seeds.high,
            f"{played}_low": self.levels.low,
            f"{played}_high": self.levels.high,
        }


def over_seeds(solved: Sequence[int], played: Sequence[int]) -> OverSeeds:
    """Success of some runs that were evaluated alike."""
    shares = np.array(solved) / np.array(played)
    mean, levels = float(shares.mean()), wilson(int(sum(solved)), int(sum(played)))
    if len(shares) < 2:
        return OverSeeds(mean, None, None, levels)
    deviation = float(shares.std(ddof=1))
    return OverSeeds(mean, deviation, t_interval(shares), levels)


def t_interval(values: np.ndarray) -> Interval:
    """Student's 95% interval of a mean, within 0 and 1."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return Interval(max(0.0, float(values.mean() - half)), min(1.0, float(values.mean() + half)))


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
    """From evaluations during training to a row for each arm, with what the paper reports."""
    table = []
    lasts = last_evaluations(rows)
    for task, learner in distinct(lasts, "task", "learner"):
        for arm in [arm for arm in ARMS if of(lasts, task=task, learner=learner, arm=arm)]:
            own = of(lasts, task=task, learner=learner, arm=arm)
            success = over_seeds([row["solved"] for row in own], [row["played"] for row in own])
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


def verdict(ends: Sequence[Row], arm: str, other: str) -> str | None:
    """Whether an arm of `ends_table` is ahead of another one, in a sentence; None where one is missing."""
    first, second = of(ends, arm=arm), of(ends, arm=other)
    if not first or not second:
        return None
    a, b = first[0], second[0]
    ahead, behind = (a, b) if a["success"] >= b["success"] else (b, a)
    said = f"{ARMS[arm]} {a['success']:.1%}, {ARMS[other]} {b['success']:.1%}: {ARMS[ahead['arm']]} is ahead"
    if ahead["success"] == behind["success"]:
        return f"{ARMS[arm]} and {ARMS[other]} are level at {a['success']:.1%}."
    apart = {
        "levels": ahead["levels_low"] > behind["levels_high"],
        "seeds": ahead["seeds_low"] is not None
        and behind["seeds_high"] is not None
        and ahead["seeds_low"] > behind["seeds_high"],
    }
    if all(apart.values()):
        return f"{said}; its intervals do not overlap, neither over levels nor over seeds."
    if apart["levels"]:
        return f"{said}; the intervals over levels do not overlap, those over {a['runs']} seeds do."
    if apart["seeds"]:
        return f"{said}; the intervals over seeds do not overlap, those over levels do."
    return f"{said}, but the intervals overlap."
