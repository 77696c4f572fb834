"""Evaluation by episodes of any environment, in JAX or of Gymnasium, with the most probable actions."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from jaxtyping import Array, Int, PyTree, UInt32

from looped_actor.algorithms import Action
from looped_actor.envs import Environment, Outcome
from looped_actor.envs.spaces import spaces_of, successes
from looped_actor.evaluation.levels import Decisions, Episodes, Played
from looped_actor.evaluation.repeats import fingerprint_host, pad_episodes
from looped_actor.loop import StopReason
from looped_actor.loop.rng import Stream, addressed_key
from looped_actor.utils.processes import Progress, no_progress


@functools.partial(jax.tree_util.register_dataclass, data_fields=("env", "root"), meta_fields=())
@dataclass(frozen=True)
class NumberedEpisodes:
    """An environment whose episodes have numbers: each has its own key, which training does not use."""

    env: Environment
    root: UInt32[Array, "2"]

    @property
    def time_limit(self) -> int:
        return self.env.time_limit

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def reset_to(self, level: Int[Array, ""]) -> PyTree:
        """Return the first state of an episode."""
        return self.env.reset(addressed_key(self.root, Stream.EVALUATION, level))

    def reset(self, key: Any) -> PyTree:
        return self.env.reset(key)

    def step(self, state: PyTree, action: Array) -> tuple[PyTree, Outcome]:
        return self.env.step(state, action)

    def observe(self, state: PyTree) -> PyTree:
        return self.env.observe(state)


def as_vector(env: gymnasium.Env | gymnasium.vector.VectorEnv) -> gymnasium.vector.VectorEnv:
    """Return a vector environment for `play_gymnasium`, after checking its spaces."""
    many = env
    if isinstance(env, gymnasium.Env):
        many = SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)
    assert isinstance(many, gymnasium.vector.VectorEnv)
    spaces_of(many)
    return many


def play_gymnasium(
    envs: gymnasium.vector.VectorEnv,
    act: Callable[..., Action],
    episodes: int,
    most_loops: int,
    *,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Played:
    """Play episodes of a vector environment, all copies together.

    The number of episodes of each copy is fixed beforehand: counting those that end first would favour short
    ones. `act` takes observations and the `carry` of its last call. `success` is None if no step had
    `is_success` in its info.
    """
    copies = envs.num_envs
    left = np.array([(episodes + copies - 1 - copy) // copies for copy in range(copies)])
    running, ended, executed, reported = _nothing(copies, most_loops), [], 0, False
    observation, _ = envs.reset(seed=seed)
    rows, carry = np.arange(copies), None
    assert running.success is not None
    decisions: list[list[tuple[np.ndarray, int]]] = [[] for _ in rows]  # of the episodes under way
    recorded: list[Decisions] = []
    while left.any():
        acted = act(observation, carry=carry)
        for row in np.flatnonzero(left > 0):
            seen = [np.asarray(leaf)[row] for leaf in jax.tree.leaves(observation)]
            decisions[row].append((fingerprint_host(seen), int(acted.loops[row])))
        observation, reward, terminated, truncated, infos = envs.step(acted.action)
        success = successes(infos, copies)
        if success is not None:
            reported = True
            running.success[:] |= success
        running.returns[:] += np.asarray(reward)
        running.length[:] += 1
        running.loops[:] += acted.loops
        running.histogram[rows, acted.loops - 1] += 1
        running.stops[rows, acted.stop] += 1
        executed += int(acted.executed)
        done = np.asarray(terminated) | np.asarray(truncated)
        carry = acted.carry.restart(done)
        over = np.flatnonzero(done & (left > 0))
        ended += [jax.tree.map(lambda leaf, row=row: leaf[row].copy(), running) for row in over]
        recorded += [Decisions(*map(np.array, zip(*decisions[row], strict=True))) for row in over]
        for row in np.flatnonzero(done):
            decisions[row] = []
        left -= done & (left > 0)
        for leaf in jax.tree.leaves(running):
            leaf[done] = 0
        progress(len(ended), episodes)
    played = jax.tree.map(lambda *leaves: np.stack(leaves), *ended)
    if not reported:
        played = played._replace(success=None)
    padded = jax.tree.map(lambda *leaves: pad_episodes(leaves), *recorded)
    return Played(played, np.array([executed]), decisions=padded)


def _nothing(copies: int, most_loops: int) -> Episodes:
    counts = [np.zeros((copies, many), np.int32) for many in (most_loops, len(StopReason))]
    length, loops = np.zeros(copies, np.int32), np.zeros(copies, np.int32)
    return Episodes(np.zeros(copies, bool), np.zeros(copies, np.float64), length, loops, *counts)
