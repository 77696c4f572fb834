"""All interesting Rush Hour positions of a small board without walls.

Each cluster has a packed board, on which no vehicle can slide left or up. Packed boards are enumerated line
by line, and each explores its cluster; a cluster with several is explored to the end from the one with the
least key. A position is interesting if it is the hardest of a solvable cluster and has no idle vehicle:
removing any makes the solution shorter.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from looped_actor.puzzles.hash_table import grow_rows
from looped_actor.puzzles.rush_hour.rules import RushHourBoard
from looped_actor.puzzles.rush_hour.solver import Layout, board_of
from looped_actor.puzzles.rush_hour.solver_kernel import (
    NO_LIMIT,
    bits_per_vehicle,
    distances_to_solved,
    explore_keys,
    find_hardest,
    has_idle_vehicle,
    masks_of,
    unpack,
)
from looped_actor.utils.compiled import compiled
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, no_progress

LENGTHS = (2, 3)
RED_LENGTH = 2
MAX_SIDE = 6
"""A 6x6 board has 243,502,785 packed boards, which takes days."""
_MAX_IN_LINE = 3
"""Most vehicles on a line."""


class Puzzle(NamedTuple):
    """An interesting position."""

    board: RushHourBoard
    moves: int
    """Moves of the optimal solution."""
    cluster_size: int


class Enumeration(NamedTuple):
    """All interesting positions, and counts."""

    boards: int
    """Packed boards."""
    clusters: int
    solvable: int
    """Clusters that have a solved board."""
    puzzles: tuple[Puzzle, ...]
    """Hardest first."""


class _Line(NamedTuple):
    """All choices of vehicles for one line."""

    mask: np.ndarray
    """Cells of the vehicles of each choice."""
    required: np.ndarray
    """Cells before the vehicles of each choice, which others must take: the board is packed."""
    vehicles: np.ndarray
    """Offset and length of each vehicle, shape [choices, vehicles, 2]; a length of 0 is no vehicle."""


def red_row_of(height: int) -> int:
    """Return the red car's usual row: the third of six or five, the second of four."""
    return (height - 1) // 2


def enumerate_positions(
    height: int,
    width: int,
    *,
    red_row: int | None = None,
    progress: Progress = no_progress,
) -> Enumeration:
    """Return all interesting positions of a board of this size."""
    if not (3 <= height <= MAX_SIDE and 3 <= width <= MAX_SIDE):
        raise UserError(f"boards of 3x3 to {MAX_SIDE}x{MAX_SIDE} are enumerated, not {height}x{width}")
    red_row = red_row_of(height) if red_row is None else red_row
    if not 0 <= red_row < height:
        raise UserError(f"the red car's row {red_row} is not on a board of {height} rows, counted from 0")
    lines = _make_lines(height, width, red_row)
    counts, puzzles = np.zeros(3, np.int64), []
    parts = [(red, second) for red in range(len(lines[0].mask)) for second in range(len(lines[1].mask))]
    stacked = _stack(lines)
    for done, (red, second) in enumerate(parts):
        progress(done, len(parts))
        part_counts, found, facts = _enumerate_part(height, width, red_row, *stacked, red, second)
        counts += part_counts
        for vehicles, (total, moves, size) in zip(found, facts, strict=True):
            board = _make_board(height, width, vehicles[:total])
            puzzles.append(Puzzle(board, int(moves), int(size)))
    progress(len(parts), len(parts))
    puzzles.sort(key=lambda p: (-p.moves, p.cluster_size, p.board.flat_text))
    boards, clusters, solvable = (int(count) for count in counts)
    return Enumeration(boards=boards, clusters=clusters, solvable=solvable, puzzles=tuple(puzzles))


def _make_board(height: int, width: int, vehicles: np.ndarray) -> RushHourBoard:
    horizontal, line, length, offset = vehicles.T
    layout = Layout(
        walls=np.zeros((height, width), np.bool_),
        horizontal=horizontal != 0,
        line=line,
        length=length,
        offset=offset,
    )
    return board_of(layout, offset)


def _make_lines(height: int, width: int, red_row: int) -> list[_Line]:
    """Return all lines: the red car's row, the other rows, the columns."""
    rows = [red_row, *(row for row in range(height) if row != red_row)]
    lines = []
    for row in rows:
        cells = [row * width + column for column in range(width)]
        choices = list(_fillings(width))
        if row == red_row:
            choices = [[(offset, RED_LENGTH)] for offset in range(width - RED_LENGTH + 1)]
        lines.append(_make_line(cells, choices))
    for column in range(width):
        cells = [row * width + column for row in range(height)]
        lines.append(_make_line(cells, list(_fillings(height))))
    return lines


def _fillings(span: int) -> Iterator[list[tuple[int, int]]]:
    """Yield all choices of vehicles, (offset, length), that leave a cell of a line free."""

    def fill(start: int) -> Iterator[list[tuple[int, int]]]:
        yield []
        for offset in range(start, span):
            for length in LENGTHS:
                if offset + length <= span:
                    for rest in fill(offset + length):
                        yield [(offset, length), *rest]

    return (vehicles for vehicles in fill(0) if sum(length for _, length in vehicles) < span)


def _make_line(cells: list[int], choices: list[list[tuple[int, int]]]) -> _Line:
    masks, required = [], []
    vehicles = np.zeros((len(choices), _MAX_IN_LINE, 2), np.int64)
    for choice, placed in enumerate(choices):
        mask = sum(1 << cells[offset + k] for offset, length in placed for k in range(length))
        before = sum(1 << cells[offset - 1] for offset, _ in placed if offset > 0)
        masks.append(mask)
        required.append(before & ~mask)
        for i, (offset, length) in enumerate(placed):
            vehicles[choice, i] = offset, length
    return _Line(np.array(masks, np.uint64), np.array(required, np.uint64), vehicles)


def _stack(lines: list[_Line]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the number of choices of each line, and the lines as arrays of one size."""
    most = max(len(line.mask) for line in lines)
    mask, required = np.zeros((len(lines), most), np.uint64), np.zeros((len(lines), most), np.uint64)
    vehicles = np.zeros((len(lines), most, _MAX_IN_LINE, 2), np.int64)
    for i, line in enumerate(lines):
        mask[i, : len(line.mask)], required[i, : len(line.mask)] = line.mask, line.required
        vehicles[i, : len(line.mask)] = line.vehicles
    return np.array([len(line.mask) for line in lines]), mask, required, vehicles


@compiled
def _place_vehicles(chosen, vehicles, height, red_row, horizontal, line, length, offset):
    """Write the vehicles of one choice for each line, and return their number."""
    total = 0
    for i in range(chosen.shape[0]):
        is_row = i < height
        for k in range(_MAX_IN_LINE):
            if vehicles[i, chosen[i], k, 1] == 0:
                break
            horizontal[total] = is_row
            if i == 0:
                line[total] = red_row
            elif is_row:
                line[total] = i - 1 if i <= red_row else i
            else:
                line[total] = i - height
            offset[total] = vehicles[i, chosen[i], k, 0]
            length[total] = vehicles[i, chosen[i], k, 1]
            total += 1
    return total


@compiled
def _enumerate_part(height, width, red_row, choices, mask, required, vehicles, red, second):
    """Enumerate all boards with these choices on the first two lines.

    Return the counts of boards, clusters and solvable clusters, and of each puzzle the vehicles (horizontal,
    line, length, offset) and the facts (number of vehicles, moves, cluster size).
    """
    lines = choices.shape[0]
    walls = np.zeros((height, width), np.bool_)
    counts = np.zeros(3, np.int64)
    horizontal, line = np.empty(64, np.bool_), np.empty(64, np.int64)
    length, offset = np.empty(64, np.int64), np.empty(64, np.int64)
    at = np.empty(64, np.int64)
    found, facts, puzzles = np.empty((16, 64, 4), np.int8), np.empty((16, 3), np.int64), 0

    # The choice of each line, and the cells that the lines before it take and require.
    chosen = np.zeros(lines, np.int64)
    taken = np.zeros(lines + 1, np.uint64)
    wanted = np.zeros(lines + 1, np.uint64)
    if mask[0, red] & mask[1, second]:
        return counts, found[:0], facts[:0]
    chosen[0], chosen[1] = red, second
    taken[2] = mask[0, red] | mask[1, second]
    wanted[2] = required[0, red] | required[1, second]
    depth = 2
    chosen[depth] = 0
    while depth >= 2:
        if depth == lines or chosen[depth] == choices[depth]:
            if depth == lines and taken[depth] & wanted[depth] == wanted[depth]:
                total = _place_vehicles(chosen, vehicles, height, red_row, horizontal, line, length, offset)
                fixed = horizontal[:total], line[:total], length[:total]
                moves, size = _examine(walls, *fixed, offset[:total], at[:total], counts)
                if moves > 0:
                    if puzzles == found.shape[0]:
                        found, facts = grow_rows(found, 2 * puzzles), grow_rows(facts, 2 * puzzles)
                    for i in range(total):
                        found[puzzles, i, 0], found[puzzles, i, 1] = horizontal[i], line[i]
                        found[puzzles, i, 2], found[puzzles, i, 3] = length[i], at[i]
                    facts[puzzles, 0], facts[puzzles, 1], facts[puzzles, 2] = total, moves, size
                    puzzles += 1
            depth -= 1
            chosen[depth] += 1
            continue
        new = mask[depth, chosen[depth]]
        if new & taken[depth]:  # vehicles would overlap
            chosen[depth] += 1
            continue
        taken[depth + 1] = taken[depth] | new
        wanted[depth + 1] = wanted[depth] | required[depth, chosen[depth]]
        depth += 1
        if depth < lines:
            chosen[depth] = 0
    return counts, found[:puzzles], facts[:puzzles]


@compiled
def _examine(walls, horizontal, line, length, offset, at, counts):
    """Count a packed board, and return the moves and the cluster size of the puzzle that it leads to.

    Moves are 0 if there is no puzzle, or another packed board of the cluster leads to it. The offsets of the
    puzzle's vehicles are written to `at`.
    """
    counts[0] += 1
    wall_mask, masks = masks_of(walls, horizontal, line, length)
    keys, count, complete, table = explore_keys(wall_mask, masks, offset, NO_LIMIT, True)
    if not complete:
        return 0, 0
    counts[1] += 1
    distance = distances_to_solved(wall_mask, masks, keys, count, table)
    moves = distance.max()
    if moves < 0:
        return 0, 0
    counts[2] += 1
    worst = find_hardest(masks, horizontal, keys[:count], distance)
    if moves == 0 or has_idle_vehicle(wall_mask, masks, keys, distance, table, worst):
        return 0, 0
    unpack(keys[worst], bits_per_vehicle(max(walls.shape)), at)
    return moves, count
