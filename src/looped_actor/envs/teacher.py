"""Teachers: solvers that label states with optimal actions."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int


class SolverLabels(NamedTuple):
    """Labels of a batch of states."""

    optimal: Bool[np.ndarray, "n a"]
    """Actions with which a shortest solution begins; all False if there is no solution, or none is known."""
    remaining: Int[np.ndarray, " n"]
    """Steps of a shortest solution; -1 if there is none, or none is known."""


@runtime_checkable
class Teacher(Protocol):
    """A solver that runs on the host. Both methods take observations as the policy gets them."""

    def label(self, observation: Any) -> SolverLabels:
        """Return the optimal actions of each state."""
        ...

    def demonstrate(self, observation: Any, steps: int) -> Int[np.ndarray, "n s"]:
        """Return the first `steps` actions of a shortest solution of each state, and -1 after its end."""
        ...
