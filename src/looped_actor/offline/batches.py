"""Batches of transitions with goals in hindsight, drawn from a dataset.

A draw is addressed by the number of its update and of its example. So a run draws the same batches on any
number of devices, and whether the dataset is on the devices or on disk.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.offline.dataset import Dataset, EpisodeIndex
from looped_actor.offline.goals import GoalRows, GoalSampling, sample_rows
from looped_actor.training.sharding import DATA, place, replicate

UPDATE_ROWS: Any = PartitionSpec(None, DATA)
"""Sharding of the batches of several updates: by examples, the second axis."""


class GoalBatch(NamedTuple):
    """Transitions, and goals in hindsight."""

    state: Float[Array, "*b n"]
    action: Float[Array, "*b a"]
    next_state: Float[Array, "*b n"]
    """State that the critics bootstrap from, one or a few steps later."""
    value_goal: Float[Array, "*b n"]
    actor_goal: Float[Array, "*b n"]
    reached: Bool[Array, "*b"]
    """True if the value goal comes before the next state: the return then ends at the goal."""
    steps: Int[Array, "*b"]
    """Steps to the next state, or to the value goal if it is reached."""


@dataclass(frozen=True)
class BatchSampling:
    """The distribution of batches, and the random draws of every update.

    Args:
      batch: examples of an update, over all devices.
      updates: gradient steps of an iteration.
      goals: distribution of goals.
      discount: of the geometric distance of future goals.
      steps: from a state to its next state.
      dtype: of states and actions.
    """

    batch: int
    updates: int
    goals: GoalSampling
    discount: float
    steps: int = 1
    dtype: Any = jnp.float32

    def numbers(self, iteration: Int[Array, ""]) -> Int[Array, " u"]:
        """Return the numbers of an iteration's updates, counted from the start of the run."""
        return iteration * self.updates + jnp.arange(self.updates)

    def rows(
        self,
        index: EpisodeIndex,
        root: UInt32[Array, "2"],
        update: Int[Array, ""],
        examples: Int[Array, " b"],
    ) -> GoalRows:
        """Draw rows for some examples of an update."""
        key = addressed_key(root, Stream.EXAMPLE, update)
        sample = functools.partial(
            sample_rows, index, sampling=self.goals, discount=self.discount, steps=self.steps
        )
        return jax.vmap(lambda example: sample(key=folded(key, example)))(examples)

    def gather(self, states: Shaped[Any, "n s"], actions: Shaped[Any, "n a"], rows: GoalRows) -> GoalBatch:
        """Return the batch of some rows, on the devices or on the host."""
        row, next_row, value_goal, actor_goal = rows
        reached = (row <= value_goal) & (value_goal < next_row)

        def take(table: Any, rows: Any) -> Any:
            return table[rows].astype(self.dtype)

        return GoalBatch(
            state=take(states, row),
            action=take(actions, row),
            next_state=take(states, next_row),
            value_goal=take(states, value_goal),
            actor_goal=take(states, actor_goal),
            reached=reached,
            steps=value_goal * reached + next_row * ~reached - row,
        )


class DeviceTable(NamedTuple):
    """A dataset on the devices."""

    states: Float[Array, "n s"]
    actions: Float[Array, "n a"]
    episodes: EpisodeIndex


@dataclass(frozen=True)
class DeviceBatches:
    """Batches drawn from a dataset on the devices, inside the compiled program."""

    sampling: BatchSampling
    devices: int

    def batch(self, table: DeviceTable, root: UInt32[Array, "2"], update: Int[Array, ""]) -> GoalBatch:
        """Return this device's part of the batch of an update, inside `shard_map`."""
        per_device = self.sampling.batch // self.devices
        examples = jax.lax.axis_index(DATA) * per_device + jnp.arange(per_device)
        rows = self.sampling.rows(table.episodes, root, update, examples)
        return self.sampling.gather(table.states, table.actions, rows)


def device_table(dataset: Dataset, mesh: Mesh, dtype: Any) -> DeviceTable:
    """Put a dataset on all devices."""
    states, actions = replicate(mesh, [np.asarray(a, dtype) for a in (dataset.states, dataset.actions)])
    return DeviceTable(states, actions, replicate(mesh, dataset.index))


class HostBatches:
    """Batches that the host reads from a dataset on disk, one iteration ahead."""

    def __init__(self, dataset: Dataset, sampling: BatchSampling, mesh: Mesh):
        self.dataset, self.sampling, self.mesh = dataset, sampling, mesh
        self._index = replicate(mesh, dataset.index)
        self._prefetched: dict[tuple[bytes, int], GoalBatch] = {}
        self._rows = jax.jit(self._iteration_rows)

    def batches(self, root: UInt32[Array, "2"], iteration: int) -> GoalBatch:
        """Return the batches of all updates of an iteration, on the devices."""
        return self._prefetched.pop(_address(root, iteration), None) or self._read(root, iteration)

    def prefetch(self, root: UInt32[Array, "2"], iteration: int) -> None:
        """Read the batches of an iteration while the devices compute."""
        self._prefetched[_address(root, iteration)] = self._read(root, iteration)

    def _read(self, root: UInt32[Array, "2"], iteration: int) -> GoalBatch:
        rows = jax.tree.map(np.asarray, self._rows(self._index, root, iteration))
        batch = self.sampling.gather(self.dataset.states, self.dataset.actions, rows)
        return place(self.mesh, batch, UPDATE_ROWS)

    def _iteration_rows(
        self, index: EpisodeIndex, root: UInt32[Array, "2"], iteration: Int[Array, ""]
    ) -> GoalRows:
        examples = jnp.arange(self.sampling.batch)
        return jax.lax.map(
            lambda update: self.sampling.rows(index, root, update, examples), self.sampling.numbers(iteration)
        )


def _address(root: UInt32[Array, "2"], iteration: int) -> tuple[bytes, int]:
    return np.asarray(root).tobytes(), iteration
