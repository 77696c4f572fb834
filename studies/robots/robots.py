"""Success on graded goals as a figure and a table: of evaluations by `looped-actor eval RUN --graded --out
FILE`.

python studies/robots/robots.py results/robots/actors --out results/robots/success.json
python studies/robots/robots.py results/robots/arms --out results/robots/arms.json

The figure is of all files in the folder.
"""

import argparse
import json
import pathlib
from typing import Any

import numpy as np

from looped_actor.analysis.drawing import new_axes, save_figure
from looped_actor.reproduction.record import write_record
from looped_actor.robots.graded import GRADED

COLUMNS = ("episodes", "solved", "interval_95", "still", "right", "wrong")


def draw(evaluations: dict[str, dict[str, Any]], goals: tuple[str, ...], path: pathlib.Path) -> None:
    """Draw the shares of solved episodes, with intervals, and of still steps."""
    figure, ((solved, still),) = new_axes(2, width=5, height=4)
    for number, (name, results) in enumerate(evaluations.items()):
        rows = list(results["by_task"].values())
        x = np.arange(1, len(rows) + 1) + 0.08 * (number - len(evaluations) / 2)
        share = np.array([row["success"] for row in rows])
        low, high = np.array([row["interval_95"] for row in rows]).T
        solved.errorbar(x, share, [share - low, high - share], marker="o", capsize=2, label=name)
        still.plot(x, [row["still"] for row in rows], marker="o", label=name)
    for axes, what in ((solved, "solved"), (still, "still steps")):
        axes.set_xticks(np.arange(1, len(goals) + 1), goals, rotation=20)
        axes.set_xlabel("goal, by distance")
        axes.set_ylabel(what)
        axes.set_ylim(-0.03, 1.03)
    still.legend()
    save_figure(figure, path)


def main() -> None:
    """Draw the figure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.json"))
    evaluations = {path.stem: json.loads(path.read_text()) for path in files}
    (env_name,) = {results["task"] for results in evaluations.values()}
    goals = GRADED[env_name]
    graded = {name: results for name, results in evaluations.items() if goals[0] in results["by_task"]}
    draw(graded, goals, options.out.with_suffix(".png"))
    table = {
        name: {task: {column: row[column] for column in COLUMNS} for task, row in results["by_task"].items()}
        for name, results in evaluations.items()
    }
    write_record(options.out, {"by_task": table})


if __name__ == "__main__":
    main()
