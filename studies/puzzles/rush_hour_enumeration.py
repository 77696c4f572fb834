"""All interesting Rush Hour positions of 4x4 and 5x5: counts, and the time on one core.

python studies/puzzles/rush_hour_enumeration.py --out results/rush_hour_enumeration.json
"""

import argparse
import pathlib
import time

from looped_actor.puzzles.rush_hour.enumeration import enumerate_positions
from looped_actor.reproduction.record import write_record


def main() -> None:
    """Enumerate, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="the fastest counts")
    parser.add_argument("--sides", type=int, nargs="+", default=[4, 5])
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    enumerate_positions(3, 3)  # compiles
    results = {}
    for side in options.sides:
        found, seconds = enumerate_positions(side, side), []
        for _ in range(options.rounds):
            begin = time.perf_counter()
            enumerate_positions(side, side)
            seconds.append(time.perf_counter() - begin)
        results[f"{side}x{side}"] = {
            "boards": found.boards,
            "clusters": found.clusters,
            "solvable": found.solvable,
            "puzzles": len(found.puzzles),
            "hardest": found.puzzles[0].moves,
            "seconds": [round(each, 2) for each in sorted(seconds)],
        }
    write_record(options.out, results)


if __name__ == "__main__":
    main()
