"""Boxoban players without a net: random moves, and greedy pushes."""

from collections import deque
from dataclasses import replace

import numpy as np

from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.grid import Direction, Position, step_from


def draw_action(board: BoxobanBoard, random: np.random.Generator) -> int:
    """Return a move drawn uniformly."""
    return int(random.integers(len(Direction)))


def play_greedily(board: BoxobanBoard, time_limit: int) -> int | None:
    """Return the steps in which a greedy player solves a board, or None.

    It considers all pushes that it can walk to and that bring a box nearer to its nearest free target, and
    takes the one that leaves the box nearest to it; ties go to the shortest walk. It gives up if there is
    none.
    """
    steps = 0
    while steps < time_limit:
        walks = _walking_distances(board)
        options = []
        for box in sorted(board.boxes - board.targets):
            free = board.targets - board.boxes
            before = min(_distance(box, target) for target in free)
            for direction in Direction:
                behind, ahead = step_from(box, direction, -1), step_from(box, direction)
                if behind not in walks or ahead in board.boxes or board.is_wall(ahead):
                    continue
                left = min(_distance(ahead, target) for target in free)
                if left < before:
                    options.append((left, walks[behind], box, direction))
        if not options:
            return None
        _, walk, box, direction = min(options)
        steps += walk + 1
        board = replace(board, player=step_from(box, direction, -1)).move(direction)
        if board.solved:
            return steps if steps <= time_limit else None
    return None


def _walking_distances(board: BoxobanBoard) -> dict[Position, int]:
    """Return the steps to every cell that the player can walk to without pushing."""
    walks, queue = {board.player: 0}, deque([board.player])
    while queue:
        here = queue.popleft()
        for direction in Direction:
            to = step_from(here, direction)
            if to not in walks and to not in board.boxes and not board.is_wall(to):
                walks[to] = walks[here] + 1
                queue.append(to)
    return walks


def _distance(a: Position, b: Position) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])
