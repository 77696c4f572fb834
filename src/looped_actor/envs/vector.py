"""Many copies of an environment in step, each restarted when its episode ends."""

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
"""Copies that are restarted together. Resets are rare: they should cost what the few cost, not all."""


class EpisodeStatistics(NamedTuple):
    """The episode so far; at its end, the whole of it."""

    returns: Float[Array, " b"]
    """Sum of rewards."""
    length: Int[Array, " b"]
    success: Bool[Array, " b"]
    """As floats in rollouts of Gymnasium, where NaN means that the environment does not report it."""


class TimeStep(NamedTuple):
    """What a step of all copies brought."""

    observation: PyTree[Shaped[Array, "b ..."]]
    """What to act on next: where an episode ended, the first of the next."""
    reward: Float[Array, " b"]
    terminated: Bool[Array, " b"]
    """The episode truly ended: nothing is to be expected after it."""
    truncated: Bool[Array, " b"]
    """The time limit cut the episode off: the value of `final_observation` is still to be expected."""
    final_observation: PyTree[Shaped[Array, "b ..."]]
    """What this step led to, before any new start. Costs nothing where it is not used."""
    episode: EpisodeStatistics

    @property
    def done(self) -> Bool[Array, " b"]:
        """Whether an episode ended, for either reason."""
        return self.terminated | self.truncated


class VectorState(NamedTuple):
    """All copies. Save it to resume exactly from here."""

    states: PyTree
    copy: Int[Array, " b"]
    """Which copy each row is: part of the address of its random draws, wherever the row may be computed."""
    episode: Int[Array, " b"]
    """Episodes begun, the present one included."""
    statistics: EpisodeStatistics
    level_key: Key[Array, ""] | UInt32[Array, "2"]
    """From which the keys of all levels are folded."""


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
        """All copies at the start of their first episode, and what they see."""
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
        """One step of every copy; those whose episode ends begin the next one.

        With `moving`, one step of these; the others stay as they are, and what the time step says of
        them is not to be looked at.
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
        """Begin the next episode of some copies, wherever they are; and what all see then."""
        after = self._restart(state, rows)
        return after, self._observe(after.states)

    def _begin(self, level_key: Array, copy: Int[Array, " n"], episode: Int[Array, " n"]) -> PyTree:
        def begin(copy: Array, episode: Array) -> PyTree:
            return self.env.reset(folded(level_key, copy, episode))

        return jax.vmap(begin)(copy, episode)

    def _observe(self, states: PyTree) -> PyTree:
        return jax.vmap(self.env.observe)(states)

    def _restart(self, state: VectorState, done: Bool[Array, " b"]) -> VectorState:
        """Begin the next episode of the copies that are done, a block of them at a time."""
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
