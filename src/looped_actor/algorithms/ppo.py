"""Proximal policy optimization: collect, compute advantages, update on minibatches.

Policy and value are read from the same latent at the loop at which a decision stops. An update computes both
again with their own halting, so an example may stop at another loop than it did when acting.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import gymnasium.vector
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped, UInt32

from looped_actor.algorithms.gymnasium_rollout import GymnasiumRollouts
from looped_actor.algorithms.online import (
    METRICS,
    STATE_SPECS,
    MinibatchLearner,
    OnlineState,
    RolloutConfig,
    flatten_time,
    rollout_metrics,
)
from looped_actor.algorithms.optim import UpdateInfo, mean_over_applied
from looped_actor.algorithms.policy_fn import Acting, PolicyFn
from looped_actor.algorithms.recipe import DEFAULT, Recipe
from looped_actor.algorithms.rollout import (
    ENV_STATE_SPECS,
    ROLLOUT_SPECS,
    EnvState,
    Rollout,
    collect,
    init_env_state,
    restart,
)
from looped_actor.envs import Environment, VectorEnv
from looped_actor.loop import Carry, Execution, Packed, Streaming
from looped_actor.training.sharding import (
    DATA,
    REPLICATED,
    abstract_shards,
    jit_per_device,
    mean_over_devices,
    replicate,
    shardings,
)
from looped_actor.training.trainer import Trainer
from looped_actor.utils.checks import above_zero, within
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class PPOConfig(RolloutConfig):
    """Configuration of PPO. The defaults are the paper's."""

    discount: float = 0.99
    """gamma."""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation, and of the value targets."""
    clip: float = 0.3
    """Clipping range of the probability ratio around 1."""
    entropy_cost: float = 0.01
    """c_H, coefficient of the entropy bonus."""
    value_cost: float = 0.25
    """c_V, coefficient of the squared error of the value."""
    reward_scale: float = 1.0
    """Factor of all rewards. Scale them so that values are about 1, or their loss dominates a short run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "clip", "reward_scale")
        within(self, 0, 1, "discount", "gae_lambda")
        for name in ("entropy_cost", "value_cost"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 0")


@dataclass(frozen=True, eq=False)
class PPO(Trainer):
    """PPO on an environment in JAX, or on a vector environment of Gymnasium.

    ```python
    trainer = PPO(PPOConfig(num_envs=64, ...), env, build, iterations=100, mesh=all_devices())
    state = trainer.init(seed=0)
    state, metrics = trainer.iterate(state)
    ```

    Args:
      config: how to learn.
      env: the environment.
      build: makes the net from random streams.
      iterations: of the whole run, for the schedule of the learning rate.
      mesh: the devices.
      recipe: initial weights, shuffling, resets and statistics.
      acting: how the decisions of environments in JAX are computed.
      execution: how the loops of a minibatch run.
      dtype: of parameters and statistics.
    """

    config: PPOConfig
    env: Environment | gymnasium.vector.VectorEnv
    build: Callable[[nnx.Rngs], Any]
    iterations: int
    mesh: Mesh
    recipe: Recipe = DEFAULT
    acting: Acting = field(default_factory=Streaming)
    execution: Execution = field(default_factory=Packed)
    dtype: Any = jnp.float32
    metric_names: ClassVar = (
        *METRICS,
        "policy_loss",
        "value_loss",
        "entropy",
        "kl",
        "clipped",
        "explained_variance",
    )

    def __post_init__(self) -> None:
        self.learner.check_devices(self.mesh.size)
        if self.host_rollouts is not None and self.recipe.hard_resets:
            raise UserError("hard_resets are for environments in JAX: those of Gymnasium reset themselves")

    @functools.cached_property
    def learner(self) -> MinibatchLearner:
        """The net and its optimization."""
        return MinibatchLearner(
            self.config, self.build, self.iterations, self.recipe, self.dtype, self.execution
        )

    @functools.cached_property
    def vector(self) -> VectorEnv | None:
        """Copies of an environment in JAX, on all devices; None for Gymnasium."""
        if isinstance(self.env, gymnasium.vector.VectorEnv):
            return None
        return replicate(self.mesh, VectorEnv(self.env, self.config.num_envs))

    @functools.cached_property
    def host_rollouts(self) -> GymnasiumRollouts | None:
        """Rollouts of an environment of Gymnasium; None for JAX."""
        if not isinstance(self.env, gymnasium.vector.VectorEnv):
            return None
        return GymnasiumRollouts(self.env, self.config.num_envs, self.config.rollout_steps, self.mesh)

    @property
    def steps_per_iteration(self) -> int:
        return self.config.steps_per_iteration

    def init(self, seed: int) -> OnlineState:
        root = jax.random.key_data(jax.random.key(seed))
        if self.host_rollouts is None:
            return self._init(self.vector, root)
        env_state = self.host_rollouts.init(seed, root)
        return self._with_weights(root, env_state)

    def _init(self, vector: VectorEnv | None, root: UInt32[Array, "2"]) -> OnlineState:
        reset = jax.jit(init_env_state, out_shardings=shardings(self.mesh, ENV_STATE_SPECS))
        return self._with_weights(root, reset(vector, replicate(self.mesh, root)))

    def _with_weights(self, root: UInt32[Array, "2"], env_state: EnvState) -> OnlineState:
        weights, carry = self.learner.init_weights(self.mesh, root, env_state.observation)
        return self.learner.init(self.mesh, root, weights, env_state._replace(carry=carry))

    def restore(self, state: OnlineState, seed: int) -> OnlineState:
        if self.host_rollouts is None:
            return state
        env_state = self.host_rollouts.restart(seed + int(state.iteration), state.env_state)
        return state._replace(env_state=env_state)

    def iterate(self, state: OnlineState) -> tuple[OnlineState, dict[str, Array]]:
        if self.host_rollouts is None:
            return self._iterate_jit(self.vector, state)
        first_step = int(self._first_step(state))
        env_state, rollout = self.host_rollouts.collect(
            self.learner.definition, state.weights, state.env_state, state.root, first_step
        )
        return self._learn_jit(None, state, env_state, rollout)

    @functools.cached_property
    def _iterate_jit(self) -> Any:
        """A whole iteration as one program on all devices."""
        return jit_per_device(self.mesh, self._iterate, (REPLICATED, STATE_SPECS), (STATE_SPECS, REPLICATED))

    @functools.cached_property
    def _learn_jit(self) -> Any:
        specs = (REPLICATED, STATE_SPECS, ENV_STATE_SPECS, ROLLOUT_SPECS)
        return jit_per_device(self.mesh, self._learn, specs, (STATE_SPECS, REPLICATED))

    def _first_step(self, state: OnlineState) -> Any:
        return state.iteration * self.config.rollout_steps

    def _iterate(self, vector: VectorEnv, state: OnlineState) -> tuple[OnlineState, dict[str, Array]]:
        """Collect a rollout of this device's environments, and learn from it."""
        env_state, rollout = collect(
            vector,
            state.env_state,
            self.learner.definition,
            state.weights,
            self.acting,
            state.root,
            self._first_step(state),
            self.config.rollout_steps,
        )
        return self._learn(vector, state, env_state, rollout)

    def _learn(
        self, vector: VectorEnv | None, state: OnlineState, env_state: EnvState, rollout: Rollout
    ) -> tuple[OnlineState, dict[str, Array]]:
        """Apply the updates of an iteration."""
        config, learner = self.config, self.learner
        carry_kl = learner.carry_kl(state, rollout)
        state = learner.update_statistics(state, rollout, learned=False)
        targets = self._targets(state, env_state, rollout)
        batch = PPOBatch(
            observation=rollout.steps.observation,
            action=rollout.steps.action,
            log_prob=rollout.steps.log_prob,
            advantage=normalize_advantages(targets.advantage, DATA),
            value_target=targets.value_target,
            loops=rollout.steps.loops,
            carry=rollout.steps.carry,
        )
        learned, updates = learner.updates(
            state, flatten_time(batch), lambda policy, examples: ppo_loss(policy, examples, config)
        )
        metrics = rollout_metrics(config, rollout, learned, updates) | carry_kl
        metrics |= _loss_metrics(updates)
        metrics["explained_variance"] = explained_variance(rollout.steps.value, targets.value_target)
        if vector is not None:
            env_state = self._hard_reset(vector, state, env_state)
        return learner.next_state(state, learned, env_state, rollout), metrics

    def _targets(self, state: OnlineState, env_state: EnvState, rollout: Rollout) -> "Targets":
        """Return the advantages and value targets of a rollout."""
        steps, bootstrap = rollout.steps, rollout.bootstrap
        if self.recipe.statistics_before_learning:
            output = self.learner.policy(state.weights)(
                env_state.observation, expected_loops=env_state.loops, carry=env_state.carry
            )
            assert output.value is not None
            bootstrap = output.value
        terminated, truncated = steps.terminated, steps.truncated
        if not self.recipe.bootstrap_timeouts:
            terminated, truncated = terminated | truncated, jnp.zeros_like(truncated)
        return advantages(
            self.config.reward_scale * steps.reward,
            steps.value,
            bootstrap,
            terminated,
            truncated,
            discount=self.config.discount,
            gae_lambda=self.config.gae_lambda,
        )

    def _hard_reset(self, vector: VectorEnv, state: OnlineState, env_state: EnvState) -> EnvState:
        """Start new episodes in all environments, as often in the run as the recipe says."""
        if not self.recipe.hard_resets:
            return env_state
        every = max(1, self.iterations // self.recipe.hard_resets)
        due = jnp.full(len(env_state.loops), (state.iteration + 1) % every == 0)
        return restart(vector, env_state, due)

    def traces(self) -> dict[str, Callable[[], Any]]:
        if self.vector is None:
            raise UserError("environments of Gymnasium run on the host, and cannot be planned")

        def trace() -> Any:
            root = jax.ShapeDtypeStruct((2,), jnp.uint32)
            state = jax.eval_shape(self._init, self.vector, root)
            vector = abstract_shards(self.mesh, self.vector, REPLICATED)
            return self._iterate_jit.trace(vector, abstract_shards(self.mesh, state, STATE_SPECS))

        return {"iterate": trace}


class Targets(NamedTuple):
    """Learning targets of a rollout, time-major."""

    advantage: Float[Array, "t b"]
    """r + gamma V_hat(t+1) - V(t)."""
    value_target: Float[Array, "t b"]
    """lambda-return V_hat."""


def advantages(
    reward: Float[Array, "t b"],
    value: Float[Array, "t b"],
    bootstrap: Float[Array, " b"],
    terminated: Bool[Array, "t b"],
    truncated: Bool[Array, "t b"],
    *,
    discount: float,
    gae_lambda: float,
) -> Targets:
    """Return the advantages and lambda-returns of a rollout, in the form of Brax that the paper uses.

    A termination cuts the return. A time-out does not: the return after it is unknown, so the step that timed
    out has advantage 0 and its own value as target, and the steps before it bootstrap from its value.

    Args:
      reward: reward of each step.
      value: V of the state before each step.
      bootstrap: V of the state after the last step.
      terminated: steps that terminated their episode.
      truncated: steps that ended it by a time-out.
      discount: gamma.
      gae_lambda: lambda.
    """
    not_truncated = ~truncated
    discounts = discount * ~terminated

    def next_step(values: Float[Array, "t b"]) -> Float[Array, "t b"]:
        return jnp.concatenate([values[1:], bootstrap[None]])

    td_error = not_truncated * (reward + discounts * next_step(value) - value)

    def backward(next_sum: Float[Array, " b"], step: tuple) -> tuple[Array, Array]:
        td_error, discounts, not_truncated = step
        total = td_error + not_truncated * discounts * gae_lambda * next_sum
        return total, total

    steps = (td_error, discounts, not_truncated)
    _, correction = jax.lax.scan(backward, jnp.zeros_like(bootstrap), steps, reverse=True)
    target = value + correction
    return Targets(not_truncated * (reward + discounts * next_step(target) - value), target)


def normalize_advantages(advantage: Float[Array, "..."], axis: str | None = None) -> Float[Array, "..."]:
    """Return advantages with mean 0 and variance 1 over the whole rollout, on all devices."""
    mean = mean_over_devices(advantage.mean(), axis)
    variance = mean_over_devices(((advantage - mean) ** 2).mean(), axis)
    return (advantage - mean) / (jnp.sqrt(variance) + 1e-8)


class PPOBatch(NamedTuple):
    """A batch of examples."""

    observation: PyTree[Shaped[Array, "b ..."]]
    action: Shaped[Array, "b ..."]
    log_prob: Float[Array, " b"]
    """Log-probability of the action under the policy that took it."""
    advantage: Float[Array, " b"]
    """Normalised over the whole rollout."""
    value_target: Float[Array, " b"]
    loops: Int[Array, " b"]
    """Loops when acting, by which `Packed` sorts."""
    carry: Carry
    """Carry that the decision started from when acting."""


def ppo_loss(
    policy: PolicyFn, batch: PPOBatch, config: PPOConfig
) -> tuple[Float[Array, " b"], dict[str, Float[Array, " b"]]]:
    """Return the paper's loss of each example, and metrics of each."""
    now = policy(batch.observation, expected_loops=batch.loops, carry=batch.carry)
    assert now.loop is not None
    assert now.value is not None
    log_ratio = now.distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
    policy_loss = -jnp.minimum(ratio * batch.advantage, clipped_ratio * batch.advantage)
    value_loss = (now.value - batch.value_target) ** 2
    entropy = now.distribution.entropy()
    loss = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "kl": ratio - 1 - log_ratio,
        "clipped": (jnp.abs(ratio - 1) > config.clip).astype(ratio.dtype),
        "loops": now.loop.loops.astype(ratio.dtype),
        "executed_loops": jnp.full_like(ratio, now.loop.weighted_loop_cost / len(ratio)),
    }
    return loss, jax.lax.stop_gradient(metrics)


def _loss_metrics(updates: UpdateInfo) -> dict[str, Float[Array, ""]]:
    """Return means over the updates that were applied."""
    names = ("policy_loss", "value_loss", "entropy", "kl", "clipped")
    return {name: mean_over_applied(updates, updates.metrics[name]) for name in names}


def explained_variance(value: Float[Array, "t b"], target: Float[Array, "t b"]) -> Float[Array, ""]:
    """Return the share of the variance of the value targets that the values explain, over all devices."""

    def variance(values: Float[Array, "t b"]) -> Float[Array, ""]:
        mean = mean_over_devices(values.mean(), DATA)
        return mean_over_devices(((values - mean) ** 2).mean(), DATA)

    return 1 - variance(target - value) / variance(target)
