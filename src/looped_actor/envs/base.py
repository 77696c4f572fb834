"""The environment protocol: pure functions of a state, one episode at a time.

An environment is a pytree: its levels are data that jitted functions take as an argument, its settings
are static. `VectorEnv` runs many copies of one and resets them when their episodes end. A custom environment
is a class with these methods.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped, UInt8


class Outcome(NamedTuple):
    """Result of one step, without the time limit."""

    reward: Float[Array, "*b"]
    terminated: Bool[Array, "*b"]
    """The episode reached a terminal state: no reward can follow."""
    success: Bool[Array, "*b"]
    """The task was solved in this step."""


@runtime_checkable
class Environment(Protocol):
    """One environment, without vectorisation and without automatic resets."""

    @property
    def time_limit(self) -> int:
        """Number of steps after which an episode is truncated."""
        ...

    @property
    def num_actions(self) -> int:
        """Number of actions."""
        ...

    def reset(self, key: Any) -> PyTree:
        """Return the initial state of a new episode."""
        ...

    def step(self, state: PyTree, action: Int[Array, ""]) -> tuple[PyTree, Outcome]:
        """Return the next state and the result of the step."""
        ...

    def observe(self, state: PyTree) -> PyTree[Shaped[Array, "..."]]:
        """Return the observation of a state."""
        ...


@runtime_checkable
class LevelEnvironment(Environment, Protocol):
    """An environment whose initial states are numbered."""

    def reset_to(self, level: Int[Array, ""]) -> PyTree:
        """Return the initial state of one level."""
        ...


@runtime_checkable
class LevelSource(Protocol):
    """Levels in device memory, as a pytree."""

    @property
    def count(self) -> int:
        """Number of levels."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of every board."""
        ...

    def cells(self, index: Int[Array, ""]) -> UInt8[Array, "h w"]:
        """Return the board of one level; each cell is a sum of `grid` codes."""
        ...
