"""Imitation of the solver by the arms of the paper's comparison, at equal updates: the micro preset.

Example: python benchmarks/imitation.py --runs runs/imitation --out results/micro_imitation

Trains every arm with every seed, one after the other, by the commands a user would give; runs that are
finished stay, and runs that were interrupted go on. Writes the comparison (table, figure, sentence), the
configuration and metrics of every run, the looped policies, and a record.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys

from learning_curve import evaluations_of
from offline_curve import minutes_of
from record import write_record

from looped_actor.analysis.compare import compare_runs
from looped_actor.runs.folder import read_run

COMMAND = str(pathlib.Path(sys.executable).with_name("looped-actor"))
ARMS = ("looped", "iso-params", "iso-flops")


def train(folder, task, arm, seed, steps):
    if (folder / "policy").is_dir():
        return
    words = ["train", task, "--learner", "imitation", "--arm", arm, "--seed", str(seed), "--out", str(folder)]
    if (folder / "config.json").exists():
        words = ["resume", str(folder)]
    elif steps:
        words += ["--steps", str(steps)]
    subprocess.run([COMMAND, *words], check=True)


def facts_of(folder):
    config, last = read_run(folder), evaluations_of(folder)[-1]
    return {
        "updates": config.iterations * config.learning.updates_per_iteration,
        "steps": config.iterations * config.steps_per_iteration,
        "minutes": round(minutes_of(folder), 1),
        "optimal_actions": last["optimal_actions"],
        "optimal_actions_interval_95": last["optimal_actions_interval_95"],
        "held_out_states": last["optimal_actions_states"],
        "held_out_levels": last["levels"],
        "solved": last["success"],
        "solved_interval_95": last["interval_95"],
        "loops": last["loops"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=pathlib.Path, required=True)
    parser.add_argument("--task", default="boxoban", choices=["boxoban", "rush-hour"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=float)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    folders = {}
    for seed in range(options.seeds):
        for arm in ARMS:
            folders[f"{arm}-{seed}"] = folder = options.runs / f"{arm}-{seed}"
            train(folder, options.task, arm, seed, options.steps)
    in_order = sorted(folders, key=lambda name: ARMS.index(name.rsplit("-", 1)[0]))
    sentence = compare_runs([folders[name] for name in in_order], options.out)
    for name, folder in folders.items():
        kept = options.out / name
        kept.mkdir(parents=True, exist_ok=True)
        for file in ("config.json", "metrics.csv"):
            shutil.copy(folder / file, kept / file)
        if name.startswith("looped"):
            shutil.copytree(folder / "policy", kept / "policy", dirs_exist_ok=True)
    runs = {name: facts_of(folders[name]) for name in in_order}
    minutes = sum(facts["minutes"] for facts in runs.values())
    record = {"learner": "imitation", "says": sentence, "minutes_in_all": round(minutes, 1), "runs": runs}
    write_record(options.out / "record.json", record)


if __name__ == "__main__":
    main()
