"""How good the critics of puzzle-3x3 became, as a picture and a table: of runs of `train --learn critics`.

python benchmarks/robots_critics.py runs/critics --data data/puzzle-3x3-play-v0-val.npz --out critics.json

While they learned: how V ranks the presses that are left, and how often Q prefers what was done. At the end,
by presses between state and goal: how often V prefers the lights after a right press, and how often the
horizontal move that Q likes best leads to a right button, from states with the hand in the air.
"""

import argparse
import json
import pathlib
from typing import Any

import numpy as np
from record import write_record
from robots_stuck import places_of_buttons, what_is_known

from looped_actor.analysis.compare import evaluations_of
from looped_actor.analysis.drawing import COLOURS, INK, new_axes, save_figure
from looped_actor.analysis.study import names_of
from looped_actor.runs.folder import read_run
from looped_actor.runs.registry import run_of
from looped_actor.runs.robots import CRITICS_FILE, CRITICS_FORMAT
from looped_actor.utils.tensors import fitted, read_weights

CURVES = {
    "subtasks_correlation": "V against presses left, rank correlation",
    "prefers": "Q prefers what was done",
}


def course(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Its evaluations: of critics alone, or of a run that learned everything."""
    read = [(path.stem, json.loads(path.read_text())) for path in evaluations_of(folder)]
    return [{"steps": int(steps), **facts.get("value", facts)} for steps, facts in read]


def known_at_the_end(folder: pathlib.Path, data: Any, actions: Any) -> dict[int, dict[str, float]]:
    """What its value and critics know, by presses."""
    own, path = run_of(read_run(folder), folder).control, folder / CRITICS_FILE
    judges = own.judging(fitted(own.judges_like, read_weights(path, CRITICS_FORMAT), path))
    return what_is_known(*judges, data, np.median(actions, axis=0), places_of_buttons(data))


def picture(courses: dict[str, list], known: dict[str, dict[int, Any]], path: pathlib.Path) -> None:
    """Two curves, and what is known by presses."""
    figure, (panels,) = new_axes(3, width=4.6, height=3.8)
    for (name, rows), colour in zip(courses.items(), COLOURS, strict=False):
        steps = [row["steps"] for row in rows]
        for axes, (fact, label) in zip(panels, CURVES.items(), strict=False):
            axes.plot(steps, [row.get(fact) for row in rows], color=colour, label=name)
            axes.set_ylabel(label)
            axes.set_xlabel("gradient steps")
            axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:,.0f}k")
    for (name, by_presses), colour in zip(known.items(), COLOURS, strict=False):
        share = [row["q_goes_to_a_right_button"] for row in by_presses.values()]
        panels[2].plot(list(by_presses), share, marker="o", color=colour, label=name)
    some = next(iter(known.values()))
    panels[2].plot(
        list(some), [row["any_direction"] for row in some.values()], ":", color=INK, label="any direction"
    )
    panels[2].set_xticks(list(some))
    panels[2].set_ylim(0, 1.03)
    panels[2].set_xlabel("presses between state and goal")
    panels[2].set_ylabel("Q's best move leads to a right button")
    panels[2].legend()
    save_figure(figure, path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("runs", nargs="+", type=pathlib.Path)
    options.add_argument("--data", type=pathlib.Path, required=True)
    options.add_argument("--out", type=pathlib.Path, required=True)
    given = options.parse_args()
    with np.load(given.data) as file:
        data, actions = file["observations"], file["actions"]
    runs = dict(zip(names_of(given.runs), given.runs, strict=True))
    courses = {name: course(folder) for name, folder in runs.items()}
    known = {name: known_at_the_end(folder, data, actions) for name, folder in runs.items()}
    picture(courses, known, given.out)
    ends = {
        name: {fact: rows[-1].get(fact) for fact in ("steps", *CURVES, "by_subtasks")}
        for name, rows in courses.items()
    }
    write_record(str(given.out), {"at_the_end": ends, "by_presses": known})


if __name__ == "__main__":
    main()
