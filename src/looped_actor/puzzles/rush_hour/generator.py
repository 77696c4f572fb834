"""Rush Hour levels from random boards: the hardest board of each cluster.

A candidate is a random board. Its cluster is explored to the end, and the board farthest from solved becomes
the level: its optimal length is known exactly, and a cluster gives one level only. The public database is
made in the same way, except that it keeps minimal boards only; levels here may have idle vehicles.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from looped_actor.puzzles.random_numbers import draw_below, make_random_state
from looped_actor.puzzles.rush_hour.rules import Cell
from looped_actor.puzzles.rush_hour.solver import max_vehicles
from looped_actor.puzzles.rush_hour.solver_kernel import (
    NO_LIMIT,
    bits_per_vehicle,
    distances_to_solved,
    explore_keys,
    find_hardest,
    masks_of,
    unpack,
    vehicles_of,
)
from looped_actor.utils.compiled import compiled
from looped_actor.utils.errors import UserError

CANDIDATES_PER_BATCH = 4000


@dataclass(frozen=True)
class RushHourRecipe:
    """Options of the generator. Equal recipes give equal levels."""

    height: int = 6
    """Rows."""
    width: int = 6
    """Columns."""
    min_moves: int = 1
    """Minimum optimal length, in moves of any distance."""
    max_moves: int = 15
    """Maximum optimal length."""
    min_vehicles: int = 8
    """Minimum number of vehicles, including the red car. A board without room for more has fewer."""
    max_vehicles: int = 13
    """Maximum number of vehicles, including the red car."""
    max_walls: int = 0
    """Maximum number of walls; their number is drawn uniformly."""
    largest_cluster: int = 10_000
    """Maximum number of boards of a cluster. Larger clusters cost most of the time, and are not harder."""
    seed: int = 0
    """Seed of all levels."""

    def __post_init__(self) -> None:
        if not (4 <= self.height <= 8 and 4 <= self.width <= 8):
            raise UserError(f"boards of 4x4 to 8x8 are generated, not {self.height}x{self.width}")
        if not 1 <= self.min_moves <= self.max_moves:
            raise UserError(f"no length is at least {self.min_moves} (or 1) and at most {self.max_moves}")
        most = max_vehicles((self.height, self.width))
        if not 2 <= self.min_vehicles <= self.max_vehicles <= most:
            problem = f"{self.min_vehicles} to {self.max_vehicles} vehicles"
            raise UserError(f"{problem}; from 2 to {most} are possible on this board")
        if not 0 <= self.max_walls <= self.height * self.width // 4:
            raise UserError(f"max_walls must be 0 to {self.height * self.width // 4}, not {self.max_walls}")
        if self.largest_cluster < 1 or not 0 <= self.seed < 2**63:
            raise UserError("largest_cluster must be at least 1 and seed 0 to 2**63 - 1")

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that decides the levels, in the order in which banks name it."""
        return asdict(self)


def generate_batch(task: tuple[RushHourRecipe, int]) -> dict[str, np.ndarray]:
    """Return the levels among one batch of candidates.

    Columns: cells, moves, cluster_size, and an id of the cluster.
    """
    recipe, batch = task
    cells, moves, sizes, clusters = _generate(
        recipe.height,
        recipe.width,
        recipe.min_moves,
        recipe.max_moves,
        recipe.min_vehicles,
        recipe.max_vehicles,
        recipe.max_walls,
        recipe.largest_cluster,
        recipe.seed,
        batch * CANDIDATES_PER_BATCH,
        (batch + 1) * CANDIDATES_PER_BATCH,
    )
    return {"cells": cells, "moves": moves, "cluster_size": sizes, "cluster": clusters}


_RED, _WALL, _HORIZONTAL, _VERTICAL = int(Cell.RED), int(Cell.WALL), int(Cell.HORIZONTAL), int(Cell.VERTICAL)
_RIGHT, _DOWN, _OCCUPIED = int(Cell.LINK_RIGHT), int(Cell.LINK_DOWN), int(Cell.OCCUPIED)


@compiled
def _generate(height, width, least, most, fewest, many, max_walls, limit, seed, first, last):
    cells = np.zeros((last - first, height, width), np.uint8)
    moves, sizes = np.zeros(last - first, np.uint16), np.zeros(last - first, np.uint32)
    clusters = np.zeros(last - first, np.uint64)
    board = np.zeros((height, width), np.uint8)
    kept = 0
    for candidate in range(first, last):
        random = make_random_state(seed, candidate)
        _random_board(random, fewest, many, max_walls, board)
        walls, horizontal, line, length, offset = vehicles_of(board)
        wall_mask, masks = masks_of(walls, horizontal, line, length)
        keys, count, complete, table = explore_keys(wall_mask, masks, offset, limit)
        if not complete:
            continue
        distance = distances_to_solved(wall_mask, masks, keys, count, table)
        longest = distance.max()
        if not least <= longest <= most:
            continue
        worst = find_hardest(masks, horizontal, keys[:count], distance)
        bits = bits_per_vehicle(max(height, width))
        unpack(keys[:count].min(), bits, offset)
        _write_board(walls, horizontal, line, length, offset, board)
        clusters[kept] = _hash_board(board)
        unpack(keys[worst], bits, offset)
        _write_board(walls, horizontal, line, length, offset, cells[kept])
        moves[kept], sizes[kept] = longest, count
        kept += 1
    return cells[:kept].copy(), moves[:kept].copy(), sizes[:kept].copy(), clusters[:kept].copy()


@compiled
def _random_board(random, fewest, many, max_walls, board):
    """Write a random board: the red car, walls, and vehicles at random places that are free."""
    height, width = board.shape
    board[:] = 0
    red_row = (height - 1) // 2
    # The red car is drawn at the left border: the cluster has it wherever it can be.
    _place(board, red_row, 0, 2, True, _RED)
    for _ in range(draw_below(random, max_walls + 1)):
        row, column = draw_below(random, height), draw_below(random, width)
        if board[row, column] == 0 and row != red_row:
            board[row, column] = _OCCUPIED | _WALL
    wanted, vehicles = fewest + draw_below(random, many - fewest + 1), 1
    for _ in range(20 * wanted):
        if vehicles == wanted:
            break
        horizontal = draw_below(random, 2) == 0
        length = 2 if draw_below(random, 3) > 0 else 3
        lines, span = (height, width) if horizontal else (width, height)
        line, offset = draw_below(random, lines), draw_below(random, span - length + 1)
        if horizontal and line == red_row:
            continue
        row, column = (line, offset) if horizontal else (offset, line)
        free = True
        for k in range(length):
            free &= board[row + (0 if horizontal else k), column + (k if horizontal else 0)] == 0
        if free:
            _place(board, row, column, length, horizontal, 0)
            vehicles += 1


@compiled
def _place(board, row, column, length, horizontal, red):
    kind = _OCCUPIED | red | (_HORIZONTAL if horizontal else _VERTICAL)
    link = _RIGHT if horizontal else _DOWN
    for k in range(length):
        r, c = row + (0 if horizontal else k), column + (k if horizontal else 0)
        board[r, c] = kind | (link if k < length - 1 else 0)


@compiled
def _write_board(walls, horizontal, line, length, offset, board):
    height, width = walls.shape
    for row in range(height):
        for column in range(width):
            board[row, column] = _OCCUPIED | _WALL if walls[row, column] else 0
    for i in range(line.shape[0]):
        row, column = (line[i], offset[i]) if horizontal[i] else (offset[i], line[i])
        _place(board, row, column, length[i], horizontal[i], _RED if i == 0 else 0)


@compiled
def _hash_board(board):
    """Return 64 bits. In one of ten million banks of 2 million clusters, two of them are equal."""
    h = np.uint64(0xCBF29CE484222325)
    for cell in board.ravel():
        h = (h ^ np.uint64(cell)) * np.uint64(0x100000001B3)
        h ^= h >> np.uint64(29)
    return h * np.uint64(0xBF58476D1CE4E5B9)


@compiled
def cluster_ids(cells):
    """Return the id of each board's cluster: equal for boards that can be reached from each other."""
    ids = np.empty(cells.shape[0], np.uint64)
    board = np.empty(cells.shape[1:], np.uint8)
    for i in range(cells.shape[0]):
        walls, horizontal, line, length, offset = vehicles_of(cells[i])
        wall_mask, masks = masks_of(walls, horizontal, line, length)
        keys, count, _, _ = explore_keys(wall_mask, masks, offset, NO_LIMIT)
        unpack(keys[:count].min(), bits_per_vehicle(max(walls.shape)), offset)
        _write_board(walls, horizontal, line, length, offset, board)
        ids[i] = _hash_board(board)
    return ids
