"""Episodes of levels, state by state: what was seen, done, and how long it was thought about."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, UInt8

from looped_actor.algorithms import Weights, deciding
from looped_actor.batches import Progress, no_progress
from looped_actor.devices import DATA, EVERYWHERE, ROWS, on_each_device, on_every_device
from looped_actor.evaluation.play import LevelEnvironment, level_batches
from looped_actor.loop import HaltingRule


class Trace(NamedTuple):
    """An episode of each level, in step; `taken` says which steps there were."""

    cells: UInt8[Array | np.ndarray, "t n c"]
    """The board before each decision, row by row."""
    action: Int[Array | np.ndarray, "t n"]
    loops: Int[Array | np.ndarray, "t n"]
    taken: Bool[Array | np.ndarray, "t n"]
    success: Bool[Array | np.ndarray, " n"]


@dataclass(frozen=True)
class TraceRecorder:
    """Plays every level once, with the most probable actions, and remembers all of it.

    Args:
      env: holds the levels; its states have `cells`.
      levels: how many it holds.
      definition: the net without its weights.
      mesh: the devices.
      halting: replaces the rule that the net was trained with.
      batch: levels that each device plays at a time.
    """

    env: LevelEnvironment
    levels: int
    definition: nnx.GraphDef
    mesh: Mesh
    halting: HaltingRule | None = None
    batch: int = 128

    def record(self, weights: Weights, progress: Progress = no_progress) -> Trace:
        """An episode of each level."""
        env, parts = on_every_device(self.mesh, self.env), []
        for chosen in level_batches(self.levels, self.batch, self.mesh.size):
            part = self._record(env, weights, on_every_device(self.mesh, chosen))
            parts.append(jax.tree.map(np.asarray, part))
            progress(int(chosen.max()) + 1, self.levels)
        # Levels are the only axis of what is said once of an episode, else the second.
        trace = jax.tree.map(lambda *some: np.concatenate(some, axis=min(1, some[0].ndim - 1)), *parts)
        return Trace(*(a[: self.levels] if a.ndim == 1 else a[:, : self.levels] for a in trace))

    @functools.cached_property
    def _record(self) -> Callable[..., Trace]:
        def record_own(env: LevelEnvironment, weights: Weights, levels: Int[Array, " n"]) -> Trace:
            return record_levels(env, deciding(self.definition, weights, self.halting), levels)

        steps: Any = PartitionSpec(None, DATA)
        gives = Trace(steps, steps, steps, steps, ROWS)
        return on_each_device(self.mesh, record_own, (EVERYWHERE, EVERYWHERE, ROWS), gives)


def record_levels(env: LevelEnvironment, decide: Callable[..., Any], levels: Int[Array, " n"]) -> Trace:
    """Play each level once, all in step, until the last one ends. A level below 0 is none."""
    states = jax.vmap(env.start)(jnp.maximum(levels, 0))
    count, cells = states.cells.shape
    nothing = jnp.zeros((env.time_limit, count), jnp.int32)
    trace = Trace(
        jnp.zeros((env.time_limit, count, cells), jnp.uint8),
        nothing,
        nothing,
        nothing.astype(bool),
        jnp.zeros(count, bool),
    )

    def body(carry: tuple) -> tuple:
        step, states, alive, expected, trace = carry
        decision = decide(jax.vmap(env.observe)(states), expected_loops=expected)
        action, loops = decision.distribution.mode(), decision.loop.loops
        after, outcome = jax.vmap(env.step)(states, action)
        trace = Trace(
            trace.cells.at[step].set(states.cells),
            trace.action.at[step].set(action.astype(jnp.int32)),
            trace.loops.at[step].set(loops),
            trace.taken.at[step].set(alive),
            trace.success | (outcome.success & alive),
        )
        alive = alive & ~outcome.terminated
        return step + 1, after, alive, jnp.where(alive, loops, 0), trace

    def goes_on(carry: tuple) -> Array:
        return (carry[0] < env.time_limit) & carry[2].any()

    carry = (jnp.int32(0), states, levels >= 0, jnp.zeros(count, jnp.int32), trace)
    return jax.lax.while_loop(goes_on, body, carry)[-1]
