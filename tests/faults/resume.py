"""Kill a training run again and again, resume it each time, and compare it with one that was left alone.

Example: python benchmarks/resume.py --kills 20 --out results/resume.json
Example: python benchmarks/resume.py --task cube-double --steps 4000 --kills 5

Kills are SIGKILL at random moments: every other one while a checkpoint is being written (its unfinished
folder was seen), the rest at any time after a resumed process has finished its first iteration. In the end
parameters, optimiser, statistics, keys, environment states and metrics.csv must be equal bit for bit.
"""

import argparse
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
from record import write_record

NET = ("core.width=8", "core.heads=1", "core.hidden_multiple=8", "halting.max_loops=4")
PUZZLE = (
    *NET,
    "ppo.num_envs=16",
    "ppo.rollout_steps=8",
    "ppo.minibatch=32",
    "imitation.num_envs=16",
    "imitation.rollout_steps=8",
    "imitation.minibatch=32",
    "levels.train_count=200",
    "levels.held_out_count=50",
    "levels.evaluate_count=20",
    "evaluate_every=25",
    "checkpoint_every=2",
)
WORLD = (
    *NET,
    "gciql.batch=32",
    "gciql.updates_per_iteration=10",
    "gciql.hidden=[16]",
    "data.transitions=2000",
    "data.episode_transitions=100",
    "episodes=1",
    "time_limit=3",
    "evaluate_every=100",
    "checkpoint_every=2",
)
PUZZLES = ("boxoban", "rush-hour")


def command(*words):
    return [sys.executable, "-m", "looped_actor", *map(str, words)]


def train(out, steps, task, devices, learner=None):
    extra = ["--devices", devices] if devices else []
    extra += ["--learner", learner] if learner else []
    return command(
        "train",
        task,
        "--out",
        out,
        "--steps",
        steps,
        *extra,
        "--set",
        *(PUZZLE if task in PUZZLES else WORLD),
    )


def state_of(folder):
    """All arrays of the newest checkpoint, by name."""
    import jax

    from looped_actor.runs.folder import fingerprint_of, read_run
    from looped_actor.training import Checkpoints

    with jax.enable_x64(read_run(folder).double_precision):
        named, bookmark = Checkpoints(folder / "checkpoints", fingerprint_of(folder), read_only=True).read()
        return {name: np.asarray(leaf) for name, leaf in named.items()}, bookmark


def rows(folder):
    path = folder / "metrics.csv"
    return len(path.read_text().splitlines()) if path.exists() else 0


def unfinished(folder):
    return any("tmp" in path.name for path in (folder / "checkpoints").glob("*"))


def wait_for(condition, process, seconds=120):
    """True once the condition holds; False if the process ended before."""
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.0005)
    raise SystemExit("the run makes no progress")


def kill_once(process, folder, before, during_a_save, chance):
    """Kill a run after it went on by at least one iteration. Says whether a save was under way, or None."""
    if not wait_for(lambda: rows(folder) > before, process):
        return None
    if during_a_save:
        if not wait_for(lambda: unfinished(folder), process):
            return None
        time.sleep(chance.uniform(0, 0.02))
    else:
        time.sleep(chance.uniform(0, 1.0))
    if process.poll() is not None:
        return None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return unfinished(folder)


def study(kills, steps, task, devices, seed, work, learner=None):
    chance = random.Random(seed)
    whole, broken = work / "whole", work / "broken"
    subprocess.run(train(whole, steps, task, devices, learner), check=True, capture_output=True)
    killed, during_saves, after_rows = 0, 0, []
    process = subprocess.Popen(train(broken, steps, task, devices, learner), stderr=subprocess.DEVNULL)
    while killed < kills:
        saving = kill_once(process, broken, rows(broken), killed % 2 == 0, chance)
        if saving is None:
            break
        killed, during_saves = killed + 1, during_saves + saving
        after_rows.append(rows(broken) - 1)
        print(f"kill {killed}: after row {after_rows[-1]}{', in mid-save' if saving else ''}", flush=True)
        extra = ["--devices", devices] if devices else []
        process = subprocess.Popen(command("resume", broken, *extra), stderr=subprocess.DEVNULL)
    if process.wait() != 0:
        raise SystemExit("a resumed run failed")
    expected, bookmark = state_of(whole)
    found, _ = state_of(broken)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=96_000, help="environment or gradient steps of the run")
    parser.add_argument("--task", default="boxoban", choices=[*PUZZLES, "cube-double", "puzzle-3x3"])
    parser.add_argument("--learner", choices=["ppo", "imitation"], help="of puzzles")
    parser.add_argument("--devices", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which to kill")
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        facts = study(
            options.kills,
            options.steps,
            options.task,
            options.devices,
            options.seed,
            pathlib.Path(work),
            options.learner,
        )
    write_record(options.out, facts)
    if not facts["exact"] or facts["kills"] < options.kills:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
