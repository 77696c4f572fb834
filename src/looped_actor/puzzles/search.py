"""Results and limits of the solvers' searches."""

from enum import Enum
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

DEFAULT_NODE_LIMIT = 3_000_000
"""States of a search on a board of 10x10 or less, after which it gives up."""


def default_node_limit(height: int, width: int) -> int:
    """Return the number of states after which a search on a board of this size gives up.

    Larger boards have fewer in proportion, so that a level takes no more time and memory than one of 10x10:
    a file of large boards cannot occupy a machine for a day.
    """
    return min(DEFAULT_NODE_LIMIT, DEFAULT_NODE_LIMIT * 100 // (height * width))


class SolveStatus(Enum):
    """Outcome of a search. The values are those in files of solutions."""

    SOLVED = 0
    UNSOLVABLE = 1
    """Proved: no state that can be reached is solved."""
    NOT_WITHIN_LIMIT = 2
    """Unknown: the limit was reached first."""

    @property
    def words(self) -> str:
        """Name of the outcome in messages."""
        return self.name.lower().replace("_", " ")


class PackedSolution(NamedTuple):
    """Result of a search as arrays, for other processes and for files.

    Moves and pushes are empty unless solved.
    """

    status: int
    """Value of a `SolveStatus`."""
    moves: Integer[np.ndarray, "m ..."]
    """Boxoban: a direction each. Rush Hour: vehicle and distance."""
    pushes: Integer[np.ndarray, "p 2"]
    """Boxoban: box and direction. Rush Hour: none."""
    nodes: int
    """States that were stored."""
