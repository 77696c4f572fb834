"""What the solvers of both games share: how a search ends, and how far it goes."""

from enum import Enum

DEFAULT_NODE_LIMIT = 3_000_000


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
