"""Plans as labels: the pushes of an optimal solution, and what a guess would score.

A push is one of 4 x boxes classes, `4 x box + direction`, boxes being numbered row by row where they stand
in the state that is probed.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8

from looped_actor.levels import Solutions
from looped_actor.solvers.boxoban import possible_pushes

NONE = -1
"""The solution has no such push."""


def push_targets(solutions: Solutions, pushes: Sequence[int]) -> Int[np.ndarray, "n j"]:
    """The class of each chosen push of each level's solution; `NONE` where it has fewer pushes."""
    targets = np.full((len(solutions), len(pushes)), NONE, np.int32)
    for level in range(len(solutions)):
        found = solutions.pushes(level).astype(np.int32)
        classes = 4 * found[:, 0] + found[:, 1]
        for column, push in enumerate(pushes):
            if push <= len(classes):
                targets[level, column] = classes[push - 1]
    return targets


def guess_accuracy(cells: UInt8[np.ndarray, "n h w"], first_push: Int[np.ndarray, " n"]) -> float:
    """How often a guess among the pushes that are possible is the next one, in expectation.

    A push is possible if the player can walk to where it begins and the box has a free cell to go to.
    Levels without a push are left out.
    """
    chances = []
    for board, push in zip(cells, first_push, strict=True):
        if push != NONE:
            possible = possible_pushes(board)
            chances.append(possible[push] / possible.sum())
    if not chances:
        raise ValueError("no level has a push to guess")
    return float(np.mean(chances))
