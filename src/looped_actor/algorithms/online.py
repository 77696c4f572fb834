"""Parts that PPO and imitation share: configuration, state, minibatch updates and metrics.

Minibatches are stratified so that no example has to move between devices: each takes equally many examples
from every group of environments, a group being as small as divides evenly. So the same run results on any
number of devices, up to the order in which numbers are summed.
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
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from looped_actor.algorithms.normalization import RunningStatistics, zero_statistics
from looped_actor.algorithms.optim import (
    LearnerState,
    UpdateInfo,
    apply_gradients,
    clipped_adam,
    init_learner,
    mean_over_applied,
)
from looped_actor.algorithms.policy_fn import PolicyFn, Weights, init_carry, make_policy
from looped_actor.algorithms.recipe import DEFAULT, Recipe
from looped_actor.algorithms.rollout import ENV_STATE_SPECS, EnvState, Rollout, Transition
from looped_actor.loop import Carry, Execution, MeanGradient, Packed, StopReason, mean_gradient
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.training.sharding import (
    DATA,
    REPLICATED,
    ROWS,
    jit_per_device,
    mean_over_devices,
    replicate,
    sum_over_devices,
)
from looped_actor.utils.checks import above_zero, at_least_one
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class RolloutConfig:
    """Rollouts and minibatch updates. The defaults are the paper's."""

    num_envs: int = 1024
    """Environments, over all devices."""
    rollout_steps: int = 64
    """Steps of each environment between two rounds of updates."""
    minibatch: int = 1024
    """Examples of one gradient, over all devices."""
    epochs: int = 4
    """Passes over the examples of a rollout."""
    learning_rate: float = 1e-4
    """Step size of Adam."""
    decay_learning_rate: bool = False
    """Decay the learning rate linearly to zero over the run."""
    max_gradient_norm: float = 1.0
    """Gradients are clipped to this global norm."""

    def __post_init__(self) -> None:
        at_least_one(self, "num_envs", "rollout_steps", "minibatch", "epochs")
        above_zero(self, "learning_rate", "max_gradient_norm")
        if self.steps_per_iteration % self.minibatch:
            raise UserError(
                f"{self.num_envs} environments x {self.rollout_steps} steps = {self.steps_per_iteration} "
                f"examples do not divide into minibatches of {self.minibatch}"
            )

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one rollout."""
        return self.num_envs * self.rollout_steps

    @property
    def updates_per_iteration(self) -> int:
        """Gradients of one rollout."""
        return self.epochs * self.steps_per_iteration // self.minibatch


class OnlineState(NamedTuple):
    """State of a run of online learning. Save it to resume exactly from here."""

    learner: LearnerState
    fixed: PyTree
    """Variables of the net that are not trained: the latent before the first loop."""
    statistics: RunningStatistics
    """Statistics of observations, the same for acting and learning within an iteration."""
    env_state: EnvState
    iteration: Int[Array, ""]
    root: UInt32[Array, "2"]
    """Key from which every draw is addressed."""

    @property
    def weights(self) -> Weights:
        """Weights of the policy."""
        return Weights(self.learner.parameters, self.fixed, self.statistics)

    def with_weights(self, weights: Weights) -> "OnlineState":
        """Return the state with another policy."""
        learner = self.learner._replace(parameters=weights.parameters)
        return self._replace(learner=learner, fixed=weights.fixed, statistics=weights.statistics)


STATE_SPECS = OnlineState(REPLICATED, REPLICATED, REPLICATED, ENV_STATE_SPECS, REPLICATED, REPLICATED)


@dataclass(frozen=True)
class MinibatchLearner:
    """A net and its optimization by minibatches.

    Args:
      config: how to learn.
      build: makes the net from random streams.
      iterations: of the whole run, for the schedule of the learning rate.
      recipe: initial weights, shuffling and statistics.
      dtype: of parameters and statistics.
      execution: how the loops of a minibatch run.
      max_groups: of environments, from each of which a minibatch takes equally many examples. 0: no limit.
    """

    config: RolloutConfig
    build: Callable[[nnx.Rngs], Any]
    iterations: int
    recipe: Recipe = DEFAULT
    dtype: Any = jnp.float32
    execution: Execution = field(default_factory=Packed)
    max_groups: int = 0

    def __post_init__(self) -> None:
        if self.recipe.shuffle == "steps" and self.config.minibatch % self.config.num_envs:
            raise UserError(
                f"minibatches of {self.config.minibatch} are not whole time steps of {self.config.num_envs} "
                "environments, which the recipe asks for: change one of them"
            )

    def check_devices(self, devices: int) -> None:
        """Raise an error if environments and minibatches do not divide evenly among the devices."""
        if self.groups % devices:
            raise UserError(
                f"{devices} devices do not divide {self.groups}, the largest number that divides both "
                f"num_envs ({self.config.num_envs}) and minibatch ({self.config.minibatch})"
            )

    @property
    def groups(self) -> int:
        """Groups of environments, from each of which a minibatch takes equally many examples."""
        return math.gcd(self.config.num_envs, self.config.minibatch, self.max_groups)

    @functools.cached_property
    def net(self) -> Any:
        """The net, with shapes for weights."""
        return nnx.eval_shape(lambda: self.build(nnx.Rngs(0)))

    @functools.cached_property
    def definition(self) -> nnx.GraphDef:
        """The net without its weights."""
        return nnx.split(self.net)[0]

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, over all updates of the run."""
        return clipped_adam(self.config, self.iterations * self.config.updates_per_iteration)

    def init_weights(self, mesh: Mesh, root: UInt32[Array, "2"], observation: Any) -> tuple[Weights, Carry]:
        """Return new weights on all devices, and the carry of environments that show `observation`."""
        net = self.build(nnx.Rngs(jax.random.wrap_key_data(addressed_key(root, Stream.NET))))
        _, trained, fixed = nnx.split(net, nnx.Param, ...)
        features = jax.tree.leaves(observation)[0].shape[1:]
        features = features if self.recipe.cell_statistics else features[-1:]
        weights = Weights(trained, fixed, zero_statistics(features))
        weights = replicate(mesh, jax.tree.map(lambda a: a.astype(self.dtype), weights))
        if not self.recipe.statistics_before_learning:
            # The first observations count, so that the first rollout is not played by an unscaled net.
            update = jit_per_device(
                mesh,
                lambda statistics, observation: statistics.update(observation, DATA),
                (REPLICATED, ROWS),
                REPLICATED,
            )
            weights = weights._replace(statistics=update(weights.statistics, observation))
        carry = jit_per_device(
            mesh,
            lambda weights, observation: init_carry(self.definition, weights, observation, net.carry_latent),
            (REPLICATED, ROWS),
            ROWS,
        )
        return weights, carry(weights, observation)

    def init(
        self, mesh: Mesh, root: UInt32[Array, "2"], weights: Weights, env_state: EnvState
    ) -> OnlineState:
        """Return the state of a new run."""
        learner = init_learner(weights.parameters, self.optimizer)
        learner, iteration, root = replicate(mesh, (learner, jnp.int32(0), root))
        return OnlineState(learner, weights.fixed, weights.statistics, env_state, iteration, root)

    def policy(self, weights: Weights, execution: Execution | None = None) -> PolicyFn:
        """Return the policy with some weights."""
        return make_policy(self.definition, weights, execution=execution or self.execution)

    def gradient(
        self, state: OnlineState, learner: LearnerState, loss: Callable, minibatch: Any
    ) -> MeanGradient:
        """Return the gradient of a minibatch; `loss` takes a policy and examples."""

        def with_parameters(parameters: PyTree, execution: Execution) -> PolicyFn:
            return self.policy(state.weights._replace(parameters=parameters), execution)

        return mean_gradient(
            loss,
            with_parameters,
            learner.parameters,
            minibatch,
            self.execution,
            expected_loops=minibatch.loops,
        )

    def updates(
        self, state: OnlineState, examples: Any, loss: Callable, usable: Bool[Array, " n"] | None = None
    ) -> tuple[LearnerState, UpdateInfo]:
        """Apply the updates of an iteration on this device's examples; skip examples that are not usable."""

        def update(learner: LearnerState, rows: Int[Array, " m"]) -> tuple[LearnerState, UpdateInfo]:
            minibatch = jax.tree.map(lambda a: take_rows(a, rows), examples)
            gradient = self.gradient(state, learner, loss, minibatch)
            return apply_gradients(learner, self.optimizer, gradient, DATA)

        return jax.lax.scan(update, state.learner, self.minibatches(state, usable))

    def minibatches(
        self, state: OnlineState, usable: Bool[Array, " n"] | None = None
    ) -> Int[Array, "updates m"]:
        """Return the rows of this device's examples for every update of an iteration.

        Each epoch, each group shuffles its examples, and a minibatch takes its share of every group. If some
        are not usable, the usable ones of their group take their places in turn. Or, by the recipe, time
        steps are shuffled, and a minibatch takes some of them whole.
        """
        copies = state.env_state.envs.copy
        key = addressed_key(state.root, Stream.SHUFFLE, state.iteration)
        if self.recipe.shuffle == "steps":
            return shuffle_steps(self.config, len(copies), key)
        return shuffle_examples(self.config, self.groups, copies, key, usable)

    def carry_kl(
        self, state: OnlineState, rollout: Rollout, counted: Bool[Array, " b"] | None = None
    ) -> dict[str, Float[Array, ""]]:
        """Return how much carried latents matter, by the last step of a rollout; empty if nothing is carried.

        Both numbers are KL from the policy that acted to the same weights computed again: without the carry,
        and with the carry as it was stored. With `counted`, of these environments.
        """
        last: Transition = jax.tree.map(lambda leaf: leaf[-1], rollout.steps)
        if last.carry.is_empty:
            return {}
        counted = jnp.ones(len(last.loops), bool) if counted is None else counted
        policy = self.policy(state.weights)

        def kl(carry: Carry | None) -> Float[Array, ""]:
            now = policy(last.observation, expected_loops=last.loops, carry=carry)
            log_ratio = now.distribution.log_prob(last.action) - last.log_prob
            estimates = jnp.exp(log_ratio) - 1 - log_ratio
            return sum_over_devices((estimates * counted).sum(), DATA) / sum_over_devices(counted.sum(), DATA)

        return {"fresh_start_kl": kl(None), "stored_start_kl": kl(last.carry)}

    def update_statistics(self, state: OnlineState, rollout: Rollout, learned: bool) -> OnlineState:
        """Count the observations of a rollout, at the moment that the recipe says: before or after
        learning."""
        if learned == self.recipe.statistics_before_learning:
            return state
        return state._replace(statistics=state.statistics.update(rollout.steps.observation, DATA))

    def next_state(
        self, state: OnlineState, learner: LearnerState, env_state: EnvState, rollout: Rollout
    ) -> OnlineState:
        """Return the state after an iteration."""
        state = self.update_statistics(state, rollout, learned=True)
        return state._replace(learner=learner, env_state=env_state, iteration=state.iteration + 1)


def flatten_time(steps: PyTree) -> Any:
    """Merge time and environment, `[T, B, ...]` to `[T x B, ...]`."""
    return jax.tree.map(lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]), steps)


def take_rows(all: Array, rows: Int[Array, " m"]) -> Array:
    """Return some examples; each is taken as one row of numbers, which is read as it lies."""
    return all.reshape(len(all), -1)[rows].reshape(len(rows), *all.shape[1:]) if all.size else all[rows]


def shuffle_examples(
    config: RolloutConfig,
    groups: int,
    copies: Int[Array, " b"],
    key: Array,
    usable: Bool[Array, " n"] | None = None,
) -> Int[Array, "updates m"]:
    """Return the rows of minibatches that take equally many examples of every group of environments."""
    rows, size = len(copies), config.num_envs // groups
    own_groups, in_group = rows // size, config.rollout_steps * size
    share = config.minibatch // groups
    # Row step x rows + env of the examples, as [group, example of the group].
    table = jnp.arange(config.rollout_steps * rows).reshape(config.rollout_steps, own_groups, size)
    table = table.transpose(1, 0, 2).reshape(own_groups, in_group)

    def shuffle(epoch: Int[Array, ""], group: Int[Array, ""], rows: Int[Array, " n"]) -> Array:
        order = jax.random.permutation(folded(key, epoch, group), rows)
        if usable is None:
            return order
        order = order[jnp.argsort(~usable[order], stable=True)]
        return order[jnp.arange(in_group) % jnp.maximum(usable[order].sum(), 1)]

    over_groups = jax.vmap(shuffle, in_axes=(None, 0, 0))
    over_epochs = jax.vmap(over_groups, in_axes=(0, None, None))
    order = over_epochs(jnp.arange(config.epochs), copies[::size] // size, table)
    order = order.reshape(config.epochs, own_groups, -1, share).transpose(0, 2, 1, 3)
    return order.reshape(config.updates_per_iteration, own_groups * share)


def shuffle_steps(config: RolloutConfig, rows: int, key: Array) -> Int[Array, "updates m"]:
    """Return the rows of minibatches that take all environments of some time steps."""

    def shuffle(epoch: Int[Array, ""]) -> Int[Array, " t"]:
        return jax.random.permutation(folded(key, epoch, 0), config.rollout_steps)

    steps = jax.vmap(shuffle)(jnp.arange(config.epochs))
    order = steps[..., None] * rows + jnp.arange(rows)
    return order.reshape(config.updates_per_iteration, -1)


METRICS = {
    "episodes": "Episodes that ended in this iteration.",
    "success": "Share of these that succeeded. NaN if none ended or the environment does not report success.",
    "episode_return": "Mean return of these episodes.",
    "episode_length": "Mean length of these episodes.",
    "loops": "Mean loops of a decision when acting.",
    "capped": "Share of decisions that the cap stopped.",
    "non_finite": "Share of decisions that stopped because the next loop was not finite.",
    "acting_executed": "Loops computed for each loop needed, when acting.",
    "learning_executed": "Loops computed for each loop needed, when learning.",
    "utilisation": "Share of the computed loops that were needed.",
    "loss": "Mean over the updates that were applied; also below.",
    "gradient_norm": "Global norm before clipping.",
    "skipped_updates": "Updates skipped since the start because loss or gradient was not finite.",
    "skipped_in_a_row": "Updates skipped since the last one that was applied.",
    "fresh_start_kl": "With carried latents: KL from the acting policy to the same policy without its carry.",
    "stored_start_kl": "With carried latents: KL from the acting policy to the same policy computed again.",
}
"""Columns of metrics.csv that every algorithm with rollouts has."""


def rollout_metrics(
    config: RolloutConfig,
    rollout: Rollout,
    learner: LearnerState,
    updates: UpdateInfo,
    counted: Bool[Array, " b"] | None = None,
) -> dict[str, Array]:
    """Return `METRICS` over all devices; with `counted`, episodes of these environments only."""
    steps = rollout.steps
    done = steps.terminated | steps.truncated
    if counted is not None:
        done &= counted
    learned = functools.partial(mean_over_applied, updates)

    def per_episode(values: Array) -> Float[Array, ""]:
        return sum_over_devices(jnp.where(done, values, 0).sum(), DATA) / sum_over_devices(done.sum(), DATA)

    def share(marked: Array) -> Float[Array, ""]:
        return mean_over_devices(marked.mean(dtype=steps.value.dtype), DATA)

    needed, executed = (sum_over_devices(n.sum(), DATA) for n in (rollout.loops, rollout.executed))
    examples = config.epochs * config.steps_per_iteration
    learning_needed, learning_executed = (
        examples * learned(updates.metrics[name]) for name in ("loops", "executed_loops")
    )
    return {
        "episodes": sum_over_devices(done.sum(), DATA),
        "success": per_episode(steps.episode.success),
        "episode_return": per_episode(steps.episode.returns),
        "episode_length": per_episode(steps.episode.length),
        "loops": share(steps.loops),
        "capped": share(steps.stop == StopReason.CAP),
        "non_finite": share(steps.stop == StopReason.NON_FINITE),
        "acting_executed": executed / needed,
        "learning_executed": learning_executed / learning_needed,
        "utilisation": (needed + learning_needed) / (executed + learning_executed),
        "loss": learned(updates.loss),
        "gradient_norm": learned(updates.gradient_norm),
        "skipped_updates": learner.skipped,
        "skipped_in_a_row": learner.skipped_in_a_row,
    }
