"""Transitions per second of data collection with two workers, relative to one.

python benchmarks/collection.py --transitions 10000 --out results/collection.json

Each environment is collected with one worker and with two, in turns. Their files must have equal bytes, and
OGBench's own loader must read them. Rates are of the transitions that are kept, without the time to make the
environments.
"""

import argparse
import pathlib
import tempfile
import time
from typing import Any

import ogbench

from looped_actor.reproduction.record import write_record
from looped_actor.robots.collection import CollectionJob, collect
from looped_actor.robots.ogbench import ENVIRONMENTS


def measure(job: CollectionJob, folder: pathlib.Path, workers: int) -> tuple[list[pathlib.Path], float]:
    """Return the files, and transitions per second and worker after the first episode of each worker."""
    reports: list[tuple[float, int]] = []
    paths = collect(
        job, folder, workers=workers, progress=lambda done, total: reports.append((time.perf_counter(), done))
    )
    (begin, first), (end, last) = reports[workers - 1], reports[-1]
    return list(paths), (last - first) / (end - begin) / workers


def compare(env_name: str, transitions: int, folder: pathlib.Path) -> dict[str, Any]:
    """Collect with one worker and with two."""
    job, files, rates = CollectionJob(env_name, transitions), {}, {}
    for workers in (1, 2):
        paths, rates[workers] = measure(job, folder / f"{env_name}-{workers}", workers)
        files[workers] = [path.read_bytes() for path in paths]
    loaded: Any = ogbench.load_dataset(paths[0])
    return {
        "transitions": len(loaded["observations"]),
        "bytes": sum(map(len, files[1])),
        "same_bytes_with_1_and_2_workers": files[1] == files[2],
        "transitions_per_second_and_core": {str(n): round(rate, 1) for n, rate in rates.items()},
        "rate_per_worker_of_two_over_one": round(rates[2] / rates[1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--transitions", type=int, default=10_000)
    parser.add_argument("--envs", nargs="+", default=ENVIRONMENTS, choices=ENVIRONMENTS)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for env_name in options.envs:
            found[env_name] = compare(env_name, options.transitions, pathlib.Path(folder))
            print(env_name, found[env_name], flush=True)
    write_record(options.out, {"worlds": found})
    if not all(results["same_bytes_with_1_and_2_workers"] for results in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
