"""What depth that differs costs many chips, from loops that policies really took.

python benchmarks/imbalance.py --out results/plans/imbalance.json

A chunk loops until its deepest example has halted, and the exchange of gradients waits for the slowest chip.
Loops are those of results/micro_analysis/histogram.csv (trained here, at most 8 loops) and those that
the paper reports of its policy on Boxoban; of 256 chips 32 are replayed.
"""

import argparse
import csv
import pathlib

import numpy as np
from record import write_record

from looped_actor.loop.packing import even_chunks
from looped_actor.planning.depths import DISTRIBUTIONS
from looped_actor.planning.schedule import packed

ROOT = pathlib.Path(__file__).parents[2]
CHIPS = 256
CHUNK = 32
"""Examples that a TPU learns from together."""


def real_loops() -> dict[str, np.ndarray]:
    """Loops of every decision, by run."""
    with (ROOT / "results" / "micro_analysis" / "histogram.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["arm"] == "looped"]
    runs = dict.fromkeys(row["run"] for row in rows)
    return {
        run: np.repeat(
            [int(row["loops"]) for row in rows if row["run"] == run],
            [int(row["decisions"]) for row in rows if row["run"] == run],
        )
        for run in runs
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--out", type=pathlib.Path)
    given = options.parse_args()
    depths = real_loops() | {"reported, boxoban": DISTRIBUTIONS["boxoban"].draw(4096)}
    facts: dict = {name: {"mean_loops": float(some.mean())} for name, some in depths.items()}
    for name, some in depths.items():
        for batch in (4, 16, 64, 128, 1024):
            forward, _, slowest = packed(some, batch, *even_chunks(batch, CHUNK), CHIPS)
            executed = forward / float(some.mean())
            facts[name][str(batch)] = {"executed_over_asked": executed, "slowest_over_mean": slowest}
    write_record(given.out, {"chips": CHIPS} | facts)


if __name__ == "__main__":
    main()
