"""Every interesting Rush Hour position of 4x4 and 5x5: counts, and the time on one core.

python benchmarks/rush_hour_enumeration.py --json results/rush_hour_enumeration.json
"""

import argparse
import time

from record import write_record

from looped_actor.puzzles.rush_hour.enumeration import enumerate_positions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="the fastest counts")
    parser.add_argument("--json", help="where to write the record")
    args = parser.parse_args()
    enumerate_positions(3, 3)  # compiles
    facts = {}
    for side in (4, 5):
        seconds = []
        for _ in range(args.rounds):
            began = time.perf_counter()
            found = enumerate_positions(side, side)
            seconds.append(time.perf_counter() - began)
        facts[f"{side}x{side}"] = {
            "boards": found.boards,
            "clusters": found.clusters,
            "solvable": found.solvable,
            "puzzles": len(found.puzzles),
            "hardest": found.puzzles[0].moves,
            "seconds": [round(s, 2) for s in sorted(seconds)],
        }
    write_record(args.json, facts)


if __name__ == "__main__":
    main()
