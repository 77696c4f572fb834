"""Imitation of a solver: collect, let the solver label the states, update on minibatches.

The loss is the cross-entropy to a *set*: all optimal actions of a state count as one, however the policy
divides its probability among them. States come from the policy's own rollouts and from the solver's, so the
policy learns where it errs as well as where it should be.

The devices act and learn; in between, every host lets the solver label what its own devices have observed.
The solver also acts in a share of the environments: before a rollout it gives a shortest solution from the
state of each of them, and after the end of that solution the policy continues. A state that cannot be solved
any more teaches nothing, so its environment starts a new episode.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped, UInt32

from looped_actor.algorithms.online import (
    METRICS,
    STATE_SPECS,
    MinibatchLearner,
    OnlineState,
    RolloutConfig,
    flatten_time,
    rollout_metrics,
)
from looped_actor.algorithms.optim import mean_over_applied
from looped_actor.algorithms.policy_fn import Acting, PolicyFn
from looped_actor.algorithms.recipe import DEFAULT, Recipe
from looped_actor.algorithms.rollout import (
    ENV_STATE_SPECS,
    ROLLOUT_SPECS,
    TIME_ROWS,
    EnvState,
    Rollout,
    collect,
    init_env_state,
    restart,
)
from looped_actor.envs import Environment, VectorEnv
from looped_actor.envs.teacher import Teacher
from looped_actor.loop import Carry, Execution, Packed, Streaming
from looped_actor.training.sharding import (
    DATA,
    REPLICATED,
    ROWS,
    abstract_shards,
    from_own_rows,
    jit_per_device,
    mean_over_devices,
    own_rows,
    replicate,
    shardings,
)
from looped_actor.training.trainer import Trainer
from looped_actor.utils.checks import within
from looped_actor.utils.errors import UserError

MAX_GROUPS = 64
"""Environments are pooled into so few groups that each always holds an example with a label."""


@dataclass(frozen=True)
class ImitationConfig(RolloutConfig):
    """Configuration of imitation."""

    solver_share: float = 0.5
    """Share of the environments in which the solver acts; the policy acts in the others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0, 1, "solver_share")


class RolloutLabels(NamedTuple):
    """Labels of a rollout by the solver."""

    optimal: Bool[Array, "t b a"]
    """Optimal actions; all False if none is known."""
    unsolvable: Bool[Array, " b"]
    """Environments whose state cannot be solved any more."""


LABEL_SPECS: Any = RolloutLabels(TIME_ROWS, ROWS)


@dataclass(frozen=True, eq=False)
class Imitation(Trainer):
    """Imitation of a solver on an environment in JAX.

    Args:
      config: how to learn.
      env: the environment.
      build: makes the net from random streams.
      iterations: of the whole run, for the schedule of the learning rate.
      mesh: the devices.
      teacher: the solver, which runs on the host.
      recipe: initial weights and statistics. Shuffling and hard resets are options of PPO only.
      acting: how the decisions of the environments are computed.
      execution: how the loops of a minibatch run.
      dtype: of parameters and statistics.
    """

    config: ImitationConfig
    env: Environment
    build: Callable[[nnx.Rngs], Any]
    iterations: int
    mesh: Mesh
    teacher: Teacher
    recipe: Recipe = DEFAULT
    acting: Acting = field(default_factory=Streaming)
    execution: Execution = field(default_factory=Packed)
    dtype: Any = jnp.float32
    metric_names: ClassVar = (*METRICS, "accuracy", "entropy", "advised")

    def __post_init__(self) -> None:
        self.learner.check_devices(self.mesh.size)
        if self.recipe.shuffle != "examples" or self.recipe.hard_resets:
            raise UserError("imitation shuffles examples and has no hard resets: these are options of PPO")

    @functools.cached_property
    def learner(self) -> MinibatchLearner:
        """The net and its optimization."""
        return MinibatchLearner(
            self.config, self.build, self.iterations, self.recipe, self.dtype, self.execution, MAX_GROUPS
        )

    @functools.cached_property
    def vector(self) -> VectorEnv:
        """Copies of the environment, on all devices."""
        return replicate(self.mesh, VectorEnv(self.env, self.config.num_envs))

    @property
    def steps_per_iteration(self) -> int:
        return self.config.steps_per_iteration

    def init(self, seed: int) -> OnlineState:
        return self._init(self.vector, jax.random.key_data(jax.random.key(seed)))

    def _init(self, vector: VectorEnv, root: UInt32[Array, "2"]) -> OnlineState:
        reset = jax.jit(init_env_state, out_shardings=shardings(self.mesh, ENV_STATE_SPECS))
        env_state = reset(vector, replicate(self.mesh, root))
        weights, carry = self.learner.init_weights(self.mesh, root, env_state.observation)
        return self.learner.init(self.mesh, root, weights, env_state._replace(carry=carry))

    def iterate(self, state: OnlineState) -> tuple[OnlineState, dict[str, Array]]:
        env_state, rollout = self._collect_jit(self.vector, state, self._solver_actions(state))
        labels = self._label(env_state, rollout)
        return self._learn_jit(self.vector, state, env_state, rollout, labels)

    @functools.cached_property
    def _collect_jit(self) -> Any:
        specs = (REPLICATED, STATE_SPECS, TIME_ROWS)
        return jit_per_device(self.mesh, self._collect, specs, (ENV_STATE_SPECS, ROLLOUT_SPECS))

    @functools.cached_property
    def _learn_jit(self) -> Any:
        specs = (REPLICATED, STATE_SPECS, ENV_STATE_SPECS, ROLLOUT_SPECS, LABEL_SPECS)
        return jit_per_device(self.mesh, self._learn, specs, (STATE_SPECS, REPLICATED))

    @functools.cached_property
    def _by_solver(self) -> Bool[np.ndarray, " n"]:
        """Environments in which the solver acts: spread evenly over all."""
        passed = np.floor(np.arange(self.config.num_envs + 1) * self.config.solver_share)
        return passed[1:] > passed[:-1]

    def _solver_actions(self, state: OnlineState) -> Int[Array, "t b"]:
        """Return a solution from the state of each of the solver's environments, and -1 where the policy
        acts."""
        steps, env_state = self.config.rollout_steps, state.env_state
        copy, length = own_rows(env_state.envs.copy), own_rows(env_state.envs.statistics.length)
        actions = np.full((len(copy), steps), -1, np.int32)
        rows = np.flatnonzero(self._by_solver[copy])
        if len(rows):
            actions[rows] = self.teacher.demonstrate(own_rows(env_state.observation)[rows], steps)
        # A solution does not continue after the time limit ends its episode.
        actions[np.arange(steps) >= (self.env.time_limit - length)[:, None]] = -1
        return from_own_rows(self.mesh, actions.T, TIME_ROWS)

    def _collect(
        self, vector: VectorEnv, state: OnlineState, actions: Int[Array, "t b"]
    ) -> tuple[EnvState, Rollout]:
        """Collect a rollout of this device's environments."""
        steps = self.config.rollout_steps
        return collect(
            vector,
            state.env_state,
            self.learner.definition,
            state.weights,
            self.acting,
            state.root,
            state.iteration * steps,
            steps,
            actions,
        )

    def _label(self, env_state: EnvState, rollout: Rollout) -> RolloutLabels:
        """Let the solver label this host's part of a rollout."""
        seen = own_rows(rollout.steps.observation, axis=1)
        optimal = self.teacher.label(seen.reshape(-1, *seen.shape[2:])).optimal
        unsolvable = self.teacher.label(own_rows(env_state.observation)).remaining < 0
        optimal = optimal.reshape(*seen.shape[:2], -1)
        return RolloutLabels(
            from_own_rows(self.mesh, optimal, TIME_ROWS), from_own_rows(self.mesh, unsolvable, ROWS)
        )

    def _learn(
        self,
        vector: VectorEnv,
        state: OnlineState,
        env_state: EnvState,
        rollout: Rollout,
        labels: RolloutLabels,
    ) -> tuple[OnlineState, dict[str, Array]]:
        """Apply the updates of an iteration."""
        learner, steps = self.learner, rollout.steps
        by_policy = ~jnp.asarray(self._by_solver)[env_state.envs.copy]
        carry_kl = learner.carry_kl(state, rollout, by_policy)
        state = learner.update_statistics(state, rollout, learned=False)
        labelled = labels.optimal.any(axis=-1)
        batch = LabelledBatch(steps.observation, labels.optimal, steps.loops, steps.carry)
        learned, updates = learner.updates(state, flatten_time(batch), imitation_loss, flatten_time(labelled))
        metrics = rollout_metrics(self.config, rollout, learned, updates, by_policy) | carry_kl
        metrics["accuracy"] = mean_over_applied(updates, updates.metrics["accuracy"])
        metrics["entropy"] = mean_over_applied(updates, updates.metrics["entropy"])
        metrics["advised"] = mean_over_devices(labelled.mean(dtype=steps.value.dtype), DATA)
        env_state = restart(vector, env_state, labels.unsolvable)
        return learner.next_state(state, learned, env_state, rollout), metrics

    def traces(self) -> dict[str, Callable[[], Any]]:
        steps, rows = self.config.rollout_steps, self.config.num_envs
        actions = jax.ShapeDtypeStruct((steps, rows), jnp.int32)
        actions = abstract_shards(self.mesh, actions, TIME_ROWS)

        def shapes() -> tuple[Any, Any]:
            root = jax.ShapeDtypeStruct((2,), jnp.uint32)
            state = jax.eval_shape(self._init, self.vector, root)
            vector = abstract_shards(self.mesh, self.vector, REPLICATED)
            return vector, abstract_shards(self.mesh, state, STATE_SPECS)

        def trace_learn() -> Any:
            vector, state = shapes()
            collected = jax.eval_shape(self._collect_jit, vector, state, actions)
            env_state, rollout = abstract_shards(self.mesh, collected, (ENV_STATE_SPECS, ROLLOUT_SPECS))
            optimal = jax.ShapeDtypeStruct((steps, rows, self.env.num_actions), bool)
            labels: Any = RolloutLabels(optimal, jax.ShapeDtypeStruct((rows,), bool))  # type: ignore[arg-type]
            labels = abstract_shards(self.mesh, labels, LABEL_SPECS)
            return self._learn_jit.trace(vector, state, env_state, rollout, labels)

        return {
            "collect": lambda: self._collect_jit.trace(*shapes(), actions),
            "learn": trace_learn,
        }


class LabelledBatch(NamedTuple):
    """A batch of examples."""

    observation: PyTree[Shaped[Array, "b ..."]]
    optimal: Bool[Array, "b a"]
    """Optimal actions. Examples without any have no weight."""
    loops: Int[Array, " b"]
    """Loops when acting, by which `Packed` sorts."""
    carry: Carry
    """Carry that the decision started from when acting."""


def imitation_loss(
    policy: PolicyFn, batch: LabelledBatch
) -> tuple[Float[Array, " b"], dict[str, Float[Array, " b"]]]:
    """Return minus the log-probability of the set of optimal actions of each example, and metrics of each."""
    now = policy(batch.observation, expected_loops=batch.loops, carry=batch.carry)
    assert now.loop is not None
    distribution: Any = now.distribution
    labelled = batch.optimal.any(axis=-1)
    # Without a label all actions count, and then the example does not: else there would be 0 x inf.
    counted = batch.optimal | ~labelled[:, None]
    log_set = jax.nn.logsumexp(jnp.where(counted, distribution.log_probabilities, -jnp.inf), axis=-1)
    loss = jnp.where(labelled, -log_set, 0)
    correct = jnp.take_along_axis(batch.optimal, distribution.mode()[:, None], axis=-1)[:, 0]
    metrics = {
        "accuracy": correct.astype(loss.dtype),
        "entropy": distribution.entropy(),
        "loops": now.loop.loops.astype(loss.dtype),
        "executed_loops": jnp.full_like(loss, now.loop.weighted_loop_cost / len(loss)),
    }
    return loss, jax.lax.stop_gradient(metrics)
