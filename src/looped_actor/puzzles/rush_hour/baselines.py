"""Rush Hour players without a net: random slides, and greedy ones."""

import numpy as np

from looped_actor.puzzles.rush_hour.rules import RushHourBoard


def draw_action(board: RushHourBoard, random: np.random.Generator) -> int:
    """Return a cell and a way drawn uniformly; most cells have nothing to slide."""
    row, column = int(random.integers(board.height)), int(random.integers(board.width))
    return 2 * (row * board.width + column) + int(random.integers(2))


def play_greedily(board: RushHourBoard, time_limit: int) -> int | None:
    """Return the steps in which a greedy player solves a board, or None.

    It takes the slide after which the potential of the rewards is highest, and gives up if none increases it.
    """
    for step in range(1, time_limit + 1):
        after = [board.slide(v.cells()[0], forward) for v in board.vehicles for forward in (False, True)]
        best = max(after, key=lambda board: board.potential)
        if best.potential <= board.potential:
            return None
        board = best
        if board.solved:
            return step
    return None
