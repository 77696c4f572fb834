"""Optimal solutions of single boards, as the boards one after the other."""

import numpy as np
from jaxtyping import UInt8

from looped_actor.puzzles.catalogue import game_of
from looped_actor.puzzles.grid import Board
from looped_actor.puzzles.search import DEFAULT_NODE_LIMIT, SolveStatus
from looped_actor.utils.errors import UserError


def solution_boards(board: Board) -> list[Board]:
    """Return all boards of an optimal solution, one environment step between two."""
    game = game_of(board)
    solution = game.solve(board.to_cells(), DEFAULT_NODE_LIMIT)
    status = SolveStatus(solution.status)
    if status is not SolveStatus.SOLVED:
        raise UserError(f"this level is {status.words}")
    return game.replay(board, solution.moves)


def solution_cells(board: Board) -> UInt8[np.ndarray, "n h w"]:
    """Return all boards of an optimal solution except the last, which is solved, as cell sums."""
    return np.stack([one.to_cells() for one in solution_boards(board)[:-1]])
