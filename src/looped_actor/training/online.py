"""PPO over many environments and devices: play, judge, learn.

Everything runs inside one `shard_map`: a device plays its own environments and learns from what they
brought; only gradients and a few sums are exchanged. Minibatches are stratified so that no example has to
move: each takes equally many from every group of environments, a group being as small as divides evenly.
So the same run results on any number of devices, up to the order in which numbers are summed.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree, UInt32

from looped_actor.algorithms import (
    Acting,
    Decide,
    Example,
    LearnerState,
    PPOConfig,
    PPOTerms,
    RunningStatistics,
    Synchronous,
    Update,
    Weights,
    advantages,
    decayed,
    deciding,
    descend,
    new_learner,
    no_statistics,
    normalised_advantage,
    opened,
    ppo_loss,
    updated,
)
from looped_actor.algorithms.collectives import average, total
from looped_actor.devices import DATA, EVERYWHERE, ROWS, on_every_device, shardings
from looped_actor.envs import Environment, VectorEnv, VectorState
from looped_actor.loop import Execution, MeanGradient, Packed, Streaming, mean_gradient
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.training.rollouts import Players, Rollout, new_players, play, stream


class OnlineState(NamedTuple):
    """All that a run of PPO is: saved, and it goes on exactly from here."""

    learner: LearnerState
    fixed: PyTree
    """What of the net is not trained: the latent before the first loop."""
    statistics: RunningStatistics
    """Of observations. The same for playing and learning within an iteration."""
    players: Players
    iteration: Int[Array, ""]
    root: UInt32[Array, "2"]
    """The key from which every draw is addressed."""

    @property
    def weights(self) -> Weights:
        """What of it is the policy."""
        return Weights(self.learner.parameters, self.fixed, self.statistics)

    def with_weights(self, weights: Weights) -> "OnlineState":
        """The same with another policy."""
        learner = self.learner._replace(parameters=weights.parameters)
        return self._replace(learner=learner, fixed=weights.fixed, statistics=weights.statistics)


class OnlineMetrics(NamedTuple):
    """One iteration in numbers: what was played, then means over the updates that were taken."""

    episodes: Float[Array, ""]
    success: Float[Array, ""]
    """Share of the episodes that ended in this iteration; NaN where none did. Also below."""
    episode_return: Float[Array, ""]
    episode_length: Float[Array, ""]
    loops: Float[Array, ""]
    """Mean loops of a decision when acting."""
    capped: Float[Array, ""]
    """Share of decisions that the cap ended."""
    acting_executed: Float[Array, ""]
    """Loops that the hardware computed for each that was asked for, when acting."""
    learning_executed: Float[Array, ""]
    """The same when learning."""
    utilisation: Float[Array, ""]
    """Of all loops that the hardware computed, the share that was asked for."""
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
    """Updates left out since the start, because loss or gradient was not finite."""
    skipped_in_a_row: Int[Array, ""]


SPECS = OnlineState(
    learner=EVERYWHERE,
    fixed=EVERYWHERE,
    statistics=EVERYWHERE,
    players=Players(VectorState(ROWS, ROWS, ROWS, ROWS, EVERYWHERE), ROWS, ROWS),
    iteration=EVERYWHERE,
    root=EVERYWHERE,
)


class Programs(NamedTuple):
    """What runs on the devices."""

    iterate: Any
    """Environment and state to the next state and metrics."""
    play: Any
    """Environment and state to players and rollout."""
    learn: Any
    """State, players and rollout to the next state and metrics."""


@dataclass(frozen=True)
class OnlineTrainer:
    """PPO on an environment.

    Args:
      config: how to learn.
      env: what to learn.
      build: makes the net from random streams.
      iterations: of the whole run, for the schedule of the learning rate.
      mesh: the devices.
      dtype: of parameters and statistics.
      acting: how decisions are computed when playing. What does not loop is always played in step.
      learning: how the loops of a minibatch are computed.
    """

    config: PPOConfig
    env: Environment
    build: Callable[[nnx.Rngs], Any]
    iterations: int
    mesh: Mesh
    dtype: Any = jnp.float32
    acting: Acting = field(default_factory=Streaming)
    learning: Execution = field(default_factory=Packed)

    def __post_init__(self) -> None:
        groups = math.gcd(self.config.num_envs, self.config.minibatch)
        if groups % self.mesh.size:
            raise ValueError(
                f"{self.mesh.size} devices do not divide {groups}, the largest number that divides both "
                f"num_envs ({self.config.num_envs}) and minibatch ({self.config.minibatch})"
            )

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps."""
        return self.config.steps_per_iteration

    def begin(self, seed: int) -> OnlineState:
        """The state of a new run."""
        root = jax.random.key_data(jax.random.key(seed))
        net = self.build(nnx.Rngs(jax.random.wrap_key_data(addressed_key(root, Stream.NET))))
        _, trained, fixed = nnx.split(net, nnx.Param, ...)
        trained, fixed = jax.tree.map(lambda a: a.astype(self.dtype), (trained, fixed))
        learner = new_learner(trained, self._optimiser)
        vector = VectorEnv(self.env, self.config.num_envs)
        place = functools.partial(shardings, self.mesh)
        players = jax.jit(new_players, out_shardings=place(SPECS.players))(
            on_every_device(self.mesh, vector), on_every_device(self.mesh, root)
        )
        features = jax.tree.leaves(players.observation)[0].shape[-1]
        statistics = jax.tree.map(lambda a: a.astype(self.dtype), no_statistics(features))
        rest = on_every_device(self.mesh, (learner, fixed, statistics, jnp.int32(0), root))
        # The first observations count, so that the first rollout is not played by an unscaled net.
        look = jax.jit(
            jax.shard_map(
                lambda statistics, observation: updated(statistics, observation, DATA),
                mesh=self.mesh,
                in_specs=(EVERYWHERE, ROWS),
                out_specs=EVERYWHERE,
                check_vma=False,
            )
        )
        learner, fixed, statistics, iteration, root = rest
        return OnlineState(learner, fixed, look(statistics, players.observation), players, iteration, root)

    def iterate(self, state: OnlineState) -> tuple[OnlineState, OnlineMetrics]:
        """One rollout and the updates from it."""
        return self.programs.iterate(self.placed_env, state)

    @functools.cached_property
    def placed_env(self) -> Environment:
        """The environment on all devices."""
        return on_every_device(self.mesh, self.env)

    @functools.cached_property
    def _optimiser(self) -> optax.GradientTransformation:
        config = self.config
        rate = decayed(
            config.learning_rate, config.decay_learning_rate, self.iterations * config.updates_per_iteration
        )
        return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(rate))

    @functools.cached_property
    def definition(self) -> nnx.GraphDef:
        """The net without its weights."""
        return nnx.split(nnx.eval_shape(lambda: self.build(nnx.Rngs(0))))[0]

    @functools.cached_property
    def programs(self) -> "Programs":
        """An iteration as jitted functions: whole, and its halves."""

        def on_each(work: Callable, given: Any, gives: Any) -> Any:
            # The loop's while_loop and custom VJP do not track what varies over devices.
            spread = jax.shard_map(work, mesh=self.mesh, in_specs=given, out_specs=gives, check_vma=False)
            return jax.jit(spread)

        def iterate(env: Environment, state: OnlineState) -> tuple[OnlineState, OnlineMetrics]:
            return self._learn(state, *self._play(env, state))

        steps: Any = PartitionSpec(None, DATA)
        rollout = Rollout(steps, ROWS, ROWS, ROWS)
        return Programs(
            iterate=on_each(iterate, (EVERYWHERE, SPECS), (SPECS, EVERYWHERE)),
            play=on_each(self._play, (EVERYWHERE, SPECS), (SPECS.players, rollout)),
            learn=on_each(self._learn, (SPECS, SPECS.players, rollout), (SPECS, EVERYWHERE)),
        )

    def _learn(
        self, state: OnlineState, players: Players, rollout: Rollout
    ) -> tuple[OnlineState, OnlineMetrics]:
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
        examples = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), examples)

        def update(learner: LearnerState, chosen: Int[Array, " m"]) -> tuple[LearnerState, Update]:
            minibatch = jax.tree.map(lambda a: a[chosen], examples)
            gradient = self._gradient(state.weights._replace(parameters=learner.parameters), minibatch)
            return descend(learner, self._optimiser, gradient, DATA)

        chosen = minibatches(config, players.envs.copy, state.root, state.iteration)
        learner, updates = jax.lax.scan(update, state.learner, chosen)
        after = OnlineState(
            learner,
            state.fixed,
            updated(state.statistics, steps.observation, DATA),
            players,
            state.iteration + 1,
            state.root,
        )
        return after, _metrics(config, rollout, judged.value_target, learner, updates)

    def _gradient(self, weights: Weights, minibatch: Example) -> MeanGradient:
        """Of the loss of this device's part of a minibatch."""

        def policy(parameters: PyTree, execution: Execution) -> Decide:
            return deciding(self.definition, weights._replace(parameters=parameters), execution=execution)

        def loss(parameters: PyTree, examples: Example, execution: Execution) -> tuple[Array, PPOTerms]:
            return ppo_loss(policy(parameters, execution), examples, self.config)

        latent = jax.eval_shape(
            lambda: policy(weights.parameters, self.learning)(minibatch.observation).loop.latent
        )
        return mean_gradient(
            loss,
            weights.parameters,
            minibatch,
            self.learning,
            latent_size=latent.size // latent.shape[0],
            expected_loops=minibatch.loops,
        )

    def _play(self, env: Environment, state: OnlineState) -> tuple[Players, Rollout]:
        """A rollout of this device's environments."""
        vector, steps = VectorEnv(env, self.config.num_envs), self.config.rollout_steps
        when = (state.root, state.iteration * steps, steps)
        loop = opened(self.definition, state.weights)
        if loop is not None and isinstance(self.acting, Streaming):
            players, rollout = stream(vector, state.players, loop, *when, self.acting)
        else:
            execution = self.acting.execution if isinstance(self.acting, Synchronous) else None
            policy = deciding(self.definition, state.weights, execution=execution)
            players, rollout = play(vector, state.players, policy, *when)
        counts = {"asked": rollout.asked[None], "executed": rollout.executed[None]}
        return players, rollout._replace(**counts)


def minibatches(
    config: PPOConfig, copies: Int[Array, " b"], root: UInt32[Array, "2"], iteration: Int[Array, ""]
) -> Int[Array, "updates m"]:
    """Rows of this device's examples for every update.

    Each epoch, each group shuffles its examples, and a minibatch takes its share of every group.
    """
    rows = len(copies)
    size = config.num_envs // math.gcd(config.num_envs, config.minibatch)
    groups = rows // size
    in_group = config.rollout_steps * size
    share = config.minibatch * size // config.num_envs
    # Row step x rows + env of the examples, as [group, example of the group].
    table = jnp.arange(config.rollout_steps * rows).reshape(config.rollout_steps, groups, size)
    table = table.transpose(1, 0, 2).reshape(groups, in_group)
    key = addressed_key(root, Stream.SHUFFLE, iteration)

    def shuffled(epoch: Int[Array, ""], group: Int[Array, ""], rows: Int[Array, " n"]) -> Array:
        return jax.random.permutation(folded(key, epoch, group), rows)

    over_groups = jax.vmap(shuffled, in_axes=(None, 0, 0))
    over_epochs = jax.vmap(over_groups, in_axes=(0, None, None))
    order = over_epochs(jnp.arange(config.epochs), copies[::size] // size, table)
    order = order.reshape(config.epochs, groups, -1, share).transpose(0, 2, 1, 3)
    return order.reshape(config.updates_per_iteration, groups * share)


def _metrics(
    config: PPOConfig, rollout: Rollout, target: Float[Array, "t b"], learner: LearnerState, updates: Update
) -> OnlineMetrics:
    steps = rollout.steps
    done = steps.terminated | steps.truncated

    def per_episode(values: Array) -> Float[Array, ""]:
        return total((values * done).sum(), DATA) / total(done.sum(), DATA)

    def spread(values: Float[Array, "t b"]) -> Float[Array, ""]:
        mean = average(values.mean(), DATA)
        return average(((values - mean) ** 2).mean(), DATA)

    def learned(values: Float[Array, " updates"]) -> Float[Array, ""]:
        return jnp.where(updates.taken, values, 0).sum() / updates.taken.sum()

    asked, executed = total(rollout.asked.sum(), DATA), total(rollout.executed.sum(), DATA)
    examples = config.epochs * config.steps_per_iteration
    learning_asked, learning_executed = (
        examples * learned(per_example) for per_example in (updates.terms.loops, updates.terms.executed_loops)
    )
    return OnlineMetrics(
        episodes=total(done.sum(), DATA),
        success=per_episode(steps.episode.success),
        episode_return=per_episode(steps.episode.returns),
        episode_length=per_episode(steps.episode.length),
        loops=average(steps.loops.mean(dtype=target.dtype), DATA),
        capped=average(steps.capped.mean(dtype=target.dtype), DATA),
        acting_executed=executed / asked,
        learning_executed=learning_executed / learning_asked,
        utilisation=(asked + learning_asked) / (executed + learning_executed),
        loss=learned(updates.loss),
        policy_loss=learned(updates.terms.policy_loss),
        value_loss=learned(updates.terms.value_loss),
        entropy=learned(updates.terms.entropy),
        kl=learned(updates.terms.kl),
        clipped=learned(updates.terms.clipped),
        gradient_norm=learned(updates.gradient_norm),
        explained_variance=1 - spread(target - steps.value) / spread(target),
        skipped_updates=learner.skipped,
        skipped_in_a_row=learner.skipped_in_a_row,
    )
