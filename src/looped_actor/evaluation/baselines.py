"""Success of players without a net: a learned policy has to be better."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from looped_actor.evaluation.intervals import wilson
from looped_actor.puzzles.catalogue import game_of
from looped_actor.puzzles.grid import Board

Player = Callable[[Board, int, np.random.Generator], int | None]
"""From a level, a time limit and random numbers to the steps in which the level was solved, or None."""


def play_at_random(board: Board, time_limit: int, random: np.random.Generator) -> int | None:
    """Return the steps in which random actions solve a level, or None."""
    game = game_of(board)
    for step in range(1, time_limit + 1):
        board, _ = game.step(board, game.draw_action(board, random))
        if board.solved:
            return step
    return None


def play_greedily(board: Board, time_limit: int, random: np.random.Generator) -> int | None:
    """Return the steps in which the game's greedy player solves a level, or None."""
    return game_of(board).play_greedily(board, time_limit)


PLAYERS: dict[str, Player] = {"at random": play_at_random, "greedily": play_greedily}


def baseline_results(boards: Sequence[Board], time_limit: int) -> dict[str, Any]:
    """Return success and mean steps of each player on some levels."""
    results = {}
    for name, play in PLAYERS.items():
        random = np.random.default_rng(0)
        steps = [play(board, time_limit, random) for board in boards]
        solved = sum(s is not None for s in steps)
        results[name] = {
            "levels": len(boards),
            "solved": solved,
            "success": solved / len(boards),
            "interval_95": list(wilson(solved, len(boards))),
            "mean_steps": float(np.mean([time_limit if s is None else s for s in steps])),
        }
    return results
