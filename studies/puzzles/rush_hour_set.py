"""Checks a generated Rush Hour set independently of the code that made it, and draws the lengths of
solutions.

python studies/puzzles/rush_hour_set.py levels --out results/rush_hour_set.json --picture results/lengths.png

The cluster of every board is explored again: no two boards may share one, so no board of a split can be
reached from another. Optimal lengths of a sample are computed again by a breadth-first search in plain
Python, which shares no code with the solvers.
"""

import argparse
import pathlib
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from tqdm import tqdm

from looped_actor.puzzles.banks import open_bank
from looped_actor.puzzles.rush_hour.generator import RushHourRecipe, cluster_ids, generate_batch
from looped_actor.reproduction.record import write_record
from looped_actor.utils.processes import default_workers

SPLITS = ("train", "valid", "test")


def fewest_moves(text: str, side: int) -> int:
    """Return the optimal length of a board of letters, by breadth-first search; -1 without a solution."""
    cells: dict[str, list[int]] = {}
    for cell, letter in enumerate(text):
        if letter != ".":
            cells.setdefault(letter, []).append(cell)
    pieces = sorted(cells, key=lambda letter: letter != "A")
    places, start = [], []
    for letter in pieces:
        step = cells[letter][1] - cells[letter][0]
        first = cells[letter][0] // side * side if step == 1 else cells[letter][0] % side
        line = [first + step * k for k in range(side)]
        length = len(cells[letter])
        places.append([sum(1 << c for c in line[o : o + length]) for o in range(side - length + 1)])
        start.append(line.index(cells[letter][0]))
    goal = len(places[0]) - 1
    frontier, seen, moves = [tuple(start)], {tuple(start)}, 0
    while frontier:
        reached = []
        for state in frontier:
            if state[0] == goal:
                return moves
            occupied = 0
            for piece, place in zip(places, state, strict=True):
                occupied |= piece[place]
            for i, place in enumerate(state):
                others = occupied ^ places[i][place]
                for direction in (-1, 1):
                    to = place + direction
                    while 0 <= to < len(places[i]) and not places[i][to] & others:
                        after = (*state[:i], to, *state[i + 1 :])
                        if after not in seen:
                            seen.add(after)
                            reached.append(after)
                        to += direction
        frontier, moves = reached, moves + 1
    return -1


def check(task: tuple[str, int]) -> int:
    """Return the optimal length of a board of this text and side."""
    return fewest_moves(*task)


def main() -> None:
    """Check the set, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="of rush-hour-{train,valid,test}.levels")
    parser.add_argument("--sample", type=int, default=10_000)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--picture", help="file for a figure of the lengths")
    options = parser.parse_args()
    banks = {split: open_bank(options.folder / f"rush-hour-{split}.levels") for split in SPLITS}

    generate_batch((RushHourRecipe(seed=1), 0))  # compiles
    begin = time.process_time()
    made = len(generate_batch((RushHourRecipe(seed=1), 1))["moves"])
    rate = made / (time.process_time() - begin)

    workers = default_workers()
    ids: dict[str, np.ndarray] = {}
    with ProcessPoolExecutor(workers) as pool:
        for split, bank in banks.items():
            parts = [bank.cells(slice(i, i + 1000)) for i in range(0, len(bank), 1000)]
            found = tqdm(pool.map(cluster_ids, parts), total=len(parts), desc=f"clusters of {split}")
            ids[split] = np.concatenate(list(found))
        everything = np.concatenate(list(ids.values()))

        rng = np.random.default_rng(0)
        sample = [
            (split, i)
            for split, share in (("train", 0.8), ("valid", 0.1), ("test", 0.1))
            for i in rng.choice(len(banks[split]), size=round(share * options.sample), replace=False).tolist()
        ]
        boards: list[Any] = [banks[split].board(i) for split, i in sample]
        tasks = [(board.flat_text, board.width) for board in boards]
        lengths = list(tqdm(pool.map(check, tasks, chunksize=20), total=len(tasks), desc="lengths"))
    stated = [int(banks[split].columns["moves"][i]) for split, i in sample]
    histogram = {
        split: np.bincount(bank.columns["moves"], minlength=16).tolist() for split, bank in banks.items()
    }
    needed = 2_000_000 + 2 * 10_000
    write_record(
        options.out,
        {
            "levels": {split: len(bank) for split, bank in banks.items()},
            "checksums": {split: bank.info.checksum for split, bank in banks.items()},
            "clusters_explored_anew": len(everything),
            "clusters_shared_by_two_levels": len(everything) - len(np.unique(everything)),
            "ids_as_recorded": all((ids[s] == banks[s].columns["cluster"]).all() for s in SPLITS),
            "lengths_recomputed": len(lengths),
            "lengths_that_differ": sum(a != b for a, b in zip(lengths, stated, strict=True)),
            "levels_per_second_per_core": round(rate, 1),
            "core_hours_for_2020000": round(needed / rate / 3600, 1),
            "lengths_by_split": histogram,
        },
    )
    if options.picture:
        draw(histogram, options.picture)


def draw(histogram: dict[str, list[int]], path: str) -> None:
    """Draw the lengths of solutions of each split."""
    colours = {"train": "#4f81bd", "valid": "#e2a93b", "test": "#d6404a"}
    figure, axis = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for offset, (split, counts) in zip((-0.27, 0, 0.27), histogram.items(), strict=True):
        share = 100 * np.array(counts) / sum(counts)
        label = f"{split} ({sum(counts):,})"
        axis.bar(np.arange(len(share)) + offset, share, 0.27, color=colours[split], label=label)
    axis.set(
        xlabel="moves of an optimal solution", ylabel="% of levels", xlim=(0.3, 15.7), xticks=range(1, 16)
    )
    axis.set_title("Generated Rush Hour levels: how long are their solutions?", loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
