"""How fast Boxoban levels are solved move-optimally, and whether every solution wins when it is replayed.

python benchmarks/boxoban_solver.py levels/boxoban-unfiltered-test.levels --json results/solver.json
"""

import argparse
import pathlib
import time

import numpy as np
from record import write_record
from tqdm import tqdm

from looped_actor.puzzles.banks import open_bank
from looped_actor.puzzles.boxoban.solver import solve_cells
from looped_actor.puzzles.solutions import replays, solve_bank
from looped_actor.puzzles.solve_status import SolveStatus
from looped_actor.utils.processes import default_workers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "banks", nargs="+", type=pathlib.Path, help="banks, each with :count to take the first"
    )
    parser.add_argument("--json", help="where to write the record")
    args = parser.parse_args()
    facts = {}
    for given in args.banks:
        path, _, count = str(given).partition(":")
        bank = open_bank(path)
        solve_cells(bank.cells(slice(0, 1))[0])  # compiles
        bar = tqdm(total=int(count or len(bank)), desc=pathlib.Path(path).name)

        def progress(done: int, total: int, bar: tqdm = bar) -> None:
            bar.update(done - bar.n)

        began = time.perf_counter()
        solutions = solve_bank(
            bank, count=int(count) if count else None, workers=default_workers(), progress=progress
        )
        seconds = time.perf_counter() - began
        bar.close()
        solved = solutions.status == SolveStatus.SOLVED.value
        moves, pushes = solutions.move_counts[solved], solutions.push_counts[solved]
        facts[pathlib.Path(path).stem] = {
            "levels": len(solutions),
            "solved": int(solved.sum()),
            "not_within_limit": int((solutions.status == SolveStatus.NOT_WITHIN_LIMIT.value).sum()),
            "replayed_to_a_win": sum(replays(bank, solutions, int(i)) for i in tqdm(np.flatnonzero(solved))),
            "seconds": round(seconds, 1),
            "workers": default_workers(),
            "levels_per_second_per_worker": round(len(solutions) / seconds / default_workers(), 1),
            "moves_mean_and_max": [round(float(moves.mean()), 1), int(moves.max())],
            "pushes_mean_and_max": [round(float(pushes.mean()), 1), int(pushes.max())],
            "states_mean_and_max": [round(float(solutions.nodes.mean())), int(solutions.nodes.max())],
        }
    write_record(args.json, facts)


if __name__ == "__main__":
    main()
