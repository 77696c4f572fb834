"""Rush Hour levels without a database: random boards, each made as hard as its cluster allows.

A candidate is a random board. Its cluster is explored to the end, and the board farthest from solved
becomes the level; so its optimal length is known exactly, and a cluster gives one level only. That is how
the public database is made too, except that it keeps minimal boards only: ours may have idle vehicles.
"""

from dataclasses import dataclass

import numpy as np

from looped_actor.puzzles.random_numbers import below, seeded
from looped_actor.puzzles.rush_hour.optimal_moves import vehicles_of
from looped_actor.puzzles.rush_hour.rules import Cell
from looped_actor.puzzles.rush_hour.solver import most_vehicles
from looped_actor.puzzles.rush_hour.solver_kernel import (
    bits_per_vehicle,
    distances_to_solved,
    explore_keys,
    hardest,
    masks_of,
    unpack,
)
from looped_actor.utils.compiled import compiled
from looped_actor.utils.errors import UserError

CANDIDATES_PER_BATCH = 4000


@dataclass(frozen=True)
class RushHourRecipe:
    """What to generate. Equal recipes make equal levels."""

    height: int = 6
    """Rows."""
    width: int = 6
    """Columns."""
    min_moves: int = 1
    """The shortest optimal length that is kept."""
    max_moves: int = 15
    """The longest."""
    min_vehicles: int = 8
    """The fewest to begin with, including the red car."""
    max_vehicles: int = 13
    """Including the red car. Fewer stand on a board too full for more."""
    max_walls: int = 0
    """A board has any number of walls up to this."""
    largest_cluster: int = 10_000
    """Boards of larger clusters are dropped: they cost most of the time, and are not harder."""
    seed: int = 0
    """Seed of the levels."""

    def __post_init__(self) -> None:
        if not (4 <= self.height <= 8 and 4 <= self.width <= 8):
            raise UserError(f"boards of 4x4 to 8x8 are generated, not {self.height}x{self.width}")
        if not 1 <= self.min_moves <= self.max_moves:
            raise UserError(f"no length is at least {self.min_moves} (or 1) and at most {self.max_moves}")
        most = most_vehicles((self.height, self.width))
        if not 2 <= self.min_vehicles <= self.max_vehicles <= most:
            problem = f"{self.min_vehicles} to {self.max_vehicles} vehicles"
            raise UserError(f"{problem}; from 2 to {most} are possible on this board")
        if not 0 <= self.max_walls <= self.height * self.width // 4:
            raise UserError(f"max_walls must be 0 to {self.height * self.width // 4}, not {self.max_walls}")
        if self.largest_cluster < 1 or not 0 <= self.seed < 2**63:
            raise UserError("largest_cluster must be at least 1 and seed 0 to 2**63 - 1")


def generate_batch(task: tuple[RushHourRecipe, int]) -> dict[str, np.ndarray]:
    """The levels among one batch of candidates: cells, moves, cluster_size, and an id of the cluster."""
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


def cluster_ids(cells: np.ndarray) -> np.ndarray:
    """The id of the cluster of each board, explored anew: equal exactly where one can reach the other."""
    return _cluster_ids(cells)


_RED, _WALL, _HORIZONTAL, _VERTICAL = int(Cell.RED), int(Cell.WALL), int(Cell.HORIZONTAL), int(Cell.VERTICAL)
_RIGHT, _DOWN, _OCCUPIED = int(Cell.LINK_RIGHT), int(Cell.LINK_DOWN), int(Cell.OCCUPIED)
_NO_LIMIT = 1 << 31


@compiled
def _generate(height, width, least, most, fewest, many, max_walls, limit, seed, first, last):
    cells = np.zeros((last - first, height, width), np.uint8)
    moves, sizes = np.zeros(last - first, np.uint16), np.zeros(last - first, np.uint32)
    clusters = np.zeros(last - first, np.uint64)
    board = np.zeros((height, width), np.uint8)
    kept = 0
    for candidate in range(first, last):
        random = seeded(seed, candidate)
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
        worst = hardest(masks, horizontal, keys[:count], distance)
        bits = bits_per_vehicle(max(height, width))
        unpack(keys[:count].min(), bits, offset)
        _draw_board(walls, horizontal, line, length, offset, board)
        clusters[kept] = _hash(board)
        unpack(keys[worst], bits, offset)
        _draw_board(walls, horizontal, line, length, offset, cells[kept])
        moves[kept], sizes[kept] = longest, count
        kept += 1
    return cells[:kept].copy(), moves[:kept].copy(), sizes[:kept].copy(), clusters[:kept].copy()


@compiled
def _random_board(random, fewest, many, max_walls, board):
    """Fill in a red car, walls, and vehicles at random places where there is room."""
    height, width = board.shape
    board[:] = 0
    red_row = (height - 1) // 2
    # Solving needs no red car to its left, so it starts there; its cluster has it wherever it can be.
    _place(board, red_row, 0, 2, True, _RED)
    for _ in range(below(random, max_walls + 1)):
        row, column = below(random, height), below(random, width)
        if board[row, column] == 0 and row != red_row:
            board[row, column] = _OCCUPIED | _WALL
    wanted, vehicles = fewest + below(random, many - fewest + 1), 1
    for _ in range(20 * wanted):
        if vehicles == wanted:
            break
        horizontal = below(random, 2) == 0
        length = 2 if below(random, 3) > 0 else 3
        span = width if horizontal else height
        line, offset = below(random, height if horizontal else width), below(random, span - length + 1)
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
def _draw_board(walls, horizontal, line, length, offset, board):
    height, width = walls.shape
    for row in range(height):
        for column in range(width):
            board[row, column] = _OCCUPIED | _WALL if walls[row, column] else 0
    for i in range(line.shape[0]):
        row, column = (line[i], offset[i]) if horizontal[i] else (offset[i], line[i])
        _place(board, row, column, length[i], horizontal[i], _RED if i == 0 else 0)


@compiled
def _hash(board):
    """64 bits of a board: two in 2 million collide once in ten million banks."""
    h = np.uint64(0xCBF29CE484222325)
    for cell in board.ravel():
        h = (h ^ np.uint64(cell)) * np.uint64(0x100000001B3)
        h ^= h >> np.uint64(29)
    return h * np.uint64(0xBF58476D1CE4E5B9)


@compiled
def _cluster_ids(cells):
    ids = np.empty(cells.shape[0], np.uint64)
    board = np.empty(cells.shape[1:], np.uint8)
    for i in range(cells.shape[0]):
        walls, horizontal, line, length, offset = vehicles_of(cells[i])
        wall_mask, masks = masks_of(walls, horizontal, line, length)
        keys, count, _, _ = explore_keys(wall_mask, masks, offset, _NO_LIMIT)
        unpack(keys[:count].min(), bits_per_vehicle(max(walls.shape)), offset)
        _draw_board(walls, horizontal, line, length, offset, board)
        ids[i] = _hash(board)
    return ids
