"""Evaluations of runs during training, side by side, from what they have written down."""

import pathlib
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from looped_actor.analysis.drawing import ABOUT, ARMS, COLOURS, TITLES, Drawn, FigureKind, label_of, new_axes
from looped_actor.analysis.study import about_run, finish, names_of, repeats, shares
from looped_actor.analysis.tables import Row, distinct, measure_of, of
from looped_actor.runs.folder import TEST_FILE, read_run
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import FileError, read_json, reading


def compare_runs(folders: Sequence[pathlib.Path], out: pathlib.Path) -> str:
    """Evaluations of some runs during training, side by side. Nothing is played."""
    return finish(out, "compare", evaluation_rows(folders), COMPARE)


def evaluation_rows(folders: Sequence[pathlib.Path]) -> list[dict[str, Any]]:
    """A row for each evaluation of some runs during training, and for the test after it, if there is one.

    The last row of a run has the outcome of every level, so that runs can be compared level by level.
    """
    rows = []
    for name, folder in zip(names_of(folders), folders, strict=True):
        config = read_run(folder)
        if getattr(config, "learn", "all") == "critics":
            raise UserError(f"{folder} holds critics and no policy: leave it out of the comparison")
        paths, test = evaluations_of(folder), folder / TEST_FILE
        about = {**about_run(name, config), "seed": config.seed}
        facts: Any = {}
        for path in [*paths, *[test] * test.is_file()]:
            of_test = path == test
            about["steps"] = int((paths[-1] if of_test else path).stem)
            about["split"] = "test" if of_test else "valid"
            with reading("evaluation", path, lambda problem, path=path: FileError(f"{path}: {problem}")):
                facts = read_json(path)
                found = {"loops": facts["loops"], "optimal_actions": facts.get("optimal_actions")}
                found["returns"] = facts.get("returns")
                found |= repeats(facts)
                found["train_success"] = facts["train"]["success"] if "train" in facts else None
                found["outcomes"] = None
                rows.append({**about, **shares(facts), **found})
        rows[-1]["outcomes"] = facts.get("outcomes")
    return rows


def while_training(rows: Sequence[Row]) -> list[Row]:
    """Without tests."""
    return [row for row in rows if row.get("split") != "test"]


def evaluations_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of a run's evaluations, in order."""
    paths = sorted((folder / "evaluations").glob("*.json"))
    if not paths:
        raise UserError(f"{folder}: nothing was evaluated yet")
    return paths


def _draw(rows: Sequence[Row]) -> Drawn:
    """Success, or the return, against steps, and the last of each run; runs of one kind share a colour."""
    measure = measure_of(rows)
    told = measure == "success"
    runs, kinds = distinct(rows, "run"), distinct(rows, "task", "arm", "learner")
    kinds = sorted(kinds, key=lambda kind: [*ARMS, kind[1]].index(kind[1]))  # colours as in other figures
    figure, axes = new_axes(2, width=5.0, height=max(3.6, 0.3 * len(runs)))
    curves, ends = axes[0]
    sentences = []
    for colour, kind in zip(cycle(COLOURS), kinds, strict=False):
        own = of(rows, task=kind[0], arm=kind[1], learner=kind[2])
        label = (
            f"{TITLES[kind[0]]}: {label_of(own[0])}" if len(distinct(rows, "task")) > 1 else label_of(own[0])
        )
        lasts = []
        for number, run in enumerate(distinct(own, "run")):
            course = sorted(of(own, run=run), key=lambda row: row["steps"])
            x, y = ([row[name] for row in while_training(course)] for name in ("steps", measure))
            curves.plot(x, y, color=colour, marker="o", markersize=3, label=None if number else label)
            lasts.append(course[-1])
        for last in lasts:
            place, value = -runs.index(last["run"]), last[measure]
            low, high = (last["low"], last["high"]) if told else (value, value)
            error = [[max(value - low, 0)], [max(high - value, 0)]]
            ends.errorbar(value, place, xerr=error if told else None, color=colour, marker="o", capsize=3)
            style = {"textcoords": "offset points", "xytext": (6, -3), "fontsize": 8}
            ends.annotate(_WRITTEN[measure].format(value), (high, place), **style)
        sentences.append(f"{label} {_said(lasts, measure)}")
    curves.set(xlabel="steps of training", ylabel=_LABELS[measure])
    curves.set_xlim(0, None)
    curves.locator_params(axis="x", nbins=5)
    curves.xaxis.set_major_formatter("{x:,.0f}")
    if told:
        curves.set_ylim(0, 1)
        ends.set_xlim(0, 1.08)
    curves.legend(frameon=False, fontsize=8)
    ends.set_yticks([-place for place in range(len(runs))], runs)
    interval = " (95% interval)" if told else ""
    ends.set(xlabel=f"test, or last evaluation{interval}", ylim=(-len(runs) + 0.5, 0.5))
    ends.grid(axis="y", visible=False)
    figure.suptitle(" and ".join(TITLES[task] for task in distinct(rows, "task")))
    return Drawn(figure, f"{measure.capitalize()} at the end: {'; '.join(sentences)}.")


_LABELS = {"success": "success on held-out levels or tasks", "returns": "mean return"}
_WRITTEN = {"success": "{:.1%}", "returns": "{:.3g}"}


def _said(lasts: Sequence[Row], measure: str) -> str:
    """The last evaluations of runs of one kind, in words."""
    values, written = [row[measure] for row in lasts], _WRITTEN[measure].format
    words = written(np.mean(values))
    if len(lasts) > 1:
        words += f" (from {written(min(values))} to {written(max(values))} over {len(lasts)} runs)"
    optimal = [row["optimal_actions"] for row in lasts if row["optimal_actions"] is not None]
    return words + (f", {np.mean(optimal):.1%} of actions optimal" if optimal else "")


COMPARE = FigureKind((*ABOUT, "steps", "success", "low", "high", "loops", "optimal_actions"), _draw)
