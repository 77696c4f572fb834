"""Solver labels of Boxoban states: one shard for each file of 1,000 levels, made once, resumable.

    python labels.py LEVELS OUT --files 0 100

Each level gives the states of one optimal trajectory, drawn uniformly among the optimal moves of each state,
and `DETOURS` times the first states of the way back after one wrong move. Each state is labelled with the set
of its optimal moves. One search that follows all optimal solutions labels a whole trajectory.
"""

import argparse
import pathlib
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import safetensors.numpy
from jaxtyping import Bool, UInt8, UInt16
from looped_actor.compiled import compiled
from looped_actor.files import write_whole
from looped_actor.games.boxoban import Cell
from looped_actor.solvers.boxoban_advice import _moved
from looped_actor.solvers.boxoban_board import unpack, walk
from looped_actor.solvers.boxoban_kernel import all_at, bits_of, board_of, mark, room_of, search
from looped_actor.solvers.boxoban_ways import _ahead, _ways

from boards import read_levels

DETOURS = 2
"""Wrong moves of each level."""
DETOUR_STATES = 6
"""States labelled after each of them, at most."""
NODE_LIMIT, DETOUR_NODE_LIMIT = 50_000, 5_000
"""States after which a search gives up: one level in 25 is then left out, a third of the time saved."""
MOST_STATES = 120
"""States of a trajectory at most: the time limit of an episode."""
_BOX, _PLAYER = int(Cell.BOX), int(Cell.PLAYER)


class Labels(NamedTuple):
    """States with their labels."""

    cells: UInt8[np.ndarray, "n 8 8"]
    optimal: Bool[np.ndarray, "n 4"]
    """Moves with which a shortest solution begins."""
    remaining: UInt8[np.ndarray, " n"]
    """Moves of a shortest solution, 255 where there are more."""
    level: UInt16[np.ndarray, " n"]
    """Number of the level in its file."""


@compiled
def label_trajectory(cells, draws, node_limit):
    """Return boards, optimal moves and remaining moves along an optimal solution; nothing if none is found.

    `draws` are numbers in [0, 1), one for each state, that choose among its optimal moves.
    """
    most, size = draws.shape[0], cells.size
    boards, optimal = np.empty((most, *cells.shape), np.uint8), np.zeros((most, 4), np.bool_)
    remaining, made = np.zeros(most, np.int64), 0
    board, room, bits = board_of(cells), room_of(cells), bits_of(cells.size)
    player = np.flatnonzero(cells.ravel() & _PLAYER)[0]
    status, goal, stored, states = search(board, room, player, node_limit, True)
    if status != 0:
        return boards[:0], optimal[:0], remaining[:0]
    pushes = np.empty((4 * room.boxes.shape[0], 4), np.int64)
    on_way = _ways(board, room, states, stored, goal, pushes)
    fixed = cells & ~np.uint8(_BOX | _PLAYER)
    from_behind, queue = np.empty((pushes.shape[0], size), np.int16), np.empty(size, np.int16)
    box_at, state = np.zeros(size, np.bool_), np.int64(0)
    while made < most:
        player = unpack(states.keys[state], bits, room.boxes)
        if all_at(board.is_target, room.boxes):
            break
        count = _ahead(board, room, states, on_way, state, pushes)
        boxes = np.empty_like(room.boxes)
        unpack(states.keys[state], bits, boxes)
        # Distances to the cell behind each optimal push, from which all walks that lead there are read off.
        mark(box_at, boxes, True)
        for k in range(count):
            behind = board.neighbours[boxes[pushes[k, 0]], (pushes[k, 2] + 2) % 4]
            walk(behind, box_at, board.neighbours, from_behind[k], queue)
        left, reached = np.ones(count, np.bool_), np.int64(-1)
        left_moves = states.cost[goal] - states.cost[state]
        while made < most and reached < 0:
            boards[made] = fixed
            flat = boards[made].reshape(-1)
            for box in boxes:
                flat[box] |= _BOX
            flat[player] |= _PLAYER
            remaining[made] = left_moves
            for k in range(count):
                for direction in range(4):
                    optimal[made, direction] |= left[k] and _approaches(
                        board.neighbours, from_behind[k], player, pushes[k, 2], direction
                    )
            chosen = np.flatnonzero(optimal[made])
            direction = chosen[int(draws[made] * chosen.shape[0])]
            for k in range(count):
                if left[k] and from_behind[k, player] == 0 and pushes[k, 2] == direction:
                    reached = pushes[k, 3]
                left[k] &= _approaches(board.neighbours, from_behind[k], player, pushes[k, 2], direction)
            player = board.neighbours[player, direction]
            left_moves -= 1
            made += 1
        mark(box_at, boxes, False)
        state = reached
    return boards[:made], optimal[:made], remaining[:made]


@compiled
def _approaches(neighbours, from_behind, player, push, direction):
    """Whether a move is the push itself, or a step of a shortest walk to the cell behind it."""
    if from_behind[player] == 0:
        return direction == push
    further = neighbours[player, direction]
    return further >= 0 and from_behind[further] >= 0 and from_behind[further] == from_behind[player] - 1


@compiled
def _label_level(cells, draws, places, directions, node_limit, detour_limit, detour_states):
    """Return the labels of one level: its trajectory, then those after wrong moves, joined."""
    boards, optimal, remaining = label_trajectory(cells, draws, node_limit)
    after = np.empty(cells.shape, np.uint8)
    found = [(boards, optimal, remaining)]
    for k in range(places.shape[0] if len(boards) else 0):
        place = int(places[k] * len(boards))
        if optimal[place, directions[k]] or not _moved(boards[place], directions[k], after):
            continue
        more = label_trajectory(after, draws, detour_limit)
        found.append((more[0][:detour_states], more[1][:detour_states], more[2][:detour_states]))
    return found


def label_levels(
    levels: UInt8[np.ndarray, "n h w"], file: int, stopped: Callable[[], bool] = lambda: False
) -> Labels | None:
    """Return the labelled states of the levels of a file; None if `stopped` becomes true."""
    parts = []
    for number, cells in enumerate(levels):
        if stopped():
            return None
        rng = np.random.default_rng([file, number])
        drawn = rng.random(MOST_STATES), rng.random(DETOURS), rng.integers(4, size=DETOURS)
        found = _label_level(cells, *drawn, NODE_LIMIT, DETOUR_NODE_LIMIT, DETOUR_STATES)
        boards, optimal, remaining = (np.concatenate(column) for column in zip(*found, strict=True))
        parts.append(
            Labels(
                boards,
                optimal,
                np.minimum(remaining, 255).astype(np.uint8),
                np.full(len(boards), number, np.uint16),
            )
        )
    return Labels(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def read_labels(folder: pathlib.Path, files: range) -> Labels:
    """Return the labels of some files of levels together."""
    shards = [safetensors.numpy.load_file(folder / f"{file:03}.safetensors") for file in files]
    return Labels(*(np.concatenate([shard[name] for shard in shards]) for name in Labels._fields))


def write_shards(
    root: pathlib.Path,
    split: str,
    folder: pathlib.Path,
    files: range,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Write the shards that are missing, until `stopped` becomes true."""
    for file in files:
        path = folder / split / f"{file:03}.safetensors"
        if path.exists():
            continue
        begun, levels = time.process_time(), read_levels(root, split, range(file, file + 1))
        labels = label_levels(levels, file, stopped)
        if labels is None:
            return
        write_whole(path, safetensors.numpy.save(labels._asdict()))
        took = time.process_time() - begun
        print(
            f"{split} {path.stem}: {len(labels.cells)} states of {len(levels)} levels in {took:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("levels", type=pathlib.Path, help="folder of boxoban-levels")
    options.add_argument("out", type=pathlib.Path, help="folder of shards")
    options.add_argument("--split", default="unfiltered/train")
    options.add_argument(
        "--files", nargs=2, type=int, default=(0, 100), help="first, and the one after the last"
    )
    given = options.parse_args()
    write_shards(given.levels, given.split, given.out, range(*given.files))
