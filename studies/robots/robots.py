"""Success by distance of actors that learned from the same critics, as a picture and a table.

python benchmarks/robots.py results/robots/actors --out results/robots/success.json
python benchmarks/robots.py results/robots/arms --out results/robots/arms.json

Reads what `looped-actor eval RUN --graded --out FILE` has written: the figure is of all files in the folder.
"""

import argparse
import json
import pathlib
from typing import Any

import numpy as np
from record import write_record

from looped_actor.analysis.drawing import new_axes, save_figure
from looped_actor.robots.graded import GRADED

FACTS = ("episodes", "solved", "interval_95", "still", "right", "wrong")


def picture(evaluations: dict[str, dict[str, Any]], goals: tuple[str, ...], path: pathlib.Path) -> None:
    """Shares of episodes that were solved, with intervals, and of steps without motion."""
    figure, ((solved, still),) = new_axes(2, width=5, height=4)
    for number, (name, facts) in enumerate(evaluations.items()):
        rows = list(facts["by_task"].values())
        x = np.arange(1, len(rows) + 1) + 0.08 * (number - len(evaluations) / 2)
        share = np.array([row["success"] for row in rows])
        low, high = np.array([row["interval_95"] for row in rows]).T
        solved.errorbar(x, share, [share - low, high - share], marker="o", capsize=2, label=name)
        still.plot(x, [row["still"] for row in rows], marker="o", label=name)
    for axes, what in ((solved, "solved"), (still, "steps without motion")):
        axes.set_xticks(np.arange(1, len(goals) + 1), goals, rotation=20)
        axes.set_xlabel("goal, by distance")
        axes.set_ylabel(what)
        axes.set_ylim(-0.03, 1.03)
    still.legend()
    save_figure(figure, path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("--out", type=pathlib.Path, required=True)
    given = options.parse_args()
    read = {path.stem: json.loads(path.read_text()) for path in sorted(given.folder.glob("*.json"))}
    (world,) = {facts["task"] for facts in read.values()}
    graded = {name: facts for name, facts in read.items() if GRADED[world][0] in facts["by_task"]}
    picture(graded, GRADED[world], given.out.with_suffix(".png"))
    table = {
        name: {task: {fact: row[fact] for fact in FACTS} for task, row in facts["by_task"].items()}
        for name, facts in read.items()
    }
    write_record(str(given.out), {"by_task": table})


if __name__ == "__main__":
    main()
