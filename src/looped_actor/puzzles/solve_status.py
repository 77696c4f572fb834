"""What the solvers of both games share: how a search ends, and how far it goes."""

from enum import Enum

DEFAULT_NODE_LIMIT = 3_000_000
"""States of a search on a board of 10x10 or less."""


def node_limit_for(height: int, width: int) -> int:
    """States after which a search gives up unless told otherwise.

    Larger boards have fewer in proportion, so that a level takes no more time and memory than one of 10x10:
    a file of large boards cannot occupy a machine for a day.
    """
    return min(DEFAULT_NODE_LIMIT, DEFAULT_NODE_LIMIT * 100 // (height * width))


class SolveStatus(Enum):
    """How a search ended."""

    SOLVED = 0
    UNSOLVABLE = 1
    """Proved: every state that can be reached was looked at, or has a box that is lost."""
    NOT_WITHIN_LIMIT = 2
    """Unknown: the limit was reached first."""

    @property
    def words(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")
