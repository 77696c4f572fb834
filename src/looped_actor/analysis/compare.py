"""Comparison of training runs, from the evaluations in their folders."""

import pathlib
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from looped_actor.analysis.drawing import (
    ARMS,
    COLOURS,
    RUN_COLUMNS,
    TITLES,
    CaptionedFigure,
    FigureKind,
    Measure,
    choose_measure,
    label_of,
    new_axes,
)
from looped_actor.analysis.study import (
    name_folders,
    repeat_columns,
    run_columns,
    success_columns,
    write_result,
)
from looped_actor.analysis.tables import Row, distinct, rows_where
from looped_actor.policy.policy import TEST_FILE
from looped_actor.runs.config import CONFIG_FILE, read_config
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import FileError, read_json, reading


def compare_runs(folders: Sequence[pathlib.Path], out: pathlib.Path) -> str:
    """Tabulate and draw the evaluations of some runs. Nothing is played."""
    return write_result(COMPARE, out, evaluation_rows(folders))


def evaluation_rows(folders: Sequence[pathlib.Path]) -> list[dict[str, Any]]:
    """Return a row for each evaluation of some runs during training, and for their tests.

    The last row of each run has the outcome of every level, to compare runs level by level.
    """
    rows = []
    for name, folder in zip(name_folders(folders), folders, strict=True):
        config = read_config(folder / CONFIG_FILE)
        if config.trained == "critics":
            raise UserError(f"{folder} holds critics and no policy: leave it out of the comparison")
        files = evaluation_files(folder)
        played = [(path, int(path.stem), "valid") for path in files]
        if (folder / TEST_FILE).is_file():
            played.append((folder / TEST_FILE, int(files[-1].stem), "test"))
        results: dict[str, Any] = {}
        for path, steps, split in played:
            with reading("evaluation", path, lambda problem, path=path: FileError(f"{path}: {problem}")):
                results = read_json(path)
                rows.append(
                    {
                        **run_columns(name, config),
                        "seed": config.seed,
                        "steps": steps,
                        "split": split,
                        **success_columns(results),
                        "loops": results["loops"],
                        "optimal_actions": results.get("optimal_actions"),
                        "returns": results.get("returns"),
                        **repeat_columns(results),
                        "train_success": results["train"]["success"] if "train" in results else None,
                        "outcomes": None,
                    }
                )
        rows[-1]["outcomes"] = results.get("outcomes")
    return rows


def evaluation_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of the evaluations of a run, in the order of training steps."""
    paths = sorted((folder / "evaluations").glob("*.json"))
    if not paths:
        raise UserError(f"{folder}: nothing was evaluated yet")
    return paths


def during_training(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of evaluations during training, without tests."""
    return [row for row in rows if row.get("split") != "test"]


def _draw_comparison(rows: Sequence[Row]) -> CaptionedFigure:
    """Draw success, or the return, against steps, and the last one of each run. Colours tell kinds."""
    measure = choose_measure(rows)
    runs, kinds = distinct(rows, "run"), distinct(rows, "task", "arm", "learner")
    # In the order of the arms, which have the same colours in all figures.
    kinds = sorted(kinds, key=lambda kind: [*ARMS, kind[1]].index(kind[1]))
    figure, axes = new_axes(2, width=5.0, height=max(3.6, 0.3 * len(runs)))
    curves, ends = axes[0]
    sentences = []
    for colour, (task, arm, learner) in zip(cycle(COLOURS), kinds, strict=False):
        of_kind, last_rows = rows_where(rows, task=task, arm=arm, learner=learner), []
        label = label_of(of_kind[0])
        if len(distinct(rows, "task")) > 1:
            label = f"{TITLES[task]}: {label}"
        for number, run in enumerate(distinct(of_kind, "run")):
            own = sorted(rows_where(of_kind, run=run), key=lambda row: row["steps"])
            x, y = ([row[name] for row in during_training(own)] for name in ("steps", measure.column))
            curves.plot(x, y, color=colour, marker="o", markersize=3, label=None if number else label)
            last, place = own[-1], -runs.index(run)
            (value,), error = measure.values([last])
            ends.errorbar(value, place, xerr=error, color=colour, marker="o", capsize=3)
            right = (last["high"] if measure.has_interval else value, place)
            style = {"textcoords": "offset points", "xytext": (6, -3), "fontsize": 8}
            ends.annotate(measure.format(value), right, **style)
            last_rows.append(last)
        sentences.append(f"{label} {_summarize_ends(last_rows, measure)}")
    y_label = {"success": "success on validation levels or tasks", "returns": "mean return"}[measure.column]
    curves.set(xlabel="training steps", ylabel=y_label)
    curves.set_xlim(0, None)
    curves.locator_params(axis="x", nbins=5)
    curves.xaxis.set_major_formatter("{x:,.0f}")
    if measure.has_interval:
        curves.set_ylim(0, 1)
        ends.set_xlim(0, 1.08)
    curves.legend(frameon=False, fontsize=8)
    ends.set_yticks([-place for place in range(len(runs))], runs)
    interval = " (95% interval)" if measure.has_interval else ""
    ends.set(xlabel=f"test, or last evaluation{interval}", ylim=(-len(runs) + 0.5, 0.5))
    ends.grid(axis="y", visible=False)
    figure.suptitle(" and ".join(TITLES[task] for task in distinct(rows, "task")))
    return CaptionedFigure(figure, f"{measure.column.capitalize()} at the end: {'; '.join(sentences)}.")


def _summarize_ends(rows: Sequence[Row], measure: Measure) -> str:
    """Return the mean of the last results of runs of one kind, in words."""
    values = [row[measure.column] for row in rows]
    words = measure.format(float(np.mean(values)))
    if len(rows) > 1:
        low, high = measure.format(min(values)), measure.format(max(values))
        words += f" (from {low} to {high} over {len(rows)} runs)"
    optimal = [row["optimal_actions"] for row in rows if row["optimal_actions"] is not None]
    return words + (f", {np.mean(optimal):.1%} of actions optimal" if optimal else "")


COMPARE = FigureKind(
    "compare", (*RUN_COLUMNS, "steps", "success", "low", "high", "loops", "optimal_actions"), _draw_comparison
)
