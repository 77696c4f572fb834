"""Imitation over many environments and devices: play, ask the solver, learn.

The devices play and learn; between the two, every host asks the solver about what its own devices have
seen. The solver plays a share of the environments itself: before a rollout it is asked for the way out of
the state that each of them has come to, and after the end of that way the policy goes on. A state from which
there is no way any more teaches nothing, so an environment that is lost begins anew.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from looped_actor.algorithms import (
    Acting,
    Advised,
    ImitationConfig,
    ImitationTerms,
    Teacher,
    imitation_loss,
    mean_over_taken,
)
from looped_actor.algorithms.collectives import average
from looped_actor.collectors import STEPS, EnvironmentCollector, Experience, restarted
from looped_actor.devices import DATA, ROWS
from looped_actor.envs import Environment, VectorEnv
from looped_actor.loop import Streaming
from looped_actor.training.online import (
    OnlineState,
    PlayMetrics,
    PolicyNet,
    after_iteration,
    flat,
    play_metrics,
    seen,
)
from looped_actor.training.trainer import Trainer

MOST_GROUPS = 64
"""Environments are pooled into at most so few groups that each always holds an example with advice."""


class ImitationMetrics(NamedTuple):
    """One iteration in numbers; episodes are those that the policy played."""

    play: PlayMetrics
    accuracy: Float[Array, ""]
    """Share of the examples whose most probable action is an optimal one."""
    entropy: Float[Array, ""]
    advised: Float[Array, ""]
    """Share of the states visited of which the solver knows an optimal action."""


class SolverAdvice(NamedTuple):
    """What the solver says of a rollout."""

    optimal: Bool[Array, "t b a"]
    lost: Bool[Array, " b"]
    """Environments from whose state there is no way any more."""


@dataclass(frozen=True)
class Imitation:
    """Learns what a solver would do.

    Args:
      net: what learns.
      teacher: the solver. It runs on the host.
      time_limit: steps after which an episode is cut off.
    """

    net: PolicyNet
    teacher: Teacher
    time_limit: int
    specs: tuple[Any, Any] = field(default=(STEPS, SolverAdvice(STEPS, ROWS)), init=False)

    @property
    def host(self) -> "Imitation":
        """The solver is asked on the host."""
        return self

    @property
    def config(self) -> ImitationConfig:
        """How to learn."""
        assert isinstance(self.net.config, ImitationConfig)
        return self.net.config

    def shapes(self, world: VectorEnv) -> tuple[jax.ShapeDtypeStruct, SolverAdvice]:
        """Of what it asks for and advises."""
        steps, rows = self.config.rollout_steps, self.config.num_envs
        optimal = jax.ShapeDtypeStruct((steps, rows, world.env.num_actions), bool)
        advice: Any = SolverAdvice(optimal, jax.ShapeDtypeStruct((rows,), bool))  # type: ignore[arg-type]
        return jax.ShapeDtypeStruct((steps, rows), jnp.int32), advice

    def ask(self, mesh: Mesh, state: OnlineState) -> Int[Array, "t b"]:
        """The solver's way out of where its environments are, and -1 where the policy is to act."""
        steps, players = self.config.rollout_steps, state.players
        copy, length = _own_part(players.envs.copy), _own_part(players.envs.statistics.length)
        given = np.full((len(copy), steps), -1, np.int32)
        asked = np.flatnonzero(self._solvers[copy])
        if len(asked):
            given[asked] = self.teacher.demonstrate(_own_part(players.observation)[asked], steps)
        # Where the time limit ends an episode, the way goes no further.
        given[np.arange(steps) >= (self.time_limit - length)[:, None]] = -1
        return _spread(mesh, given.T, STEPS)

    def advise(self, mesh: Mesh, experience: Experience) -> SolverAdvice:
        """The optimal actions of all states visited, and which environments are lost."""
        seen = _own_part(experience.rollout.steps.observation, axis=1)
        optimal = self.teacher.advise(seen.reshape(-1, *seen.shape[2:])).optimal
        lost = self.teacher.advise(_own_part(experience.players.observation)).remaining < 0
        return SolverAdvice(
            _spread(mesh, optimal.reshape(*seen.shape[:2], -1), STEPS), _spread(mesh, lost, ROWS)
        )

    def learn(
        self, world: VectorEnv, state: OnlineState, experience: Experience, advice: SolverAdvice
    ) -> tuple[OnlineState, ImitationMetrics]:
        """The updates from a rollout and what the solver says of it."""
        players, rollout = experience
        steps, usable = rollout.steps, advice.optimal.any(axis=-1)
        examples = flat(Advised(steps.observation, advice.optimal, steps.loops, steps.memory))
        played = state
        if self.config.scale_before_learning:
            state = seen(state, rollout)
        learner, updates = self.net.updates(state, examples, imitation_loss, flat(usable))
        begun = restarted(world, players, advice.lost)
        own = ~jnp.asarray(self._solvers)[players.envs.copy]
        stale = self.net.staleness(played, rollout, own)
        terms: ImitationTerms = jax.tree.map(functools.partial(mean_over_taken, updates), updates.terms)
        metrics = ImitationMetrics(
            play_metrics(self.config, rollout, stale, learner, updates, own),
            accuracy=terms.accuracy,
            entropy=terms.entropy,
            advised=average(usable.mean(dtype=steps.value.dtype), DATA),
        )
        return after_iteration(self.config, state, learner, Experience(begun, rollout)), metrics

    @functools.cached_property
    def _solvers(self) -> Bool[np.ndarray, " n"]:
        """Which environments the solver plays: spread evenly over all."""
        passed = np.floor(np.arange(self.config.num_envs + 1) * self.config.solver_share)
        return passed[1:] > passed[:-1]


def _own_part(array: Array, axis: int = 0) -> np.ndarray:
    """The rows of an array that lie on this process's devices."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards], axis)


def _spread(mesh: Mesh, own: np.ndarray, spec: PartitionSpec) -> Array:
    """What every process knows of its own environments, as an array over all devices."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, spec), own)


def imitation_trainer(
    config: ImitationConfig,
    env: Environment,
    build: Callable[[nnx.Rngs], Any],
    iterations: int,
    mesh: Mesh,
    *,
    teacher: Teacher,
    acting: Acting | None = None,
    **options: Any,
) -> Trainer:
    """Imitation of a solver on an environment; the other arguments are those of `ppo_trainer`."""
    collector = EnvironmentCollector(env, config.num_envs, config.rollout_steps, mesh, acting or Streaming())
    net = PolicyNet(config, build, iterations, **options, most_groups=MOST_GROUPS)
    return Trainer(collector, Imitation(net, teacher, env.time_limit))
