"""Solutions as boards, one after the other: what a picture or an episode shows."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import UInt8

from looped_actor.puzzles.boxoban import solver as boxoban
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.catalogue import Board
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.rush_hour import solver as rush_hour
from looped_actor.puzzles.rush_hour.solver import Slide
from looped_actor.puzzles.solve_status import SolveStatus
from looped_actor.utils.errors import UserError


def played(board: Board, moves: Iterable[Any]) -> list[Board]:
    """All boards of a solution by the plain rules, first and last included; one step lies between two.

    Moves are those of the solvers: directions for Boxoban, (vehicle, distance) for Rush Hour.
    """
    if not isinstance(board, BoxobanBoard):
        return [*rush_hour.play(board, tuple(Slide(int(vehicle), int(far)) for vehicle, far in moves))]
    boards = [board]
    for move in moves:
        boards.append(boards[-1].move(Direction(int(move))))
    return [*boards]


def solution_cells(board: Board) -> UInt8[np.ndarray, "n h w"]:
    """All boards of an optimal solution but the last, which is solved, as cell sums."""
    return np.stack([one.to_cells() for one in solution_boards(board)[:-1]])


def solution_boards(board: Board) -> list[Board]:
    """All boards of an optimal solution."""
    solution = boxoban.solve(board) if isinstance(board, BoxobanBoard) else rush_hour.solve(board)
    if solution.status is not SolveStatus.SOLVED:
        raise UserError(f"this level is {solution.status.words}")
    return played(board, solution.moves)
