"""The interface of algorithms: what `fit` runs."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

from jax.sharding import Mesh
from jaxtyping import Array


class Trainer(abc.ABC):
    """An algorithm on its data or environments.

    Everything on the devices runs inside `shard_map`: a device steps its own environments and learns from
    them; only gradients and a few sums are exchanged.
    """

    mesh: Mesh
    metric_names: ClassVar[tuple[str, ...]]
    """Columns of metrics.csv, in order; those that do not apply are left out."""

    @property
    @abc.abstractmethod
    def steps_per_iteration(self) -> int:
        """Environment or gradient steps of an iteration: the unit of a run's budget."""

    @abc.abstractmethod
    def init(self, seed: int) -> Any:
        """Return the state of a new run: a pytree of arrays on their devices, with `weights` and
        `iteration`."""

    @abc.abstractmethod
    def iterate(self, state: Any) -> tuple[Any, dict[str, Array]]:
        """Return the next state, and scalar metrics of the iteration."""

    def restore(self, state: Any, seed: int) -> Any:
        """Return a state from a checkpoint in a form to continue from."""
        return state

    def traces(self) -> dict[str, Callable[[], Any]]:
        """Return the programs of an iteration by name, as functions that trace them from shapes.

        The devices of the mesh need not be present: this is enough to compile for others.
        """
        raise NotImplementedError
