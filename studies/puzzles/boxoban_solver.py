"""Rate at which Boxoban levels are solved move-optimally, and a replay of every solution.

python studies/puzzles/boxoban_solver.py levels/boxoban-unfiltered-test.levels --out
results/boxoban_solver.json
"""

import argparse
import pathlib
import time
from typing import Any

import numpy as np
from tqdm import tqdm

from looped_actor.puzzles.banks import open_bank
from looped_actor.puzzles.search import SolveStatus
from looped_actor.puzzles.solutions import solution_wins, solve_bank
from looped_actor.reproduction.record import write_record
from looped_actor.utils.processes import default_workers


def measure(path: pathlib.Path, count: int | None) -> dict[str, Any]:
    """Solve the levels of a bank, or the first ones, and replay the solutions."""
    bank = open_bank(path)
    solve_bank(bank, count=1)  # compiles
    with tqdm(total=count or len(bank), desc=path.name) as bar:

        def progress(done: int, total: int) -> None:
            bar.update(done - bar.n)

        begin = time.perf_counter()
        solutions = solve_bank(bank, count=count, workers=default_workers(), progress=progress)
        seconds = time.perf_counter() - begin
    solved = solutions.status == SolveStatus.SOLVED.value
    moves, pushes = solutions.move_counts[solved], solutions.push_counts[solved]
    wins = sum(solution_wins(bank, solutions, int(i)) for i in tqdm(np.flatnonzero(solved)))
    return {
        "levels": len(solutions),
        "solved": int(solved.sum()),
        "not_within_limit": int((solutions.status == SolveStatus.NOT_WITHIN_LIMIT.value).sum()),
        "replayed_to_a_win": wins,
        "seconds": round(seconds, 1),
        "workers": default_workers(),
        "levels_per_second_per_worker": round(len(solutions) / seconds / default_workers(), 1),
        "moves_mean_and_max": [round(float(moves.mean()), 1), int(moves.max())],
        "pushes_mean_and_max": [round(float(pushes.mean()), 1), int(pushes.max())],
        "states_mean_and_max": [round(float(solutions.nodes.mean())), int(solutions.nodes.max())],
    }


def main() -> None:
    """Solve all banks, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("banks", nargs="+", help="banks, each with :count to take the first levels")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    found = {}
    for bank in options.banks:
        path, _, count = bank.partition(":")
        found[pathlib.Path(path).stem] = measure(pathlib.Path(path), int(count) if count else None)
    write_record(options.out, found)


if __name__ == "__main__":
    main()
