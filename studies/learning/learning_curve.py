"""Draw how a run learned, and keep what it leaves behind.

Example: python benchmarks/learning_curve.py runs/micro-boxoban --out results/micro_boxoban

Writes into the folder: curve.png, the run's config.json, metrics.csv, timings.csv and policy, all evaluations
in one table, and a record with the command, the commit, the date, the minutes that it took, and the final
evaluation on all held-out levels beside that of the untrained net, of chance and of a greedy player.
"""

import argparse
import csv
import json
import pathlib
import shutil

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from record import write_record

from looped_actor.algorithms import no_statistics
from looped_actor.evaluation.facts import summary
from looped_actor.evaluation.requests import EvaluationRequest
from looped_actor.policy.policy import save_policy
from looped_actor.runs.evaluate import evaluate_policy
from looped_actor.runs.folder import read_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices


def evaluations_of(run):
    paths = sorted((run / "evaluations").glob("*.json"))
    return [{**json.loads(path.read_text()), "at": int(path.stem)} for path in paths]


def timings_of(run):
    with (run / "timings.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def untrained(run, config):
    """The argmax policy of the weights that the run began with, without statistics of observations."""
    own = run_of(config, run, all_devices(1)).puzzle
    weights = own.trainer.begin(config.seed).weights
    weights = weights._replace(statistics=no_statistics(config.shape.features))
    return summary(own.player(own.bank("held_out")).play(weights))


def draw(config, evaluations, before, final, minutes_at, path):
    figure, (success, by_length) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    x = [0.0, *(minutes_at(one["at"]) for one in evaluations)]
    y = [before["success"], *(one["success"] for one in evaluations)]
    low = [before["interval_95"][0], *(one["interval_95"][0] for one in evaluations)]
    high = [before["interval_95"][1], *(one["interval_95"][1] for one in evaluations)]
    success.plot(x, y, color="C0", label="looped actor, argmax")
    success.fill_between(x, low, high, color="C0", alpha=0.2, label="95% interval")
    for (name, facts), style in zip(final["baselines"].items(), (":", "--"), strict=True):
        success.axhline(facts["success"], color="gray", linestyle=style, label=f"played {name}")
    success.set(xlabel="minutes", ylabel="held-out levels solved", ylim=(0, 1), title=f"{config.task}, micro")
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
    loops.set_ylim(0, config.chosen_arm.max_loops + 0.5)
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    config, out = read_run(options.run), options.out
    out.mkdir(parents=True, exist_ok=True)
    evaluations, timings = evaluations_of(options.run), timings_of(options.run)
    final = evaluate_policy(policy_at(options.run), EvaluationRequest(baselines=True), all_devices(1))
    final["policy"], final["bank"] = options.run.name, pathlib.Path(final["bank"]).name
    before = untrained(options.run, config)

    def minutes_at(steps):
        written = next(row["unix_time"] for row in timings if row["steps"] >= steps)
        return (written - timings[0]["process_start"]) / 60

    draw(config, evaluations, before, final, minutes_at, out / "curve.png")
    for name in ("config.json", "metrics.csv", "timings.csv"):
        shutil.copy(options.run / name, out / name)
    save_policy(config, policy_at(options.run, "latest").weights, out / "policy")
    with (out / "evaluations.csv").open("w", newline="") as file:
        columns = ("steps", "minutes", "levels", "solved", "success", "low", "high", "loops")
        writer = csv.writer(file)
        writer.writerow(columns)
        for one in evaluations:
            row = (minutes_at(one["at"]), one["levels"], one["solved"], one["success"])
            writer.writerow([one["at"], *row, *one["interval_95"], one["loops"]])
    above = [one for one in evaluations if one["success"] >= 0.8]
    facts = {
        "training": "looped-actor train " + config.task,
        "minutes": (timings[-1]["unix_time"] - timings[0]["process_start"]) / 60,
        "steps": int(timings[-1]["steps"]),
        "steps_planned": config.total_steps,
        "minutes_to_80_percent": minutes_at(above[0]["at"]) if above else None,
        "before": {name: before[name] for name in ("levels", "solved", "success", "interval_95", "loops")},
        "final": final,
    }
    write_record(str(out / "record.json"), facts)


if __name__ == "__main__":
    main()
