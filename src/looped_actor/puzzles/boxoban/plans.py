"""Plans as labels: the pushes of optimal solutions, and the accuracy of a guess.

A push is one of 4 x boxes classes, `4 x box + direction`. Boxes are numbered row by row, in the state that is
probed.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int, UInt8

from looped_actor.puzzles.boxoban.solver import optimal_pushes, possible_pushes
from looped_actor.puzzles.search import DEFAULT_NODE_LIMIT
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, no_progress

NONE = -1
"""Class if the solution has no such push."""


@runtime_checkable
class PushLists(Protocol):
    """Pushes of several levels, such as `Solutions`."""

    def __len__(self) -> int: ...

    def pushes(self, index: int) -> np.ndarray:
        """Return box and direction of each push of one level."""
        ...


def push_targets(solutions: PushLists, pushes: Sequence[int]) -> Int[np.ndarray, "n j"]:
    """Return the class of each chosen push of each level's solution; `NONE` if it has fewer pushes."""
    targets = np.full((len(solutions), len(pushes)), NONE, np.int32)
    for level in range(len(solutions)):
        found = solutions.pushes(level).astype(np.int32)
        classes = 4 * found[:, 0] + found[:, 1]
        for column, push in enumerate(pushes):
            if push <= len(classes):
                targets[level, column] = classes[push - 1]
    return targets


def right_pushes(
    cells: UInt8[np.ndarray, "n h w"],
    targets: Int[np.ndarray, "n j"],
    pushes: Sequence[int],
    *,
    node_limit: int = DEFAULT_NODE_LIMIT,
    workers: int = 1,
    progress: Progress = no_progress,
) -> Bool[np.ndarray, "n j p"]:
    """Return which classes are right: those of any solution with the fewest moves.

    None is right if the target is `NONE`. All solutions take longer to find than one: if ten times the limit
    of one are not enough, only the target is right.
    """

    def label_level(level: int) -> Bool[np.ndarray, "j p"]:
        found = optimal_pushes(cells[level], max(pushes), node_limit=10 * node_limit)
        target = targets[level][:, None] == np.arange(classes)
        right = target if found is None else found[np.asarray(pushes) - 1]
        return right & (targets[level] != NONE)[:, None]

    classes = len(possible_pushes(cells[0]))
    right = np.empty((*targets.shape, classes), np.bool_)
    with ThreadPoolExecutor(workers) as threads:
        for level, found in enumerate(threads.map(label_level, range(len(cells)))):
            right[level] = found
            progress(level + 1, len(cells))
    return right


def guess_accuracy(cells: UInt8[np.ndarray, "n h w"], right: Bool[np.ndarray, "n p"]) -> float:
    """Return the expected accuracy of guessing uniformly among the pushes that are possible.

    A push is possible if the player can walk to it and the box has a free cell to go to. Levels without a
    right push are left out.
    """
    accuracies = []
    for board, pushes in zip(cells, right, strict=True):
        if pushes.any():
            possible = possible_pushes(board)
            accuracies.append((possible & pushes).sum() / possible.sum())
    if not accuracies:
        raise UserError("no level has a push to guess")
    return float(np.mean(accuracies))
