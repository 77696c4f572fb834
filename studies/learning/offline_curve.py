"""Draws the learning curves of runs on robot data, and copies their small files.

python studies/learning/offline_curve.py runs/looped runs/mlp --episodes 20 --out results/micro_cube_double

Writes into the folder: curves.png, for each run its config.json, metrics.csv, timings.csv, evaluations and
policy, and a record with the minutes of each, and for the first run the final evaluation next to those of the
untrained net and of random actions.
"""

import argparse
import csv
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from learning_curve import read_evaluations

from looped_actor.reproduction.record import write_record
from looped_actor.robots.evaluation import summarize_robots
from looped_actor.runs.folder import read_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.registry import run_of
from looped_actor.runs.robots import robot_player
from looped_actor.training.sharding import all_devices


def read_table(path: pathlib.Path) -> list[dict[str, float]]:
    """Return the rows of a table of numbers."""
    with path.open() as file:
        return [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]


def count_minutes(run: pathlib.Path) -> float:
    """Return the minutes of training and evaluation, from the start of each process to its last row."""
    ends = {row["process_start"]: row["unix_time"] for row in read_table(run / "timings.csv")}
    return sum(end - start for start, end in ends.items()) / 60


def evaluate_finally(folder: pathlib.Path, episodes: int, tasks: tuple[int, ...]) -> dict[str, Any]:
    """Evaluate the trained net, the untrained net, and random actions on the same episodes."""
    config = read_run(folder)
    run = run_of(config, folder, all_devices(1))
    player, most_loops = robot_player(run.spec, episodes=episodes, tasks=tasks), run.spec.max_loops
    try:
        state = run.trainer.init(config.seed)
        return {
            "trained": summarize_robots(player.play(policy_at(folder, "latest").weights), most_loops),
            "untrained": summarize_robots(player.play(state.weights), most_loops),
            "random": summarize_robots(player.play_at_random(), 1),
        }
    finally:
        player.close()


def draw(runs: Mapping[str, pathlib.Path], final: dict[str, Any], path: pathlib.Path) -> None:
    """Draw errors of actions, critics, and success by task."""
    figure, (error, critics, success) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for colour, (name, run) in zip(("C3", "C0", "C2"), runs.items(), strict=False):
        rows, evaluations = read_table(run / "metrics.csv"), read_evaluations(run)
        steps = [row["steps"] for row in rows]
        error.plot(steps, [row["action_error"] for row in rows], color=colour, label=f"{name}, training")
        error.plot(
            [one["at"] for one in evaluations],
            [one["held_out_action_error"] for one in evaluations],
            "o",
            color=colour,
            markersize=4,
            label=f"{name}, validation",
        )
        critics.plot(steps, [row["q"] for row in rows], color=colour, label=f"{name}: Q of the data")
        critics.plot(
            steps, [row["q_of_policy"] for row in rows], "--", color=colour, label=f"{name}: Q of the policy"
        )
    error.set(xlabel="gradient steps", ylabel="mean squared action error", yscale="log", title="behaviour")
    critics.set(xlabel="gradient steps", ylabel="lower critic", title="critics")
    bars = {"trained": "C3", "untrained": "C7", "random": "C8"}
    tasks = list(final["trained"]["by_task"])
    for i, (who, colour) in enumerate(bars.items()):
        results = [final[who]["by_task"][task] for task in tasks]
        shares = [one["success"] for one in results]
        below = [s - one["interval_95"][0] for s, one in zip(shares, results, strict=True)]
        above = [one["interval_95"][1] - s for s, one in zip(shares, results, strict=True)]
        places = [k + 0.27 * (i - 1) for k in range(len(tasks))]
        success.bar(places, shares, 0.25, color=colour, label=f"{next(iter(runs))}, {who}" if i < 2 else who)
        success.errorbar(places, shares, [below, above], fmt="none", ecolor="black", capsize=2, linewidth=0.8)
    success.set(xticks=range(len(tasks)), xticklabels=[f"task {t}" for t in tasks], ylim=(0, 1))
    success.set(ylabel="episodes solved, 95% interval", title="success")
    for axes in (error, critics, success):
        axes.legend(fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Evaluate, draw, copy the files, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="the first one is evaluated")
    parser.add_argument("--episodes", type=int, default=20, help="of each task")
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = {read_run(run).trained: run for run in options.runs}
    final = evaluate_finally(options.runs[0], options.episodes, tuple(options.tasks))
    draw(runs, final, options.out / "curves.png")
    for arm, run in runs.items():
        kept = options.out / arm
        kept.mkdir(exist_ok=True)
        for name in ("config.json", "metrics.csv", "timings.csv"):
            shutil.copy(run / name, kept / name)
        shutil.copytree(run / "policy", kept / "policy", dirs_exist_ok=True)
        (kept / "evaluations.json").write_text(json.dumps(read_evaluations(run), indent=1) + "\n")
    last_rows = {arm: read_table(run / "metrics.csv")[-1] for arm, run in runs.items()}
    errors = {arm: read_evaluations(run)[-1]["held_out_action_error"] for arm, run in runs.items()}
    write_record(
        options.out / "record.json",
        {
            "minutes": {arm: round(count_minutes(run), 1) for arm, run in runs.items()},
            "gradient_steps": {arm: row["steps"] for arm, row in last_rows.items()},
            "last_row": last_rows,
            "held_out_action_error": errors,
            "final": final,
        },
    )


if __name__ == "__main__":
    main()
