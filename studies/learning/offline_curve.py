"""Draw how runs of offline learning went, side by side, and keep what they leave behind.

Example: python benchmarks/offline_curve.py runs/looped runs/mlp --episodes 20 --out results/micro_cube_double

Writes into the folder: curves.png, for each run its config.json, metrics.csv, timings.csv, evaluations and
policy, and a record with the command, the commit, the date, the minutes that each took, and for the first run
the final evaluation beside those of the net it began with and of actions drawn at random.
"""

import argparse
import csv
import json
import pathlib
import shutil

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from learning_curve import evaluations_of
from record import write_record

from looped_actor.robots.evaluation import world_summary
from looped_actor.runs.folder import read_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices


def table(path):
    with path.open() as file:
        return [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]


def minutes_of(run):
    """Of training and evaluation, from the start of each process to its last row."""
    ends = {}
    for row in table(run / "timings.csv"):
        ends[row["process_start"]] = row["unix_time"]
    return sum(end - start for start, end in ends.items()) / 60


def final_evaluation(run, episodes, tasks):
    """After training, before it, and at random: the same episodes."""
    config, mesh = read_run(run), all_devices(1)
    own = run_of(config, run, mesh).control
    player = own.player(episodes=episodes, tasks=tasks)
    most = config.chosen_arm.max_loops
    try:
        begun = own.trainer.begin(config.seed)
        return {
            "trained": world_summary(player.play(policy_at(run, "latest").weights), most),
            "untrained": world_summary(player.play(begun.weights), most),
            "random": world_summary(player.play_at_random(), 1),
        }
    finally:
        player.close()


def draw(runs, final, path):
    figure, (error, judges, success) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for colour, (name, run) in zip(("C3", "C0", "C2"), runs.items(), strict=False):
        rows, evaluations = table(run / "metrics.csv"), evaluations_of(run)
        steps = [row["steps"] for row in rows]
        error.plot(steps, [row["action_error"] for row in rows], color=colour, label=f"{name}, training")
        error.plot(
            [one["at"] for one in evaluations],
            [one["held_out_action_error"] for one in evaluations],
            "o",
            color=colour,
            markersize=4,
            label=f"{name}, held out",
        )
        judges.plot(steps, [row["q"] for row in rows], color=colour, label=f"{name}: Q of the data")
        judges.plot(
            steps, [row["q_of_policy"] for row in rows], "--", color=colour, label=f"{name}: Q of the policy"
        )
    error.set(xlabel="gradient steps", ylabel="mean squared action error", yscale="log", title="behaviour")
    judges.set(xlabel="gradient steps", ylabel="lower critic", title="critics")
    bars = {"trained": "C3", "untrained": "C7", "random": "C8"}
    tasks = list(final["trained"]["by_task"])
    for i, (who, colour) in enumerate(bars.items()):
        facts = [final[who]["by_task"][task] for task in tasks]
        shares = [one["success"] for one in facts]
        below = [s - one["interval_95"][0] for s, one in zip(shares, facts, strict=True)]
        above = [one["interval_95"][1] - s for s, one in zip(shares, facts, strict=True)]
        places = [k + 0.27 * (i - 1) for k in range(len(tasks))]
        success.bar(places, shares, 0.25, color=colour, label=f"{next(iter(runs))}, {who}" if i < 2 else who)
        success.errorbar(places, shares, [below, above], fmt="none", ecolor="black", capsize=2, linewidth=0.8)
    success.set(xticks=range(len(tasks)), xticklabels=[f"task {t}" for t in tasks], ylim=(0, 1))
    success.set(ylabel="episodes solved, 95% interval", title="success")
    for axes in (error, judges, success):
        axes.legend(fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="the first is evaluated to the end")
    parser.add_argument("--episodes", type=int, default=20, help="of each task")
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = {read_run(run).arm: run for run in options.runs}
    final = final_evaluation(options.runs[0], options.episodes, tuple(options.tasks))
    draw(runs, final, options.out / "curves.png")
    for arm, run in runs.items():
        kept = options.out / arm
        kept.mkdir(exist_ok=True)
        for name in ("config.json", "metrics.csv", "timings.csv"):
            shutil.copy(run / name, kept / name)
        shutil.copytree(run / "policy", kept / "policy", dirs_exist_ok=True)
        (kept / "evaluations.json").write_text(json.dumps(evaluations_of(run), indent=1) + "\n")
    facts = {
        "minutes": {arm: round(minutes_of(run), 1) for arm, run in runs.items()},
        "gradient_steps": {arm: table(run / "metrics.csv")[-1]["steps"] for arm, run in runs.items()},
        "last_row": {arm: table(run / "metrics.csv")[-1] for arm, run in runs.items()},
        "held_out_action_error": {
            arm: evaluations_of(run)[-1]["held_out_action_error"] for arm, run in runs.items()
        },
        "final": final,
    }
    write_record(str(options.out / "record.json"), facts)


if __name__ == "__main__":
    main()
