"""PPO over many environments and devices: play, judge, learn."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int

from looped_actor.algorithms import (
    Example,
    LearnerState,
    PPOConfig,
    PPOTerms,
    Update,
    advantages,
    mean_over_taken,
    normalised_advantage,
    ppo_loss,
    updated,
)
from looped_actor.algorithms.collectives import average
from looped_actor.devices import DATA, EVERYWHERE, on_each_device
from looped_actor.envs import Environment
from looped_actor.training.online import ROLLOUT, SPECS, OnlineState, OnlineTrainer, flat, play_metrics
from looped_actor.training.rollouts import Players, Rollout


class PPOMetrics(NamedTuple):
    """One iteration in numbers: what was played, then means over the updates that were taken.

    The first nine, `loss`, `gradient_norm` and the last two are those of `PlayMetrics`.
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
    policy_loss: Float[Array, ""]
    value_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    kl: Float[Array, ""]
    clipped: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    explained_variance: Float[Array, ""]
    """Of the value targets, by the values when acting."""
    skipped_updates: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


class Programs(NamedTuple):
    """What runs on the devices."""

    iterate: Any
    """Environment and state to the next state and metrics."""
    play: Any
    """Environment and state to players and rollout."""
    learn: Any
    """State, players and rollout to the next state and metrics."""


@dataclass(frozen=True)
class PPOTrainer(OnlineTrainer):
    """PPO on an environment. The arguments are those of `OnlineTrainer`."""

    config: PPOConfig

    def iterate(self, state: OnlineState) -> tuple[OnlineState, PPOMetrics]:
        """One rollout and the updates from it."""
        return self.programs.iterate(self.placed_env, state)

    @functools.cached_property
    def programs(self) -> Programs:
        """An iteration as jitted functions: whole, and its halves."""

        def iterate(env: Environment, state: OnlineState) -> tuple[OnlineState, PPOMetrics]:
            return self._learn(state, *self._play(env, state))

        on_each = functools.partial(on_each_device, self.mesh)
        return Programs(
            iterate=on_each(iterate, (EVERYWHERE, SPECS), (SPECS, EVERYWHERE)),
            play=on_each(self._play, (EVERYWHERE, SPECS), (SPECS.players, ROLLOUT)),
            learn=on_each(self._learn, (SPECS, SPECS.players, ROLLOUT), (SPECS, EVERYWHERE)),
        )

    def _learn(
        self, state: OnlineState, players: Players, rollout: Rollout
    ) -> tuple[OnlineState, PPOMetrics]:
        """The updates from a rollout."""
        config, steps = self.config, rollout.steps
        judged = advantages(
            config.reward_scale * steps.reward,
            steps.value,
            rollout.bootstrap,
            steps.terminated,
            steps.truncated,
            discount=config.discount,
            trace=config.trace,
        )
        examples = Example(
            steps.observation,
            steps.action,
            steps.log_prob,
            normalised_advantage(judged.advantage, DATA),
            judged.value_target,
            steps.loops,
        )
        learner, updates = self._updated(
            state, flat(examples), lambda decide, some: ppo_loss(decide, some, config)
        )
        after = state._replace(
            learner=learner,
            statistics=updated(state.statistics, steps.observation, DATA),
            players=players,
            iteration=state.iteration + 1,
        )
        return after, _metrics(config, rollout, judged.value_target, learner, updates)


def _metrics(
    config: PPOConfig, rollout: Rollout, target: Float[Array, "t b"], learner: LearnerState, updates: Update
) -> PPOMetrics:
    def spread(values: Float[Array, "t b"]) -> Float[Array, ""]:
        mean = average(values.mean(), DATA)
        return average(((values - mean) ** 2).mean(), DATA)

    terms: PPOTerms = jax.tree.map(functools.partial(mean_over_taken, updates), updates.terms)
    return PPOMetrics(
        **play_metrics(config, rollout, learner, updates)._asdict(),
        policy_loss=terms.policy_loss,
        value_loss=terms.value_loss,
        entropy=terms.entropy,
        kl=terms.kl,
        clipped=terms.clipped,
        explained_variance=1 - spread(target - rollout.steps.value) / spread(target),
    )
