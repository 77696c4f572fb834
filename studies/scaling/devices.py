"""Training on one device, on eight and in two processes: differences of the results, and the cost of
sharding.

python studies/scaling/devices.py --out results/devices.json
python studies/scaling/devices.py --task cube-double --out results/devices_offline.json

In float64 all must agree to 1e-8 relative after 20 updates, and the environments exactly, which takes equal
actions. In float32 sums in another order differ by rounding, and a KL within rounding of the threshold may
halt a loop later: see `TOLERANCE`. All devices are cores of this machine, so the time per update is the cost
of sharding, not its gain. Processes talk over the loopback interface.
"""

import argparse
import csv
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from looped_actor.reproduction.record import write_record

NET = ("arm.core.width=8", "arm.core.heads=1", "arm.core.hidden=8", "arm.halting.max_loops=4")
SELDOM = ("evaluate_every=1000", "checkpoint_every=1000")
SETTINGS = {
    "boxoban": (
        *NET,
        "algorithm.num_envs=16",
        "algorithm.rollout_steps=8",
        "algorithm.minibatch=64",
        "levels.train_count=200",
        "levels.held_out_count=50",
        "levels.evaluate_count=20",
        *SELDOM,
    ),
    "cube-double": (
        *NET,
        "algorithm.batch=32",
        "algorithm.updates_per_iteration=10",
        "algorithm.hidden=[16]",
        "data.transitions=2000",
        "data.episode_transitions=100",
        "episodes=1",
        "time_limit=3",
        *SELDOM,
    ),
}
STEPS_PER_ITERATION = {"boxoban": 128, "cube-double": 10}
UPDATES_PER_ITERATION = {"boxoban": 4, "cube-double": 10}
TOLERANCE = {"float64": 1e-8, "float32": 2e-3}


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(
    task: str, folder: pathlib.Path, precision: str, updates: int, devices: int = 1, processes: int = 1
) -> None:
    """Train in some processes with some devices each."""
    port, started = free_port(), []
    steps = -(-updates // UPDATES_PER_ITERATION[task]) * STEPS_PER_ITERATION[task]
    for process in range(processes):
        words: list[Any] = ["train", task, "--out", folder, "--devices", devices, "--steps", steps]
        if processes > 1:
            words += ["--coordinator", f"127.0.0.1:{port}", "--processes", processes, "--process", process]
        environment = os.environ | {"NPROC": "16", "JAX_PLATFORMS": "cpu"}
        environment["JAX_ENABLE_X64"] = str(int(precision == "float64"))
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "looped_actor", *map(str, words), "--set", *SETTINGS[task]],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        for process in started:
            output, _ = process.communicate(timeout=600)
            if process.returncode:
                raise SystemExit(f"{folder.name}: {output[-3000:]}")
    finally:
        for process in started:
            process.kill()


def read_state(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Return all arrays of the newest checkpoint by name."""
    import jax

    from looped_actor.runs.folder import fingerprint_of
    from looped_actor.training import Checkpoints

    with jax.enable_x64(True):  # arrays of both precisions keep theirs
        checkpoints = Checkpoints(folder / "checkpoints", fingerprint_of(folder), read_only=True)
        named, _ = checkpoints.read()
        return {name: np.asarray(leaf) for name, leaf in named.items()}


def read_metrics(folder: pathlib.Path) -> list[dict[str, float]]:
    """Return the rows of metrics.csv."""
    with (folder / "metrics.csv").open() as file:
        return [{k: float(v or "nan") for k, v in row.items()} for row in csv.DictReader(file)]


def seconds_per_update(task: str, folder: pathlib.Path) -> float:
    """Return the time of the fastest iteration: the first one compiles."""
    with (folder / "timings.csv").open() as file:
        rate = max(float(row["steps_per_second"]) for row in csv.DictReader(file))
    return STEPS_PER_ITERATION[task] / rate / UPDATES_PER_ITERATION[task]


def relative_difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error, relative to the largest number of an array."""
    error = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max(initial=0.0)
    return float(error / max(np.abs(expected).max(initial=0.0), 1e-300))


def compare(task: str, folder: pathlib.Path, reference: pathlib.Path) -> dict[str, Any]:
    """Compare a run with the one on one device."""
    expected, found = read_state(reference), read_state(folder)
    integers = {name for name, leaf in expected.items() if leaf.dtype.kind in "iub"}
    unequal = [name for name in sorted(integers) if not (expected[name] == found[name]).all()]
    floats = set(expected) - integers
    worst = max((relative_difference(found[name], expected[name]), name) for name in floats)
    rows = zip(read_metrics(folder), read_metrics(reference), strict=True)
    metrics = max(
        (abs(ours[name] - theirs[name]) / max(abs(theirs[name]), 1e-3), name)
        for ours, theirs in rows
        for name in ours
        # Microbatches depend on the devices, and so do the loops that the hardware computes.
        if not name.endswith(("_executed", "utilisation"))
        and not (np.isnan(ours[name]) and np.isnan(theirs[name]))
    )
    return {
        "unequal_integers": unequal,
        "largest_difference": worst[0],
        "in": worst[1],
        "largest_metric_difference": metrics[0],
        "in_metric": metrics[1],
        "time_per_update_over_one_device": seconds_per_update(task, folder)
        / seconds_per_update(task, reference),
    }


def compare_all(
    task: str, precision: str, updates: int, folder: pathlib.Path, only_processes: bool
) -> dict[str, Any]:
    """Train in all arrangements, and compare them with one device."""
    arrangements = {"one device": {}, "2 processes of 1 device": {"processes": 2}}
    if not only_processes:
        arrangements["8 devices"] = {"devices": 8}
    folders = {name: folder / precision / name.replace(" ", "-") for name in arrangements}
    for name, arrangement in arrangements.items():
        train(task, folders[name], precision, updates, **arrangement)
        print(f"{precision}: {name} done", file=sys.stderr, flush=True)
    reference = folders.pop("one device")
    found = {name: compare(task, path, reference) for name, path in folders.items()}
    agree = all(
        not one["unequal_integers"]
        and max(one["largest_difference"], one["largest_metric_difference"]) < TOLERANCE[precision]
        for one in found.values()
    )
    return {"tolerance": TOLERANCE[precision], "agree": agree, **found}


def main() -> None:
    """Compare, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", default="boxoban", choices=[*SETTINGS])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--processes", action="store_true", help="compare with two processes only")
    parser.add_argument("--precisions", nargs="*", default=["float64", "float32"], choices=[*TOLERANCE])
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            precision: compare_all(
                options.task, precision, options.updates, pathlib.Path(folder), options.processes
            )
            for precision in options.precisions
        }
    write_record(options.out, {"task": options.task, "updates": options.updates, **found})
    if not all(one["agree"] for one in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
