"""Move-optimal solutions of Boxoban. The searches are compiled, in `solver_kernel` and `optimal_pushes`."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

from looped_actor.puzzles.boxoban.optimal_pushes import optimal_pushes_kernel
from looped_actor.puzzles.boxoban.rules import BoxobanBoard, Cell
from looped_actor.puzzles.boxoban.solver_board import find_possible_pushes
from looped_actor.puzzles.boxoban.solver_kernel import solve_kernel
from looped_actor.puzzles.grid import Direction, check_size
from looped_actor.puzzles.search import DEFAULT_NODE_LIMIT, PackedSolution, SolveStatus
from looped_actor.utils.errors import UserError

MAX_BOXES = 255


class Push(NamedTuple):
    """One push. Boxes are numbered row by row, in the position at the start."""

    box: int
    direction: Direction


class BoxobanSolution(NamedTuple):
    """Result of a search. Moves and pushes are empty unless solved."""

    status: SolveStatus
    moves: tuple[Direction, ...]
    pushes: tuple[Push, ...]
    nodes: int
    """States that were stored."""


def solve(board: BoxobanBoard, *, node_limit: int = DEFAULT_NODE_LIMIT) -> BoxobanSolution:
    """Return a solution with the fewest moves, and of those one with the fewest pushes."""
    packed = solve_cells(board.to_cells(), node_limit)
    return BoxobanSolution(
        status=SolveStatus(packed.status),
        moves=tuple(Direction(int(move)) for move in packed.moves),
        pushes=tuple(Push(int(box), Direction(int(direction))) for box, direction in packed.pushes),
        nodes=packed.nodes,
    )


def solve_cells(cells: UInt8[np.ndarray, "h w"], node_limit: int = DEFAULT_NODE_LIMIT) -> PackedSolution:
    """Return the result of `solve` for a board of cell sums, as arrays."""
    _check(cells, node_limit)
    status, moves, pushes, nodes = solve_kernel(cells, node_limit)
    return PackedSolution(status=int(status), moves=moves, pushes=pushes, nodes=int(nodes))


def replay(board: BoxobanBoard, moves: Iterable[Any]) -> list[BoxobanBoard]:
    """Return all boards of a solution, the first and the last included.

    Moves are `Direction`s, or numbers of an array. Impossible moves change nothing.
    """
    boards = [board]
    for move in moves:
        boards.append(boards[-1].move(Direction(int(move))))
    return boards


def possible_pushes(cells: UInt8[np.ndarray, "h w"]) -> Bool[np.ndarray, " p"]:
    """Return whether each push, `4 x box + direction`, is possible now, perhaps after a walk."""
    check_size(*cells.shape)
    return find_possible_pushes(cells)


def optimal_pushes(
    cells: UInt8[np.ndarray, "h w"], count: int, *, node_limit: int = DEFAULT_NODE_LIMIT
) -> Bool[np.ndarray, "count p"] | None:
    """Return which pushes, `4 x box + direction`, are the first, second, ... in any move-optimal solution.

    None if the search meets its limit, or there is no solution.
    """
    _check(cells, node_limit)
    status, pushes = optimal_pushes_kernel(cells, count, node_limit)
    return pushes if status == SolveStatus.SOLVED.value else None


def _check(cells: UInt8[np.ndarray, "h w"], node_limit: int) -> None:
    if node_limit < 1:
        raise UserError(f"node_limit must be at least 1, not {node_limit}")
    check_size(*cells.shape)  # cells are numbered in 16 bits
    if int(((cells & Cell.BOX) != 0).sum()) > MAX_BOXES:
        raise UserError(f"more than {MAX_BOXES} boxes")
