"""Synchronous copies of an environment, each reset when its episode ends."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped, UInt32

from looped_actor.envs.base import Environment
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.loop.state import select_rows

RESET_BLOCK = 32
"""Copies that are reset together. Few copies reset in a step, so resetting all of them would waste work."""


class EpisodeStatistics(NamedTuple):
    """Statistics of the current episode, or of the whole episode in its last step."""

    returns: Float[Array, " b"]
    """Sum of rewards."""
    length: Int[Array, " b"]
    success: Bool[Array, " b"]
    """Booleans; floats in rollouts of Gymnasium, where NaN means that the environment does not report it."""


class TimeStep(NamedTuple):
    """Result of a step of all copies."""

    observation: PyTree[Shaped[Array, "b ..."]]
    """Observation to act on next; the first of the next episode where an episode ended."""
    reward: Float[Array, " b"]
    terminated: Bool[Array, " b"]
    """The episode reached a terminal state: its value is 0."""
    truncated: Bool[Array, " b"]
    """The time limit ended the episode: targets bootstrap from `final_observation`."""
    final_observation: PyTree[Shaped[Array, "b ..."]]
    """Observation after this step, before any reset. Compiled away where it is not used."""
    episode: EpisodeStatistics

    @property
    def done(self) -> Bool[Array, " b"]:
        """Mask of the copies whose episode ended."""
        return self.terminated | self.truncated


class VectorState(NamedTuple):
    """State of all copies. Saving it is enough to resume exactly."""

    states: PyTree
    copy: Int[Array, " b"]
    """Index of the copy in each row: part of the address of its random draws, on whatever device it runs."""
    episode: Int[Array, " b"]
    """Number of episodes begun, including the current one."""
    statistics: EpisodeStatistics
    level_key: Key[Array, ""] | UInt32[Array, "2"]
    """Key into which copy and episode are folded for each reset."""


@functools.partial(jax.tree_util.register_dataclass, data_fields=("env",), meta_fields=("num_envs",))
@dataclass(frozen=True)
class VectorEnv:
    """`num_envs` copies of an environment. A pytree: pass it into jitted functions.

    ```python
    vector = VectorEnv(Boxoban(bank.on_device()), num_envs=1024)
    state, observation = jax.jit(VectorEnv.reset)(vector, jax.random.key(0))
    state, timestep = jax.jit(VectorEnv.step, donate_argnums=1)(vector, state, actions)
    ```
    """

    env: Environment
    num_envs: int

    def reset(self, root: Key[Array, ""] | UInt32[Array, "2"]) -> tuple[VectorState, PyTree]:
        """Reset all copies. Return their state and their first observations, shape [B, ...]."""
        copy = jnp.arange(self.num_envs, dtype=jnp.int32)
        episode = jnp.ones_like(copy)
        level_key = addressed_key(root, Stream.LEVEL)
        states = self._begin(level_key, copy, episode)
        statistics = EpisodeStatistics(
            jnp.zeros(self.num_envs), jnp.zeros_like(copy), jnp.zeros(self.num_envs, bool)
        )
        return VectorState(states, copy, episode, statistics, level_key), self._observe(states)

    def step(
        self, state: VectorState, actions: Int[Array, " b"], moving: Bool[Array, " b"] | None = None
    ) -> tuple[VectorState, TimeStep]:
        """Step all copies, and reset those whose episode ends.

        Args:
          state: state of all copies.
          actions: one action for each copy.
          moving: mask of the copies to step. None: all. The others keep their state, and their rows of the
            time step are undefined.
        """
        states, outcome = jax.vmap(self.env.step)(state.states, actions)
        before = state.statistics
        episode = EpisodeStatistics(
            before.returns + outcome.reward, before.length + 1, before.success | outcome.success
        )
        truncated = (episode.length >= self.env.time_limit) & ~outcome.terminated
        final_observation = self._observe(states)
        moved, done = state._replace(states=states, statistics=episode), outcome.terminated | truncated
        if moving is not None:
            stepped, stayed = (moved.states, moved.statistics), (state.states, state.statistics)
            states, statistics = select_rows(moving, stepped, stayed)
            moved, done = state._replace(states=states, statistics=statistics), done & moving
        after = self._restart(moved, done)
        timestep = TimeStep(
            self._observe(after.states),
            outcome.reward,
            outcome.terminated,
            truncated,
            final_observation,
            episode,
        )
        return after, timestep

    def restart(self, state: VectorState, rows: Bool[Array, " b"]) -> tuple[VectorState, PyTree]:
        """Begin the next episode of some copies. Return the state and the observations of all."""
        after = self._restart(state, rows)
        return after, self._observe(after.states)

    def _begin(self, level_key: Array, copy: Int[Array, " n"], episode: Int[Array, " n"]) -> PyTree:
        def begin(copy: Array, episode: Array) -> PyTree:
            return self.env.reset(folded(level_key, copy, episode))

        return jax.vmap(begin)(copy, episode)

    def _observe(self, states: PyTree) -> PyTree:
        return jax.vmap(self.env.observe)(states)

    def _restart(self, state: VectorState, done: Bool[Array, " b"]) -> VectorState:
        """Begin the next episode of the copies that are done, one block at a time."""
        rows = done.shape[0]
        block = min(RESET_BLOCK, rows)
        episode = state.episode + done
        statistics = jax.tree.map(
            lambda value: jnp.where(done, jnp.zeros_like(value), value), state.statistics
        )

        def begin_some(carry: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            states, left = carry
            (some,) = jnp.nonzero(left, size=block, fill_value=rows)  # a row that is not there is dropped
            address = (state.copy.at[some].get(mode="clip"), episode.at[some].get(mode="clip"))
            fresh = self._begin(state.level_key, *address)
            states = jax.tree.map(lambda all, new: all.at[some].set(new, mode="drop"), states, fresh)
            return states, left.at[some].set(False, mode="drop")

        with jax.named_scope("restart"):
            states, _ = jax.lax.while_loop(lambda carry: carry[1].any(), begin_some, (state.states, done))
        return state._replace(states=states, episode=episode, statistics=statistics)
