"""Batches of transitions with goals in hindsight, drawn from a dataset.

The dataset lies whole on every device, and an update draws what it learns from inside the compiled program;
or it stays on disk, and the host fetches what the same draws ask for. A draw is addressed by the number of
its update and of its example, so the same run results either way, and on any number of devices up to the
order in which numbers are summed.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, Shaped, UInt32

from looped_actor.algorithms import GoalBatch
from looped_actor.devices import DATA, EVERYWHERE, on_every_device, placed
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.offline import Dataset, Drawn, EpisodeIndex, GoalSampling, draw

_BATCHES: Any = PartitionSpec(None, DATA)


class Rows(NamedTuple):
    """A dataset on the devices."""

    states: Float[Array, "n s"]
    actions: Float[Array, "n a"]
    episodes: EpisodeIndex


@dataclass(frozen=True)
class Draws:
    """How the batches of all updates are drawn.

    Args:
      batch: examples of an update, over all devices.
      updates: of an iteration.
      goals: how goals are drawn.
      discount: of the geometric distance of future goals.
      steps: from a state to the one that its critics look at.
      dtype: of what is drawn.
    """

    batch: int
    updates: int
    goals: GoalSampling
    discount: float
    steps: int = 1
    dtype: Any = jnp.float32

    def numbers(self, iteration: Int[Array, ""]) -> Int[Array, " u"]:
        """Numbers of an iteration's updates, counted from the start of the run."""
        return iteration * self.updates + jnp.arange(self.updates)

    def rows(
        self,
        index: EpisodeIndex,
        root: UInt32[Array, "2"],
        update: Int[Array, ""],
        examples: Int[Array, " b"],
    ) -> Drawn:
        """Rows for some examples of an update."""
        key = addressed_key(root, Stream.EXAMPLE, update)
        how: Any = {"sampling": self.goals, "discount": self.discount, "steps": self.steps}
        one = functools.partial(draw, index, **how)
        return jax.vmap(lambda example: one(key=folded(key, example)))(examples)

    def gather(self, states: Shaped[Any, "n s"], actions: Shaped[Any, "n a"], drawn: Drawn) -> GoalBatch:
        """The rows that were drawn: on the devices, or on the host."""
        row, later, value_goal, actor_goal = drawn
        reached = (row <= value_goal) & (value_goal < later)

        def of(table: Any, rows: Any) -> Any:
            return table[rows].astype(self.dtype)

        return GoalBatch(
            state=of(states, row),
            action=of(actions, row),
            later_state=of(states, later),
            value_goal=of(states, value_goal),
            actor_goal=of(states, actor_goal),
            reached=reached,
            steps=(value_goal * reached + later * ~reached) - row,
        )


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("rows", "root", "feed"), meta_fields=("draws", "devices")
)
@dataclass(frozen=True)
class DrawnInside:
    """Batches that are drawn on the devices, when they are learned from."""

    rows: Rows
    root: UInt32[Array, "2"]
    feed: Int[Array, " u"]
    """The numbers of the updates."""
    draws: Draws
    devices: int

    def batch(self, update: Int[Array, ""]) -> GoalBatch:
        """This device's part of a batch."""
        per_device = self.draws.batch // self.devices
        examples = jax.lax.axis_index(DATA) * per_device + jnp.arange(per_device)
        drawn = self.draws.rows(self.rows.episodes, self.root, update, examples)
        return self.draws.gather(self.rows.states, self.rows.actions, drawn)


@functools.partial(jax.tree_util.register_dataclass, data_fields=("feed",), meta_fields=())
@dataclass(frozen=True)
class Fetched:
    """Batches that the host has fetched."""

    feed: GoalBatch
    """Batches of all updates."""

    def batch(self, one: GoalBatch) -> GoalBatch:
        """This device's part of a batch."""
        return one


@dataclass(frozen=True)
class DatasetCollector:
    """Draws batches from a dataset on the devices, or with `mapped`, from one that stays where it is."""

    dataset: Dataset
    draws: Draws
    mesh: Mesh
    mapped: bool = False

    @property
    def on_host(self) -> bool:
        """Whether the host fetches."""
        return self.mapped

    @property
    def steps_per_iteration(self) -> int:
        """Gradient steps."""
        return self.draws.updates

    @property
    def spec(self) -> Any:
        """What is fetched is spread over the devices."""
        return _BATCHES if self.mapped else EVERYWHERE

    @property
    def world(self) -> Rows | tuple[()]:
        """The dataset on all devices."""
        return self._world

    @functools.cached_property
    def _world(self) -> Rows | tuple[()]:
        if self.mapped:
            return ()
        tables = [np.asarray(a, self.draws.dtype) for a in (self.dataset.states, self.dataset.actions)]
        states, actions = on_every_device(self.mesh, tables)
        return Rows(states, actions, self._index)

    def begin(self, world: Any, root: UInt32[Array, "2"], seed: int) -> None:
        """A dataset has no state."""

    def collect(
        self, definition: nnx.GraphDef | None, world: Rows | tuple[()], state: Any, given: None = None
    ) -> DrawnInside | Fetched:
        """The batches of an iteration."""
        if isinstance(world, Rows):
            numbers = self.draws.numbers(state.iteration)
            return DrawnInside(world, state.root, numbers, self.draws, self.mesh.size)
        iteration = int(state.iteration)
        return Fetched(self._ahead.pop(iteration, None) or self._fetch(state.root, iteration))

    def resume(self, state: Any, seed: int) -> Any:
        """As it is: the state holds all there is."""
        return state

    def prefetch(self, state: Any) -> None:
        """Fetch what the next iteration will learn from."""
        following = int(state.iteration) + 1
        self._ahead[following] = self._fetch(state.root, following)

    @functools.cached_property
    def _ahead(self) -> dict[int, GoalBatch]:
        return {}

    @functools.cached_property
    def _index(self) -> EpisodeIndex:
        return on_every_device(self.mesh, self.dataset.index)

    def _fetch(self, root: UInt32[Array, "2"], iteration: int) -> GoalBatch:
        drawn = jax.tree.map(np.asarray, self._draw(self._index, root, iteration))
        return placed(
            self.mesh, self.draws.gather(self.dataset.states, self.dataset.actions, drawn), _BATCHES
        )

    @functools.cached_property
    def _draw(self) -> Any:
        def draw_all(index: EpisodeIndex, root: UInt32[Array, "2"], iteration: Int[Array, ""]) -> Drawn:
            examples = jnp.arange(self.draws.batch)
            return jax.lax.map(
                lambda update: self.draws.rows(index, root, update, examples), self.draws.numbers(iteration)
            )

        return jax.jit(draw_all)
