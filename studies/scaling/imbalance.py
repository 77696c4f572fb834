"""Cost of different depths on many chips, from loops that policies took.

python studies/scaling/imbalance.py --out results/plans/imbalance.json

A microbatch loops until its deepest example has halted, and the exchange of gradients waits for the slowest
chip. Loops are those of results/micro_analysis/histogram.csv (trained here, at most 8 loops) and those that
the paper reports of its policy on Boxoban; of 256 chips 32 are replayed.
"""

import argparse
import csv
import pathlib
from typing import Any

import numpy as np

from looped_actor.loop.packing import even_microbatches
from looped_actor.planning.depths import DISTRIBUTIONS
from looped_actor.planning.schedule import count_packed_loops
from looped_actor.reproduction.record import write_record

ROOT = pathlib.Path(__file__).parents[2]
CHIPS = 256
MICROBATCH = 32
"""Examples that a TPU loops together."""


def read_loops() -> dict[str, np.ndarray]:
    """Return the loops of every decision, by run."""
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
    """Replay updates, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    depths = read_loops() | {"reported, boxoban": DISTRIBUTIONS["boxoban"].draw(4096)}
    results: dict[str, Any] = {name: {"mean_loops": float(some.mean())} for name, some in depths.items()}
    for name, some in depths.items():
        for batch in (4, 16, 64, 128, 1024):
            microbatch, together = even_microbatches(batch, MICROBATCH)
            packed = count_packed_loops(some, batch, microbatch, together, CHIPS)
            results[name][str(batch)] = {
                "executed_over_asked": packed.forward / float(some.mean()),
                "slowest_over_mean": packed.slowest_over_mean,
            }
    write_record(options.out, {"chips": CHIPS, **results})


if __name__ == "__main__":
    main()
