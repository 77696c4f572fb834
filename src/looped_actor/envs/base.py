"""What an environment is: pure functions of a state, one episode at a time.

An environment is a pytree: its levels are data that jitted functions take as an argument, its settings
are static. `VectorEnv` runs many copies of one and starts them anew. Bring your own by giving it these
methods.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped, UInt8


class Outcome(NamedTuple):
    """What one step brought, the time limit aside."""

    reward: Float[Array, "*b"]
    terminated: Bool[Array, "*b"]
    """The episode has truly ended: no reward can follow."""
    success: Bool[Array, "*b"]
    """The task was achieved in this step."""


@runtime_checkable
class Environment(Protocol):
    """One copy of a world."""

    @property
    def time_limit(self) -> int:
        """Steps after which an episode is cut off."""
        ...

    @property
    def num_actions(self) -> int:
        """How many actions there are."""
        ...

    def reset(self, key: Any) -> PyTree:
        """The state of a new episode, drawn by a key."""
        ...

    def step(self, state: PyTree, action: Int[Array, ""]) -> tuple[PyTree, Outcome]:
        """The next state, and what it brought."""
        ...

    def observe(self, state: PyTree) -> PyTree[Shaped[Array, "..."]]:
        """What a policy sees of a state."""
        ...


@runtime_checkable
class LevelSource(Protocol):
    """Levels in device memory, as a pytree."""

    @property
    def count(self) -> int:
        """How many levels there are."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of every board."""
        ...

    def cells(self, index: Int[Array, ""]) -> UInt8[Array, "h w"]:
        """The board of one level, as cell sums."""
        ...
