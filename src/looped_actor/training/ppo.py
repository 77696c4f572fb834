"""PPO over many environments and devices: play, judge, learn."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium.vector
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from looped_actor.algorithms import (
    Acting,
    PPOBatch,
    PPOConfig,
    PPOTerms,
    Update,
    advantages,
    mean_over_taken,
    normalised_advantage,
    ppo_loss,
)
from looped_actor.algorithms.collectives import average
from looped_actor.collectors import (
    EnvironmentCollector,
    Experience,
    GymnasiumCollector,
    Players,
    Rollout,
    restarted,
)
from looped_actor.devices import DATA
from looped_actor.envs import Environment
from looped_actor.errors import UserError
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


class PPOMetrics(NamedTuple):
    """One iteration in numbers."""

    play: PlayMetrics
    policy_loss: Float[Array, ""]
    """Mean over the updates that were taken. Also below."""
    value_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    kl: Float[Array, ""]
    clipped: Float[Array, ""]
    explained_variance: Float[Array, ""]
    """Explained variance of the value targets, by the values when acting."""


@dataclass(frozen=True)
class PPO:
    """Learns by PPO."""

    net: PolicyNet
    host: None = field(default=None, init=False)

    def learn(
        self, world: Any, state: OnlineState, experience: Experience, advice: None
    ) -> tuple[OnlineState, PPOMetrics]:
        """The updates from a rollout."""
        config, rollout = self.net.config, experience.rollout
        assert isinstance(config, PPOConfig)
        steps = rollout.steps
        stale = self.net.staleness(state, rollout)
        if config.scale_before_learning:
            state = seen(state, rollout)
            rollout = rollout._replace(bootstrap=self.net.values(state, experience.players))
        judged = advantages(
            config.reward_scale * steps.reward,
            steps.value,
            rollout.bootstrap,
            *ends(config, steps.terminated, steps.truncated),
            discount=config.discount,
            gae_lambda=config.gae_lambda,
        )
        examples = PPOBatch(
            steps.observation,
            steps.action,
            steps.log_prob,
            normalised_advantage(judged.advantage, DATA),
            judged.value_target,
            steps.loops,
            steps.memory,
        )
        learner, updates = self.net.updates(
            state, flat(examples), lambda decide, some: ppo_loss(decide, some, config)
        )
        played = play_metrics(config, rollout, stale, learner, updates)
        metrics = _metrics(played, rollout, judged.value_target, updates)
        experience = experience._replace(players=self._reset_if_due(world, state, experience.players))
        return after_iteration(config, state, learner, experience), metrics

    def _reset_if_due(self, world: Any, state: OnlineState, players: Players) -> Players:
        """Environments that begin anew together, as often in the run as is wished."""
        resets = self.net.config.hard_resets
        if not resets:
            return players
        every = max(1, self.net.iterations // resets)
        due = jnp.full(len(players.loops), (state.iteration + 1) % every == 0)
        return restarted(world, players, due)


def ends(
    config: PPOConfig, terminated: Bool[Array, "t b"], truncated: Bool[Array, "t b"]
) -> tuple[Bool[Array, "t b"], Bool[Array, "t b"]]:
    """Steps that end their episode for what is learned from them: truly, and by a time-out."""
    if config.bootstrap_timeouts:
        return terminated, truncated
    return terminated | truncated, jnp.zeros_like(truncated)


def _metrics(
    played: PlayMetrics, rollout: Rollout, target: Float[Array, "t b"], updates: Update
) -> PPOMetrics:
    def spread(values: Float[Array, "t b"]) -> Float[Array, ""]:
        mean = average(values.mean(), DATA)
        return average(((values - mean) ** 2).mean(), DATA)

    terms: PPOTerms = jax.tree.map(functools.partial(mean_over_taken, updates), updates.terms)
    explained = 1 - spread(target - rollout.steps.value) / spread(target)
    watched = terms.policy_loss, terms.value_loss, terms.entropy, terms.kl, terms.clipped
    return PPOMetrics(played, *watched, explained)


def ppo_trainer(
    config: PPOConfig,
    env: Environment | gymnasium.vector.VectorEnv,
    build: Callable[[nnx.Rngs], Any],
    iterations: int,
    mesh: Mesh,
    *,
    acting: Acting | None = None,
    **options: Any,
) -> Trainer:
    """PPO on an environment in JAX, or on a vector environment of Gymnasium.

    Args:
      config: how to learn.
      env: what to learn.
      build: makes the net from random streams.
      iterations: of the whole run, for the schedule of the learning rate.
      mesh: the devices.
      acting: how an environment in JAX is played. Default: streamed.
      options: those of `PolicyNet`.
    """
    steps = config.num_envs, config.rollout_steps, mesh
    if isinstance(env, gymnasium.vector.VectorEnv):
        if config.hard_resets:
            raise UserError("hard_resets are for environments in JAX: those of Gymnasium reset themselves")
        collector = GymnasiumCollector(env, *steps)
    else:
        collector = EnvironmentCollector(env, *steps, acting or Streaming())
    return Trainer(collector, PPO(PolicyNet(config, build, iterations, **options)))
