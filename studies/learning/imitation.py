"""Imitation of the solver by the arms of the paper's comparison, with equal updates: the micro preset.

python studies/learning/imitation.py --runs runs/imitation --out results/micro_imitation

Trains every arm with every seed, one after the other, by the commands of a user; finished runs are not
repeated, and interrupted ones continue. Writes the comparison (table, figure, caption), the configuration and
metrics of every run, the looped policies, and a record.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
from typing import Any

from learning_curve import read_evaluations
from offline_curve import count_minutes

from looped_actor.analysis.compare import compare_runs
from looped_actor.reproduction.record import write_record
from looped_actor.runs.config import PuzzleConfig
from looped_actor.runs.folder import read_run

COMMAND = str(pathlib.Path(sys.executable).with_name("looped-actor"))
ARMS = ("looped", "iso-params", "iso-flops")


def train(folder: pathlib.Path, task: str, arm: str, seed: int, steps: float | None) -> None:
    """Train or resume a run, unless it is finished."""
    if (folder / "policy").is_dir():
        return
    words = ["train", task, "--learner", "imitation", "--arm", arm, "--seed", str(seed), "--out", str(folder)]
    if (folder / "config.json").exists():
        words = ["resume", str(folder)]
    elif steps:
        words += ["--steps", str(steps)]
    subprocess.run([COMMAND, *words], check=True)


def summarize_run(folder: pathlib.Path) -> dict[str, Any]:
    """Return the cost and the last evaluation of a run."""
    config, last = read_run(folder), read_evaluations(folder)[-1]
    assert isinstance(config, PuzzleConfig)
    return {
        "updates": config.iterations * config.algorithm.updates_per_iteration,
        "steps": config.iterations * config.steps_per_iteration,
        "minutes": round(count_minutes(folder), 1),
        "optimal_actions": last["optimal_actions"],
        "optimal_actions_interval_95": last["optimal_actions_interval_95"],
        "held_out_states": last["optimal_actions_states"],
        "held_out_levels": last["levels"],
        "solved": last["success"],
        "solved_interval_95": last["interval_95"],
        "loops": last["loops"],
    }


def main() -> None:
    """Train all runs, compare them, copy the files, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
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
    caption = compare_runs([folders[name] for name in in_order], options.out)
    for name, folder in folders.items():
        kept = options.out / name
        kept.mkdir(parents=True, exist_ok=True)
        for file in ("config.json", "metrics.csv"):
            shutil.copy(folder / file, kept / file)
        if name.startswith("looped"):
            shutil.copytree(folder / "policy", kept / "policy", dirs_exist_ok=True)
    runs = {name: summarize_run(folders[name]) for name in in_order}
    minutes = sum(run["minutes"] for run in runs.values())
    write_record(
        options.out / "record.json",
        {"learner": "imitation", "says": caption, "minutes_in_all": round(minutes, 1), "runs": runs},
    )


if __name__ == "__main__":
    main()
