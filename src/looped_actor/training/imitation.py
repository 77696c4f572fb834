"""Imitation over many environments and devices: play, ask the solver, learn.

The devices play and learn; between the two, every host asks the solver about what its own devices have
seen. The solver plays a share of the environments itself: before a rollout it is asked for the way out of
the state that each of them has come to, and after the end of that way the policy goes on. A state from which
there is no way any more teaches nothing, so an environment that is lost begins anew.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from looped_actor.algorithms import (
    Advised,
    ImitationConfig,
    ImitationTerms,
    Teacher,
    imitation_loss,
    mean_over_taken,
    updated,
)
from looped_actor.algorithms.collectives import average
from looped_actor.devices import DATA, EVERYWHERE, ROWS, on_each_device
from looped_actor.envs import Environment
from looped_actor.training.online import (
    ROLLOUT,
    SPECS,
    STEPS,
    OnlineState,
    OnlineTrainer,
    flat,
    play_metrics,
)
from looped_actor.training.rollouts import Players, Rollout

MOST_GROUPS = 64
"""Environments are pooled in so many groups at most: a group should always hold an example with advice."""


class ImitationMetrics(NamedTuple):
    """One iteration in numbers: what the policy played, then means over the updates that were taken.

    Fields that are not described are those of `PlayMetrics`; episodes are those that the policy played.
    """

    episodes: Float[Array, ""]
    success: Float[Array, ""]
    episode_return: Float[Array, ""]
    episode_length: Float[Array, ""]
    loops: Float[Array, ""]
    capped: Float[Array, ""]
    acting_executed: Float[Array, ""]
    learning_executed: Float[Array, ""]
    utilisation: Float[Array, ""]
    loss: Float[Array, ""]
    accuracy: Float[Array, ""]
    """Share of the examples whose most probable action is an optimal one."""
    entropy: Float[Array, ""]
    advised: Float[Array, ""]
    """Share of the states visited of which the solver knows an optimal action."""
    gradient_norm: Float[Array, ""]
    skipped_updates: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


class Programs(NamedTuple):
    """What runs on the devices."""

    play: Any
    """Environment, state and given actions to players and rollout."""
    learn: Any
    """Environment, state, players, rollout, optimal actions and lost environments to the next state."""


@dataclass(frozen=True)
class ImitationTrainer(OnlineTrainer):
    """Imitation of a solver on an environment. The other arguments are those of `OnlineTrainer`.

    Args:
      teacher: the solver. It runs on the host.
    """

    config: ImitationConfig
    teacher: Teacher = field(kw_only=True)

    @property
    def groups(self) -> int:
        """Groups of environments, from each of which a minibatch takes equally many."""
        return math.gcd(super().groups, MOST_GROUPS)

    def iterate(self, state: OnlineState) -> tuple[OnlineState, ImitationMetrics]:
        """One rollout and the updates from it."""
        env = self.placed_env
        players, rollout = self.programs.play(env, state, self._demonstrated(state.players))
        optimal = self._advised(rollout.steps.observation)
        lost = self._lost(players.observation)
        return self.programs.learn(env, state, players, rollout, optimal, lost)

    @functools.cached_property
    def programs(self) -> Programs:
        """The halves of an iteration as jitted functions."""
        given = (EVERYWHERE, SPECS, SPECS.players, ROLLOUT, STEPS, ROWS)
        return Programs(
            play=on_each_device(self.mesh, self._play, (EVERYWHERE, SPECS, STEPS), (SPECS.players, ROLLOUT)),
            learn=on_each_device(self.mesh, self._learn, given, (SPECS, EVERYWHERE)),
        )

    def _learn(
        self,
        env: Environment,
        state: OnlineState,
        players: Players,
        rollout: Rollout,
        optimal: Bool[Array, "t b a"],
        lost: Bool[Array, " b"],
    ) -> tuple[OnlineState, ImitationMetrics]:
        """The updates from a rollout and what the solver says of it."""
        steps, usable = rollout.steps, optimal.any(axis=-1)
        examples = flat(Advised(steps.observation, optimal, steps.loops))
        learner, updates = self._updated(state, examples, imitation_loss, flat(usable))
        envs, observation = self._vector(env).restart(players.envs, lost)
        after = state._replace(
            learner=learner,
            statistics=updated(state.statistics, steps.observation, DATA),
            players=players._replace(envs=envs, observation=observation),
            iteration=state.iteration + 1,
        )
        own = ~jnp.asarray(self._solvers)[players.envs.copy]
        terms: ImitationTerms = jax.tree.map(functools.partial(mean_over_taken, updates), updates.terms)
        metrics = ImitationMetrics(
            **play_metrics(self.config, rollout, learner, updates, own)._asdict(),
            accuracy=terms.accuracy,
            entropy=terms.entropy,
            advised=average(usable.mean(dtype=steps.value.dtype), DATA),
        )
        return after, metrics

    @functools.cached_property
    def _solvers(self) -> Bool[np.ndarray, " n"]:
        """Which environments the solver plays: spread evenly over all."""
        passed = np.floor(np.arange(self.config.num_envs + 1) * self.config.solver_share)
        return passed[1:] > passed[:-1]

    def _demonstrated(self, players: Players) -> Int[Array, "t b"]:
        """The solver's way out of where its environments are, and -1 where the policy is to act."""
        steps = self.config.rollout_steps
        copy, length = _own_part(players.envs.copy), _own_part(players.envs.statistics.length)
        given = np.full((len(copy), steps), -1, np.int32)
        asked = np.flatnonzero(self._solvers[copy])
        if len(asked):
            given[asked] = self.teacher.demonstrate(_own_part(players.observation)[asked], steps)
        # Where the time limit ends an episode, the way goes no further.
        given[np.arange(steps) >= (self.env.time_limit - length)[:, None]] = -1
        return self._spread(given.T, STEPS)

    def _advised(self, observation: Any) -> Bool[Array, "t b a"]:
        seen = _own_part(observation, axis=1)
        optimal = self.teacher.advise(seen.reshape(-1, *seen.shape[2:])).optimal
        return self._spread(optimal.reshape(*seen.shape[:2], -1), STEPS)

    def _lost(self, observation: Any) -> Bool[Array, " b"]:
        return self._spread(self.teacher.advise(_own_part(observation)).remaining < 0, ROWS)

    def _spread(self, own: np.ndarray, spec: PartitionSpec) -> Array:
        """What every process knows of its own environments, as an array over all devices."""
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, spec), own)


def _own_part(array: Array, axis: int = 0) -> np.ndarray:
    """The rows of an array that lie on this process's devices."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards], axis)
