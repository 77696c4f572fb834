"""All figures of docs/halting.md: `looped-actor bench` for random weights and for the trained policies."""

import argparse
import json
import subprocess
import sys

from record import write_record

WORKS = {
    "random weights, loops like Boxoban": [],
    "random weights, easy": ["--loops", "easy"],
    "micro Boxoban": ["results/micro_boxoban"],
    "micro Rush Hour": ["results/micro_rush_hour"],
}


def bench(kind: str, options: list[str]) -> dict:
    """One command, as a user would run it."""
    command = [sys.executable, "-m", "looped_actor", "bench", kind, *options, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    facts = json.loads(done.stdout)
    print(f"{' '.join(command[3:])}: {done.stdout}", file=sys.stderr)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="a file for the JSON")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    options = parser.parse_args()
    quick = ["--quick"] if options.quick else []
    facts = {}
    for name, work in WORKS.items():
        kinds = ["train"] if name.endswith("easy") else ["train", "eval"]
        facts[name] = {kind: bench(kind, [*work, *quick]) for kind in kinds}
    write_record(options.out, {"timings": facts})


if __name__ == "__main__":
    main()
