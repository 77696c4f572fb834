"""Optimal moves of many Boxoban states, compiled."""

import numpy as np

from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.boxoban.solver_kernel import solve_kernel
from looped_actor.utils.compiled import compiled

_WALL, _BOX, _PLAYER = int(Cell.WALL), int(Cell.BOX), int(Cell.PLAYER)


@compiled
def label_boxoban(boards, node_limit):
    """Return the optimal moves of each board, and the number of moves of its solution or -1.

    A move is optimal if the board after it is one move nearer to being solved. The solution of a board gives
    one optimal move; for each of the others, the board after it is solved.
    """
    count = boards.shape[0]
    optimal, remaining = np.zeros((count, 4), np.bool_), np.full(count, -1, np.int32)
    after = np.empty(boards.shape[1:], np.uint8)
    for i in range(count):
        status, moves, _, _ = solve_kernel(boards[i], node_limit)
        if status != 0:
            continue
        remaining[i] = moves.shape[0]
        if remaining[i] == 0:
            continue
        optimal[i, moves[0]] = True
        for direction in range(4):
            if direction == moves[0] or not move_player(boards[i], direction, after):
                continue
            status, rest, _, _ = solve_kernel(after, node_limit)
            optimal[i, direction] = status == 0 and rest.shape[0] == remaining[i] - 1
    return optimal, remaining


@compiled
def demonstrate_boxoban(boards, steps, node_limit):
    """Return the first moves of a solution of each board, shape [boards, steps], and -1 after its end."""
    actions = np.full((boards.shape[0], steps), -1, np.int32)
    for i in range(boards.shape[0]):
        _, moves, _, _ = solve_kernel(boards[i], node_limit)
        known = min(steps, moves.shape[0])
        actions[i, :known] = moves[:known]
    return actions


@compiled
def move_player(cells, direction, after):
    """Write the board after a move into `after`. Return False if the move changes nothing."""
    height, width = cells.shape
    after[:] = cells
    player = np.flatnonzero(cells.ravel() & _PLAYER)[0]
    dr, dc = (direction == 2) - (direction == 0), (direction == 1) - (direction == 3)
    r, c = player // width + dr, player % width + dc
    if not (0 <= r < height and 0 <= c < width) or cells[r, c] & _WALL:
        return False
    if cells[r, c] & _BOX:
        br, bc = r + dr, c + dc
        if not (0 <= br < height and 0 <= bc < width) or cells[br, bc] & (_WALL | _BOX):
            return False
        after[r, c] ^= _BOX
        after[br, bc] ^= _BOX
    after[player // width, player % width] ^= _PLAYER
    after[r, c] ^= _PLAYER
    return True
