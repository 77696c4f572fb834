"""Draws the learning curve of a run on a puzzle, and copies its small files.

python studies/learning/learning_curve.py runs/micro-boxoban --out results/micro_boxoban

Writes into the folder: curve.png, the run's config.json, metrics.csv, timings.csv and policy, all evaluations
in one table, and a record with the minutes of training and the final evaluation on all test levels, next to
those of the untrained net, of a random and of a greedy player.
"""

import argparse
import csv
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from looped_actor.algorithms import zero_statistics
from looped_actor.evaluation.options import EvaluationOptions
from looped_actor.evaluation.results import summarize
from looped_actor.policy.policy import save_policy
from looped_actor.reproduction.record import write_record
from looped_actor.runs.config import PuzzleConfig
from looped_actor.runs.evaluate import evaluate_policy
from looped_actor.runs.folder import read_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.puzzle import PuzzleRun
from looped_actor.training.sharding import all_devices


def read_evaluations(run: pathlib.Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run during training, with their steps."""
    paths = sorted((run / "evaluations").glob("*.json"))
    return [{**json.loads(path.read_text()), "at": int(path.stem)} for path in paths]


def read_timings(run: pathlib.Path) -> list[dict[str, float]]:
    """Return the rows of timings.csv."""
    with (run / "timings.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def evaluate_untrained(folder: pathlib.Path, config: PuzzleConfig) -> dict[str, Any]:
    """Evaluate the weights that a run began with, without statistics of observations."""
    run = PuzzleRun(config, folder, all_devices(1))
    weights = run.trainer.init(config.seed).weights
    weights = weights._replace(statistics=zero_statistics(run.statistics_shape))
    return summarize(run.player_on(run.bank("held_out").on_device()).play(weights))


def draw(
    config: PuzzleConfig,
    evaluations: list[dict[str, Any]],
    before: dict[str, Any],
    final: dict[str, Any],
    minutes_at: Callable[[float], float],
    path: pathlib.Path,
) -> None:
    """Draw success against minutes, and the final evaluation by the length of solutions."""
    figure, (success, by_length) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    x = [0.0, *(minutes_at(one["at"]) for one in evaluations)]
    y = [before["success"], *(one["success"] for one in evaluations)]
    low = [before["interval_95"][0], *(one["interval_95"][0] for one in evaluations)]
    high = [before["interval_95"][1], *(one["interval_95"][1] for one in evaluations)]
    success.plot(x, y, color="C0", label="looped actor, argmax")
    success.fill_between(x, low, high, color="C0", alpha=0.2, label="95% interval")
    for (name, results), style in zip(final["baselines"].items(), (":", "--"), strict=True):
        success.axhline(results["success"], color="gray", linestyle=style, label=name)
    success.set(
        xlabel="minutes", ylabel="validation levels solved", ylim=(0, 1), title=f"{config.task}, micro"
    )
    success.legend(fontsize=8)
    bins = final["by_optimal_moves"]
    names = [f"{low}-{high}" if low != high else str(low) for low, high in (b["moves"] for b in bins)]
    errors = [
        [b["success"] - b["interval_95"][0] for b in bins],
        [b["interval_95"][1] - b["success"] for b in bins],
    ]
    by_length.bar(names, [b["success"] for b in bins], yerr=errors, color="C0", alpha=0.6)
    by_length.set(xlabel="moves of the optimal solution", ylabel="solved at the end", ylim=(0, 1))
    loops = by_length.twinx()
    loops.plot(names, [b["loops"] for b in bins], "o-", color="C1")
    loops.set_ylabel("loops per decision", color="C1")
    loops.set_ylim(0, config.arm.max_loops + 0.5)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Evaluate, draw, copy the files, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    config, out = read_run(options.run), options.out
    assert isinstance(config, PuzzleConfig)
    out.mkdir(parents=True, exist_ok=True)
    evaluations, timings = read_evaluations(options.run), read_timings(options.run)
    final = evaluate_policy(policy_at(options.run), EvaluationOptions(baselines=True), all_devices(1))
    final["policy"], final["bank"] = options.run.name, pathlib.Path(final["bank"]).name
    before = evaluate_untrained(options.run, config)

    def minutes_at(steps: float) -> float:
        written = next(row["unix_time"] for row in timings if row["steps"] >= steps)
        return (written - timings[0]["process_start"]) / 60

    draw(config, evaluations, before, final, minutes_at, out / "curve.png")
    for name in ("config.json", "metrics.csv", "timings.csv"):
        shutil.copy(options.run / name, out / name)
    save_policy(config, policy_at(options.run, "latest").weights, out / "policy")
    with (out / "evaluations.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("steps", "minutes", "levels", "solved", "success", "low", "high", "loops"))
        for one in evaluations:
            row = (minutes_at(one["at"]), one["levels"], one["solved"], one["success"])
            writer.writerow([one["at"], *row, *one["interval_95"], one["loops"]])
    above = [one for one in evaluations if one["success"] >= 0.8]
    write_record(
        out / "record.json",
        {
            "training": f"looped-actor train {config.task}",
            "minutes": (timings[-1]["unix_time"] - timings[0]["process_start"]) / 60,
            "steps": int(timings[-1]["steps"]),
            "steps_planned": config.total_steps,
            "minutes_to_80_percent": minutes_at(above[0]["at"]) if above else None,
            "before": {
                name: before[name] for name in ("levels", "solved", "success", "interval_95", "loops")
            },
            "final": final,
        },
    )


if __name__ == "__main__":
    main()
