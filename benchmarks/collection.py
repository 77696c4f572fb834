"""How fast play data is made, and that the number of workers does not show in it.

Example: python benchmarks/collection.py --transitions 10000 --out results/collection.json

For every world: collected with one worker and with two, in turns; files compared byte by byte, loaded back
through OGBench's own loader. Rates are of the transitions that are kept, with making the worlds left out.
"""

import argparse
import pathlib
import tempfile
import time

import ogbench
from record import write_record

from looped_actor.robots.collection import CollectionJob, collect
from looped_actor.robots.ogbench import ENVIRONMENTS


def collected(job, folder, workers):
    """Paths, and transitions per second and worker after the first episode of each worker."""
    reports = []
    paths = collect(
        job, folder, workers=workers, progress=lambda done, total: reports.append((time.perf_counter(), done))
    )
    (begun, first), (ended, last) = reports[workers - 1], reports[-1]
    return paths, (last - first) / (ended - begun) / workers


def study(world, transitions, work):
    job = CollectionJob(world, transitions)
    files, rates = {}, {}
    for workers in (1, 2):
        paths, rates[workers] = collected(job, work / f"{world}-{workers}", workers)
        files[workers] = [path.read_bytes() for path in paths]
    loaded = ogbench.load_dataset(paths[0])
    return {
        "transitions": len(loaded["observations"]),
        "bytes": sum(map(len, files[1])),
        "same_bytes_with_1_and_2_workers": files[1] == files[2],
        "transitions_per_second_and_core": {str(n): round(rate, 1) for n, rate in rates.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--transitions", type=int, default=10_000)
    parser.add_argument("--worlds", nargs="+", default=ENVIRONMENTS, choices=ENVIRONMENTS)
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = {}
        for world in options.worlds:
            found[world] = study(world, options.transitions, pathlib.Path(work))
            print(world, found[world], flush=True)
    write_record(options.out, {"worlds": found})
    if not all(facts["same_bytes_with_1_and_2_workers"] for facts in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
