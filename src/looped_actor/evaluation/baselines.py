"""Policies that do not think, by the plain rules: what a learned one must be better than."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from looped_actor.evaluation.intervals import wilson
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.catalogue import Board
from looped_actor.puzzles.grid import Direction, Position, step_from
from looped_actor.puzzles.rush_hour.rules import RushHourBoard

Baseline = Callable[[Board, int, np.random.Generator], int | None]
"""A level, its time limit and a source of chance, to the steps in which it was solved, or None."""


def play_at_random(board: Board, time_limit: int, random: np.random.Generator) -> int | None:
    """Any action, each as likely."""
    for step in range(1, time_limit + 1):
        if isinstance(board, BoxobanBoard):
            board = board.move(Direction(random.integers(4)))
        else:
            cell = (int(random.integers(board.height)), int(random.integers(board.width)))
            board = board.slide(cell, bool(random.integers(2)))
        if board.solved:
            return step
    return None


def play_greedily(board: Board, time_limit: int, random: np.random.Generator) -> int | None:
    """What brings the goal nearer at once, until nothing does.

    Boxoban: of all pushes that can be walked to and bring a box nearer to its nearest free target, the
    one that leaves the shortest way; walking is perfect. Rush Hour: the slide that adds most to the
    shaping potential, minus occupied cells ahead of the red car, minus its distance to the exit.
    """
    play = _greedy_boxoban if isinstance(board, BoxobanBoard) else _greedy_rush_hour
    return play(board, time_limit)  # type: ignore[arg-type]


def _greedy_boxoban(board: BoxobanBoard, time_limit: int) -> int | None:
    steps = 0
    while steps < time_limit:
        walks = _walks(board)
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
        at = step_from(box, direction, -1)
        board = BoxobanBoard(board.height, board.width, board.walls, board.targets, board.boxes, at).move(
            direction
        )
        if board.solved:
            return steps if steps <= time_limit else None
    return None


def _walks(board: BoxobanBoard) -> dict[Position, int]:
    """Every cell that the player can walk to, and in how many steps."""
    walks, ahead = {board.player: 0}, deque([board.player])
    while ahead:
        at = ahead.popleft()
        for direction in Direction:
            to = step_from(at, direction)
            if to not in walks and to not in board.boxes and not board.is_wall(to):
                walks[to] = walks[at] + 1
                ahead.append(to)
    return walks


def _distance(a: Position, b: Position) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _greedy_rush_hour(board: RushHourBoard, time_limit: int) -> int | None:
    for step in range(1, time_limit + 1):
        after = [board.slide(v.cells()[0], forward) for v in board.vehicles for forward in (False, True)]
        best = max(after, key=lambda board: board.potential)
        if best.potential <= board.potential:
            return None
        board = best
        if board.solved:
            return step
    return None


BASELINES: dict[str, Baseline] = {"at random": play_at_random, "greedily": play_greedily}


def baseline_facts(boards: Sequence[Board], time_limit: int) -> dict[str, Any]:
    """How policies that do not think fare on levels."""
    facts = {}
    for name, play in BASELINES.items():
        random = np.random.default_rng(0)
        steps = [play(board, time_limit, random) for board in boards]
        solved = sum(s is not None for s in steps)
        facts[name] = {
            "levels": len(boards),
            "solved": solved,
            "success": solved / len(boards),
            "interval_95": list(wilson(solved, len(boards))),
            "mean_steps": float(np.mean([time_limit if s is None else s for s in steps])),
        }
    return facts
