"""The same training on one device, on eight, and on two processes: is it the same, and what does it cost?

Example: python benchmarks/devices.py --out results/devices.json
Example: python benchmarks/devices.py --task cube-double --out results/devices_offline.json

In float64 all must agree to 1e-8 relative after 20 updates, and the environments exactly, which takes equal
actions. In float32 sums in another order differ by rounding, and a KL within rounding of the threshold may
halt a loop later: tolerances below. All devices are cores of this machine: the time per update says what
sharding costs, not what it brings. Processes talk over the loopback.
"""

import argparse
import csv
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import numpy as np
from record import write_record
from resume import PUZZLE, WORLD, command, state_of

SELDOM = ("evaluate_every=1000", "checkpoint_every=1000")
SETTINGS = {"boxoban": (*PUZZLE, "ppo.minibatch=64", *SELDOM), "cube-double": (*WORLD, *SELDOM)}
STEPS_OF_AN_ITERATION = {"boxoban": 128, "cube-double": 10}
UPDATES_OF_AN_ITERATION = {"boxoban": 4, "cube-double": 10}
TOLERANCE = {"float64": 1e-8, "float32": 2e-3}


def settings(task, precision, updates):
    iterations = -(-updates // UPDATES_OF_AN_ITERATION[task])
    extra = ["double_precision=true"] if precision == "float64" else []
    return ["--steps", iterations * STEPS_OF_AN_ITERATION[task], "--set", *SETTINGS[task], *extra]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(task, folder, precision, updates, devices=1, processes=1):
    """Train in some processes with some devices each."""
    port, started = free_port(), []
    for process in range(processes):
        words = ["train", task, "--out", folder, "--devices", devices]
        if processes > 1:
            words += ["--coordinator", f"127.0.0.1:{port}", "--processes", processes, "--process", process]
        environment = os.environ | {"NPROC": "16", "JAX_PLATFORMS": "cpu"}
        started.append(
            subprocess.Popen(
                command(*words, *settings(task, precision, updates)),
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


def numbers_of(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: float(v or "nan") for k, v in row.items()} for row in csv.DictReader(file)]


def seconds_per_update(task, folder):
    """Of the fastest iteration: the first compiles."""
    with (folder / "timings.csv").open() as file:
        rate = max(float(row["steps_per_second"]) for row in csv.DictReader(file))
    return STEPS_OF_AN_ITERATION[task] / rate / UPDATES_OF_AN_ITERATION[task]


def difference(found, expected):
    """The largest error, relative to the largest number of an array."""
    error = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max(initial=0.0)
    return float(error / max(np.abs(expected).max(initial=0.0), 1e-300))


def compared(task, folder, reference):
    (expected, _), (found, _) = state_of(reference), state_of(folder)
    whole = {name for name, leaf in expected.items() if leaf.dtype.kind in "iub"}
    unequal = [name for name in sorted(whole) if not (expected[name] == found[name]).all()]
    worst = max((difference(found[name], expected[name]), name) for name in set(expected) - whole)
    rows = zip(numbers_of(folder), numbers_of(reference), strict=True)
    metrics = max(
        (abs(ours[name] - theirs[name]) / max(abs(theirs[name]), 1e-3), name)
        for ours, theirs in rows
        for name in ours
        # How a batch is cut into chunks depends on the devices, and with it what the hardware computes.
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


def study(task, precision, updates, work, only_processes):
    arrangements = {"one device": {}, "2 processes of 1 device": {"processes": 2}}
    if not only_processes:
        arrangements["8 devices"] = {"devices": 8}
    folders = {name: work / precision / name.replace(" ", "-") for name in arrangements}
    for name, arrangement in arrangements.items():
        train(task, folders[name], precision, updates, **arrangement)
        print(f"{precision}: {name} done", file=sys.stderr, flush=True)
    reference = folders.pop("one device")
    found = {name: compared(task, folder, reference) for name, folder in folders.items()}
    tolerance = TOLERANCE[precision]
    agree = all(
        not one["unequal_integers"]
        and max(one["largest_difference"], one["largest_metric_difference"]) < tolerance
        for one in found.values()
    )
    return {"tolerance": tolerance, "agree": agree, **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", default="boxoban", choices=[*SETTINGS])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--processes", action="store_true", help="compare with two processes only")
    parser.add_argument("--precisions", nargs="*", default=["float64", "float32"], choices=[*TOLERANCE])
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = {
            p: study(options.task, p, options.updates, pathlib.Path(work), options.processes)
            for p in options.precisions
        }
    write_record(options.out, {"task": options.task, "updates": options.updates, **found})
    if not all(one["agree"] for one in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
