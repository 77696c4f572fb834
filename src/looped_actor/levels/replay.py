"""Solutions as boards, one after the other: what a picture or an episode shows."""

from looped_actor.games import BoxobanBoard, RushHourBoard
from looped_actor.games.catalogue import Board
from looped_actor.solvers import SolveStatus, boxoban, rush_hour


def solution_boards(board: Board) -> list[Board]:
    """All boards of an optimal solution, the first and the last included; one step lies between two."""
    if isinstance(board, BoxobanBoard):
        solution = boxoban.solve(board)
        boards = [board]
        for move in solution.moves:
            boards.append(boards[-1].move(move))
    else:
        assert isinstance(board, RushHourBoard)
        solution = rush_hour.solve(board)
        boards = rush_hour.play(board, solution.moves)
    if solution.status is not SolveStatus.SOLVED:
        raise ValueError(f"this level is {solution.status.name.lower().replace('_', ' ')}")
    return list(boards)
