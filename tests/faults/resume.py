"""Kills a training run again and again, resumes it each time, and compares it with an undisturbed run.

python tests/faults/resume.py --kills 20 --out results/resume.json
python tests/faults/resume.py --task cube-double --steps 4000 --kills 5

Kills are SIGKILL at random moments: every other one while a checkpoint is being written (its unfinished
folder exists), the others at any time after a resumed process has finished its first iteration. In the end
parameters, optimizer state, statistics, keys, environment states and metrics.csv must be equal bit for bit.
"""

import argparse
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from looped_actor.reproduction.record import write_record

NET = ("arm.core.width=8", "arm.core.heads=1", "arm.core.hidden=24", "arm.halting.max_loops=4")
PUZZLE = (
    *NET,
    "algorithm.num_envs=16",
    "algorithm.rollout_steps=8",
    "algorithm.minibatch=32",
    "levels.train_count=200",
    "levels.held_out_count=50",
    "levels.evaluate_count=20",
    "evaluate_every=25",
    "checkpoint_every=2",
)
ROBOT = (
    *NET,
    "algorithm.batch=32",
    "algorithm.updates_per_iteration=10",
    "algorithm.hidden=[16]",
    "data.transitions=2000",
    "data.episode_transitions=100",
    "episodes=1",
    "time_limit=3",
    "evaluate_every=100",
    "checkpoint_every=2",
)
PUZZLES = ("boxoban", "rush-hour")


def command(*words: Any) -> list[str]:
    """Return a command of the package."""
    return [sys.executable, "-m", "looped_actor", *map(str, words)]


def train(
    out: pathlib.Path, steps: int, task: str, devices: int | None, learner: str | None = None
) -> list[str]:
    """Return the command that trains."""
    options: list[Any] = ["--devices", devices] if devices else []
    options += ["--learner", learner] if learner else []
    changes = PUZZLE if task in PUZZLES else ROBOT
    return command("train", task, "--out", out, "--steps", steps, *options, "--set", *changes)


def read_state(folder: pathlib.Path) -> tuple[dict[str, np.ndarray], Any]:
    """Return all arrays of the newest checkpoint by name, and the position of the run."""
    import jax

    from looped_actor.runs.folder import fingerprint_of
    from looped_actor.training import Checkpoints

    with jax.enable_x64(True):  # arrays of both precisions keep theirs
        checkpoints = Checkpoints(folder / "checkpoints", fingerprint_of(folder), read_only=True)
        named, bookmark = checkpoints.read()
        return {name: np.asarray(leaf) for name, leaf in named.items()}, bookmark


def count_rows(folder: pathlib.Path) -> int:
    """Return the lines of metrics.csv."""
    path = folder / "metrics.csv"
    return len(path.read_text().splitlines()) if path.exists() else 0


def is_saving(folder: pathlib.Path) -> bool:
    """Return whether a checkpoint is unfinished."""
    return any("tmp" in path.name for path in (folder / "checkpoints").glob("*"))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = 120) -> bool:
    """Wait until a condition holds; return False if the process ends before."""
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.0005)
    raise SystemExit("the run makes no progress")


def kill_once(
    process: subprocess.Popen, folder: pathlib.Path, before: int, during_a_save: bool, rng: random.Random
) -> bool | None:
    """Kill a run after at least one more iteration. Return whether it was saving; None if it ended before."""
    if not wait_for(lambda: count_rows(folder) > before, process):
        return None
    if during_a_save:
        if not wait_for(lambda: is_saving(folder), process):
            return None
        time.sleep(rng.uniform(0, 0.02))
    else:
        time.sleep(rng.uniform(0, 1.0))
    if process.poll() is not None:
        return None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return is_saving(folder)


def compare(
    kills: int,
    steps: int,
    task: str,
    devices: int | None,
    seed: int,
    folder: pathlib.Path,
    learner: str | None = None,
) -> dict[str, Any]:
    """Train an undisturbed run and one that is killed, and compare their states."""
    rng = random.Random(seed)
    whole, broken = folder / "whole", folder / "broken"
    subprocess.run(train(whole, steps, task, devices, learner), check=True, capture_output=True)
    killed, during_saves, after_rows = 0, 0, []
    process = subprocess.Popen(train(broken, steps, task, devices, learner), stderr=subprocess.DEVNULL)
    while killed < kills:
        saving = kill_once(process, broken, count_rows(broken), killed % 2 == 0, rng)
        if saving is None:
            break
        killed, during_saves = killed + 1, during_saves + saving
        after_rows.append(count_rows(broken) - 1)
        print(f"kill {killed}: after row {after_rows[-1]}{', during a save' if saving else ''}", flush=True)
        options: list[Any] = ["--devices", devices] if devices else []
        process = subprocess.Popen(command("resume", broken, *options), stderr=subprocess.DEVNULL)
    if process.wait() != 0:
        raise SystemExit("a resumed run failed")
    expected, bookmark = read_state(whole)
    found, _ = read_state(broken)
    unequal = [name for name in expected if expected[name].tobytes() != found[name].tobytes()]
    same_rows = (whole / "metrics.csv").read_bytes() == (broken / "metrics.csv").read_bytes()
    return {
        "task": task,
        "learner": learner or "default",
        "iterations": bookmark.iteration,
        "kills": killed,
        "in_mid_save": during_saves,
        "rows_at_kill": after_rows,
        "arrays": len(expected),
        "unequal_arrays": unequal,
        "metrics_csv_equal": same_rows,
        "exact": not unequal and same_rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=96_000, help="environment or gradient steps of the run")
    parser.add_argument("--task", default="boxoban", choices=[*PUZZLES, "cube-double", "puzzle-3x3"])
    parser.add_argument("--learner", choices=["ppo", "imitation"], help="of puzzles")
    parser.add_argument("--devices", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of kills")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = compare(
            options.kills,
            options.steps,
            options.task,
            options.devices,
            options.seed,
            pathlib.Path(folder),
            options.learner,
        )
    write_record(options.out, results)
    if not results["exact"] or results["kills"] < options.kills:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
