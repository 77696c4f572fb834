"""Quality of the critics of puzzle-3x3 during training and at the end: of runs of `train --arm critics`.

python studies/robots/robots_critics.py runs/critics --data data/puzzle-3x3-play-v0-val.npz --out critics.json

During training: how V ranks the number of presses left, and how often Q ranks the dataset action higher. At
the end, by presses between state and goal: how often V prefers the lights after a correct press, and how
often the horizontal move with the highest Q leads to a correct button, from states with the effector in the
air.
"""

import argparse
import json
import pathlib
from typing import Any

import numpy as np
from robots_stuck import locate_buttons, measure_knowledge

from looped_actor.analysis.compare import evaluation_files
from looped_actor.analysis.drawing import COLOURS, INK, new_axes, save_figure
from looped_actor.analysis.study import name_folders
from looped_actor.reproduction.record import write_record
from looped_actor.runs.config import RobotConfig
from looped_actor.runs.folder import read_run
from looped_actor.runs.robots import CRITICS_FILE, CRITICS_FORMAT, RobotRun
from looped_actor.utils.tensors import fit_tensors, read_weights

CURVES = {
    "subtasks_correlation": "V against presses left, rank correlation",
    "prefers": "Q ranks the dataset action higher",
}


def read_course(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the evaluations of the critics: of critics alone, or of a run that learned everything."""
    evaluations = [(path.stem, json.loads(path.read_text())) for path in evaluation_files(folder)]
    return [{"steps": int(steps), **results.get("value", results)} for steps, results in evaluations]


def measure_at_the_end(folder: pathlib.Path, data: Any, actions: Any) -> dict[int, dict[str, float]]:
    """Return the knowledge of the final value and critics, by presses."""
    config, path = read_run(folder), folder / CRITICS_FILE
    assert isinstance(config, RobotConfig)
    run = RobotRun(config, folder)
    weights = fit_tensors(run.critics_like, read_weights(path, CRITICS_FORMAT), path)
    value, critics = run.critic_functions(weights)
    return measure_knowledge(value, critics, data, np.median(actions, axis=0), locate_buttons(data))


def draw(courses: dict[str, list], known: dict[str, dict[int, Any]], path: pathlib.Path) -> None:
    """Draw two curves, and the knowledge by presses."""
    figure, (panels,) = new_axes(3, width=4.6, height=3.8)
    for (name, rows), colour in zip(courses.items(), COLOURS, strict=False):
        steps = [row["steps"] for row in rows]
        for axes, (column, label) in zip(panels, CURVES.items(), strict=False):
            axes.plot(steps, [row.get(column) for row in rows], color=colour, label=name)
            axes.set_ylabel(label)
            axes.set_xlabel("gradient steps")
            axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:,.0f}k")
    for (name, by_presses), colour in zip(known.items(), COLOURS, strict=False):
        share = [row["q_goes_to_a_right_button"] for row in by_presses.values()]
        panels[2].plot(list(by_presses), share, marker="o", color=colour, label=name)
    some = next(iter(known.values()))
    panels[2].plot(
        list(some), [row["any_direction"] for row in some.values()], ":", color=INK, label="all directions"
    )
    panels[2].set_xticks(list(some))
    panels[2].set_ylim(0, 1.03)
    panels[2].set_xlabel("presses between state and goal")
    panels[2].set_ylabel("move with the highest Q leads to a correct button")
    panels[2].legend()
    save_figure(figure, path)


def main() -> None:
    """Measure, draw, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    with np.load(options.data) as file:
        data, actions = file["observations"], file["actions"]
    runs = dict(zip(name_folders(options.runs), options.runs, strict=True))
    courses = {name: read_course(folder) for name, folder in runs.items()}
    known = {name: measure_at_the_end(folder, data, actions) for name, folder in runs.items()}
    draw(courses, known, options.out)
    ends = {
        name: {column: rows[-1].get(column) for column in ("steps", *CURVES, "by_subtasks")}
        for name, rows in courses.items()
    }
    write_record(options.out, {"at_the_end": ends, "by_presses": known})


if __name__ == "__main__":
    main()
