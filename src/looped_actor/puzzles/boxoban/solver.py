"""Move-optimal solutions of Boxoban.

The search itself is in `boxoban_kernel`; this is its face.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

from looped_actor.puzzles.boxoban.rules import BoxobanBoard, Cell
from looped_actor.puzzles.boxoban.solver_board import pushes_kernel
from looped_actor.puzzles.boxoban.solver_kernel import solve_kernel
from looped_actor.puzzles.boxoban.solver_paths import ways_kernel
from looped_actor.puzzles.grid import Direction, check_sides
from looped_actor.puzzles.solve_status import DEFAULT_NODE_LIMIT, SolveStatus
from looped_actor.utils.errors import UserError


class Push(NamedTuple):
    """One push. Boxes are numbered by where they stand at the start, row by row."""

    box: int
    direction: Direction


class BoxobanSolution(NamedTuple):
    """The outcome of a search; moves and pushes are empty unless solved."""

    status: SolveStatus
    moves: tuple[Direction, ...]
    pushes: tuple[Push, ...]
    nodes: int
    """States that were stored."""


class PackedSolution(NamedTuple):
    """A solution as arrays: what travels between processes and goes into files."""

    status: int
    moves: UInt8[np.ndarray, " m"]
    pushes: UInt8[np.ndarray, "p 2"]
    nodes: int


def solve(board: BoxobanBoard, *, node_limit: int = DEFAULT_NODE_LIMIT) -> BoxobanSolution:
    """A solution with the fewest moves, from any position."""
    packed = solve_cells(board.to_cells(), node_limit=node_limit)
    return BoxobanSolution(
        SolveStatus(packed.status),
        tuple(Direction(int(move)) for move in packed.moves),
        tuple(Push(int(box), Direction(int(direction))) for box, direction in packed.pushes),
        packed.nodes,
    )


def possible_pushes(cells: UInt8[np.ndarray, "h w"]) -> Bool[np.ndarray, " p"]:
    """Whether each push, `4 x box + direction`, can be made at once: after a walk, and without collision."""
    check_sides(*cells.shape)
    return pushes_kernel(cells)


def solve_cells(cells: UInt8[np.ndarray, "h w"], *, node_limit: int = DEFAULT_NODE_LIMIT) -> PackedSolution:
    """`solve` for a board as cell sums."""
    _check(cells, node_limit)
    status, moves, pushes, nodes = solve_kernel(cells, node_limit)
    return PackedSolution(int(status), moves, pushes, int(nodes))


def optimal_pushes(
    cells: UInt8[np.ndarray, "h w"], count: int, *, node_limit: int = DEFAULT_NODE_LIMIT
) -> Bool[np.ndarray, "count p"] | None:
    """Which pushes, `4 x box + direction`, come first, second, ... in some solution with the fewest moves.

    None where the search meets its limit, or there is no solution.
    """
    _check(cells, node_limit)
    status, pushes = ways_kernel(cells, count, node_limit)
    return pushes if status == SolveStatus.SOLVED.value else None


def _check(cells: UInt8[np.ndarray, "h w"], node_limit: int) -> None:
    """What a search can be asked for."""
    if node_limit < 1:
        raise UserError(f"node_limit must be at least 1, not {node_limit}")
    check_sides(*cells.shape)  # cells are numbered in 16 bits
    if int(((cells & Cell.BOX) != 0).sum()) > 255:
        raise UserError("more than 255 boxes")
