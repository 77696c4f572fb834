"""Goal-conditioned implicit Q-learning with a DDPG+BC actor: draw batches, update value, critics and actor.

Three losses, as in the paper's equation for offline learning. The *value* is an expectile of the target
critics' values of the actions in the data, so no other action is ever evaluated. The *critics* bootstrap from
the value, one step or a few later: every step costs 1 until the goal is reached. The *actor* maximises the
critics and stays near the data.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree, UInt32

from looped_actor.algorithms.normalization import RunningStatistics, zero_statistics
from looped_actor.algorithms.optim import (
    LearnerState,
    UpdateInfo,
    apply_gradients,
    clipped_adam,
    init_learner,
    mean_over_applied,
)
from looped_actor.algorithms.policy_fn import PolicyFn, Weights, make_policy, to_streaming
from looped_actor.loop import Execution, FrozenScan, MeanGradient, Packed, Streaming, mean_gradient
from looped_actor.loop.rng import Stream, addressed_key
from looped_actor.models import GoalObservation
from looped_actor.offline import Dataset, GoalSampling
from looped_actor.offline.batches import (
    UPDATE_ROWS,
    BatchSampling,
    DeviceBatches,
    DeviceTable,
    GoalBatch,
    HostBatches,
    device_table,
)
from looped_actor.training.sharding import (
    DATA,
    REPLICATED,
    abstract_shards,
    jit_per_device,
    mean_over_devices,
    replicate,
)
from looped_actor.training.trainer import Trainer
from looped_actor.utils.checks import above_zero, at_least_one, sizes_above_zero
from looped_actor.utils.errors import UserError
from looped_actor.utils.trees import choose

ValueFn = Callable[[Float[Array, "b n"], Float[Array, "b n"]], Float[Array, " b"]]
"""V(state, goal)."""
CriticFn = Callable[[Float[Array, "b n"], Float[Array, "b n"], Float[Array, "b a"]], Float[Array, "2 b"]]
"""Q(state, goal, action) by two critics."""


@dataclass(frozen=True)
class GCIQLConfig:
    """Configuration of GCIQL. The defaults are the paper's."""

    batch: int = 1024
    """Examples of one gradient, over all devices."""
    updates_per_iteration: int = 500
    """Gradient steps between two rows of metrics, the unit of evaluations and checkpoints."""
    learning_rate: float = 3e-4
    """Step size of Adam, for all nets."""
    decay_learning_rate: bool = False
    """Decay the learning rate linearly to zero over the run."""
    max_gradient_norm: float = 1.0
    """The gradient of all nets together is clipped to this global norm."""
    discount: float = 0.99
    """gamma; also of the geometric distance of future goals."""
    expectile: float = 0.9
    """Expectile of the value: 0.5 is the mean over actions in the data, towards 1 the best of them."""
    n_step: int = 1
    """Steps from a state to the one that its critics bootstrap from; fewer at the end of an episode."""
    target_rate: float = 0.005
    """Step of the target critics towards the critics in each update."""
    bc_weight: float = 1.0
    """c_BC, the weight of behaviour cloning."""
    hidden: tuple[int, ...] = (512, 512, 512)
    """Widths of the layers of the value and of each critic."""

    def __post_init__(self) -> None:
        at_least_one(self, "batch", "updates_per_iteration", "n_step")
        above_zero(self, "learning_rate", "max_gradient_norm")
        for name in ("discount", "expectile", "target_rate"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be between 0 and 1")
        if not self.bc_weight >= 0:
            raise UserError(f"bc_weight is {self.bc_weight}; it must be at least 0")
        sizes_above_zero(self, "hidden")


class Nets(NamedTuple):
    """Parameters of all nets, or one thing for each of the three. The actor is None if critics learn
    alone."""

    value: Any
    critics: Any
    actor: Any


class CriticParams(NamedTuple):
    """Parameters of value and critics. They do not depend on the actor, so one pair can serve any number."""

    value: Any
    critics: Any


class OfflineState(NamedTuple):
    """State of a run of GCIQL. Save it to resume exactly from here."""

    learner: LearnerState
    """Parameters of `Nets`."""
    target_critics: PyTree
    fixed: PyTree
    """Variables of the actor that are not trained: the latent before the first loop."""
    statistics: RunningStatistics
    """Statistics that do not normalise: states are used as they are."""
    iteration: Int[Array, ""]
    root: UInt32[Array, "2"]
    """Key from which every draw is addressed."""

    @property
    def weights(self) -> Weights:
        """Weights of the actor."""
        return Weights(self.learner.parameters.actor, self.fixed, self.statistics)


@dataclass(frozen=True, eq=False)
class GCIQL(Trainer):
    """GCIQL on a dataset: value, critics and actor together, critics alone, or an actor from given critics.

    Args:
      config: how to learn.
      goals: how goals are drawn.
      dataset: the data.
      build: makes each net from random streams. Without an actor, critics learn alone.
      iterations: of the whole run, for the schedule of the learning rate.
      mesh: the devices.
      on_disk: read batches from disk, instead of putting the data on the devices.
      critics: value and critics that were learned before. They stay fixed, and only the actor learns.
      execution: how the loops of a batch run.
      dtype: of parameters and data.
    """

    config: GCIQLConfig
    goals: GoalSampling
    dataset: Dataset
    build: Nets
    iterations: int
    mesh: Mesh
    on_disk: bool = False
    critics: CriticParams | None = None
    execution: Execution = field(default_factory=Packed)
    dtype: Any = jnp.float32
    metric_names: ClassVar = (
        "loss",
        "value_loss",
        "value",
        "critic_loss",
        "q",
        "q_loss",
        "behaviour_loss",
        "action_error",
        "q_of_policy",
        "loops",
        "executed_loops",
        "gradient_norm",
        "utilisation",
        "skipped_updates",
        "skipped_in_a_row",
    )

    def __post_init__(self) -> None:
        if self.config.batch % self.mesh.size:
            raise UserError(f"{self.mesh.size} devices do not divide a batch of {self.config.batch}")

    @property
    def steps_per_iteration(self) -> int:
        return self.config.updates_per_iteration

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, over all updates of the run."""
        return clipped_adam(self.config, self.iterations * self.config.updates_per_iteration)

    @functools.cached_property
    def definitions(self) -> Nets:
        """The nets without their weights."""
        return Nets(*(b and nnx.split(nnx.eval_shape(lambda b=b: b(nnx.Rngs(0))))[0] for b in self.build))

    @functools.cached_property
    def _sampling(self) -> BatchSampling:
        config = self.config
        return BatchSampling(
            batch=config.batch,
            updates=config.updates_per_iteration,
            goals=self.goals,
            discount=config.discount,
            steps=config.n_step,
            dtype=self.dtype,
        )

    @functools.cached_property
    def _table(self) -> DeviceTable:
        return device_table(self.dataset, self.mesh, self.dtype)

    @functools.cached_property
    def _host_batches(self) -> HostBatches:
        return HostBatches(self.dataset, self._sampling, self.mesh)

    def init(self, seed: int) -> OfflineState:
        return self._init(jax.random.key_data(jax.random.key(seed)))

    def _init(self, root: UInt32[Array, "2"]) -> OfflineState:
        def make(number: int, build: Callable[[nnx.Rngs], Any] | None) -> Any:
            if build is None:
                return None, None
            key = jax.random.wrap_key_data(addressed_key(root, Stream.NET, number))
            parts = nnx.split(build(nnx.Rngs(key)), nnx.Param, ...)
            return jax.tree.map(lambda a: a.astype(self.dtype), parts[1:])

        nets = [make(number, build) for number, build in enumerate(self.build)]
        parameters = Nets(*(trained for trained, _ in nets))
        if self.critics is not None:
            given = jax.tree.map(lambda a: jnp.asarray(a, self.dtype), self.critics)
            parameters = parameters._replace(**given._asdict())
        state = OfflineState(
            learner=init_learner(parameters, self.optimizer),
            target_critics=parameters.critics,
            fixed=nets[-1][1],
            statistics=jax.tree.map(
                lambda a: a.astype(self.dtype), zero_statistics(self.dataset.states.shape[1])
            ),
            iteration=jnp.int32(0),
            root=root,
        )
        return replicate(self.mesh, state)

    def iterate(self, state: OfflineState) -> tuple[OfflineState, dict[str, Array]]:
        if not self.on_disk:
            return self._iterate_on_table(self._table, state)
        iteration = int(state.iteration)
        after, metrics = self._iterate_on_batches(state, self._host_batches.batches(state.root, iteration))
        self._host_batches.prefetch(state.root, iteration + 1)
        return after, metrics

    @functools.cached_property
    def _iterate_on_table(self) -> Any:
        """An iteration that draws its batches on the devices, as one program."""
        batches = DeviceBatches(self._sampling, self.mesh.size)

        def iterate(table: DeviceTable, state: OfflineState) -> tuple[OfflineState, dict[str, Array]]:
            numbers = self._sampling.numbers(state.iteration)
            return self._learn(state, numbers, lambda number: batches.batch(table, state.root, number))

        return jit_per_device(self.mesh, iterate, (REPLICATED, REPLICATED), (REPLICATED, REPLICATED))

    @functools.cached_property
    def _iterate_on_batches(self) -> Any:
        """An iteration on batches that the host has read."""
        return jit_per_device(
            self.mesh,
            lambda state, batches: self._learn(state, batches, lambda batch: batch),
            (REPLICATED, UPDATE_ROWS),
            (REPLICATED, REPLICATED),
        )

    def _learn(
        self, state: OfflineState, updates: Any, batch_of: Callable[[Any], GoalBatch]
    ) -> tuple[OfflineState, dict[str, Array]]:
        """Apply the updates of an iteration; `batch_of` makes this device's part of the batch of each."""

        def update(carry: tuple, given: Any) -> tuple[tuple, UpdateInfo]:
            learner, target = carry
            gradient = self._gradient(learner.parameters, target, state, batch_of(given))
            after, info = apply_gradients(learner, self.optimizer, gradient, DATA)
            # Towards the critics before the update, as in OGBench's reference.
            moved = optax.incremental_update(learner.parameters.critics, target, self.config.target_rate)
            return (after, choose(info.applied, moved, target)), info

        (learner, target), infos = jax.lax.scan(update, (state.learner, state.target_critics), updates)
        after = state._replace(learner=learner, target_critics=target, iteration=state.iteration + 1)
        return after, _metrics(learner, infos)

    def _gradient(
        self, parameters: Nets, target: PyTree, state: OfflineState, batch: GoalBatch
    ) -> MeanGradient:
        """Return the gradients of all losses on this device's part of a batch."""
        value_net, critics_net, _ = (
            functools.partial(nnx.merge, definition) for definition in self.definitions
        )
        config = self.config
        if self.critics is None:
            value = _batch_gradient(
                lambda own: value_loss(value_net(own), critics_net(target), batch, config), parameters.value
            )
            critics = _batch_gradient(
                lambda own: critic_loss(critics_net(own), value_net(parameters.value), batch, config),
                parameters.critics,
            )
        else:
            value, critics = self._zero_gradient(parameters.value), self._zero_gradient(parameters.critics)
        if self.build.actor is None:
            actor = self._zero_gradient(parameters.actor)
        else:
            weights = state.weights._replace(parameters=parameters.actor)
            actor = self._actor_gradient(weights, critics_net(parameters.critics), batch)
        return MeanGradient(
            loss=value.loss + critics.loss + actor.loss,
            metrics=value.metrics | critics.metrics | actor.metrics,
            gradient=Nets(value.gradient, critics.gradient, actor.gradient),
        )

    def _zero_gradient(self, parameters: PyTree) -> MeanGradient:
        """Return the gradient of nets that do not learn."""
        return MeanGradient(jnp.zeros((), self.dtype), {}, jax.tree.map(jnp.zeros_like, parameters))

    def _actor_gradient(self, weights: Weights, critics: CriticFn, batch: GoalBatch) -> MeanGradient:
        """Return the gradient of the actor.

        A looped actor first decides for the whole batch, to get the scale of Q, which belongs to the whole
        batch while its gradient is taken of few examples at a time, and the depth of each example, by which
        they are packed: data has no depths from acting, as PPO's has.
        """
        definition = self.definitions.actor
        observation = GoalObservation(batch.state, batch.actor_goal)
        execution, scale, streamed = FrozenScan(), None, None
        streamable = to_streaming(definition, weights)
        if streamable is not None:
            execution, streamed = self.execution, Streaming().decide(streamable, observation)
            q = q_of_action(critics, batch, streamed.output.decision.distribution.mode())
            scale = q_scale(q, DATA)

        def with_parameters(parameters: PyTree, execution: Execution) -> PolicyFn:
            return make_policy(definition, weights._replace(parameters=parameters), execution=execution)

        def loss(policy: PolicyFn, examples: GoalBatch) -> tuple[Array, dict[str, Array]]:
            own = GoalObservation(examples.state, examples.actor_goal)
            return actor_loss(policy, critics, own, examples, self.config, scale, DATA)

        depths = None if streamed is None else streamed.output.loops
        found = mean_gradient(
            loss, with_parameters, weights.parameters, batch, execution, expected_loops=depths
        )
        if streamed is None:
            return found
        # One more forward pass, where learning from a loop takes the work of four.
        executed = found.metrics["executed_loops"] + streamed.executed / len(batch.state) / 4
        return found._replace(metrics=found.metrics | {"executed_loops": executed})

    def traces(self) -> dict[str, Callable[[], Any]]:
        if self.on_disk:
            raise UserError("data that stays on disk is read by the host, and cannot be planned")

        def trace() -> Any:
            state = jax.eval_shape(self._init, jax.ShapeDtypeStruct((2,), jnp.uint32))
            table = abstract_shards(self.mesh, self._table, REPLICATED)
            return self._iterate_on_table.trace(table, abstract_shards(self.mesh, state, REPLICATED))

        return {"iterate": trace}


def _batch_gradient(
    loss: Callable[[Any], tuple[Array, dict[str, Array]]], parameters: PyTree
) -> MeanGradient:
    """Return the gradient of the mean of a loss of each example."""

    def mean_loss(parameters: PyTree) -> tuple[Array, Any]:
        losses, metrics = loss(parameters)
        return losses.mean(), jax.tree.map(jnp.mean, metrics)

    (value, metrics), gradient = jax.value_and_grad(mean_loss, has_aux=True)(parameters)
    return MeanGradient(value, metrics, gradient)


def value_loss(
    value: ValueFn, target_critics: CriticFn, batch: GoalBatch, config: GCIQLConfig
) -> tuple[Float[Array, " b"], dict[str, Float[Array, " b"]]]:
    """Return the expectile regression loss of the value towards the lower target critic."""
    q = jax.lax.stop_gradient(target_critics(batch.state, batch.value_goal, batch.action).min(axis=0))
    v = value(batch.state, batch.value_goal)
    gap = q - v
    loss = jnp.where(gap >= 0, config.expectile, 1 - config.expectile) * gap**2
    return loss, jax.lax.stop_gradient({"value_loss": loss, "value": v})


def critic_loss(
    critics: CriticFn, value: ValueFn, batch: GoalBatch, config: GCIQLConfig
) -> tuple[Float[Array, " b"], dict[str, Float[Array, " b"]]]:
    """Return the squared error of both critics to minus the cost of the steps plus the value after them."""
    next_value = jax.lax.stop_gradient(value(batch.next_state, batch.value_goal))
    discount = jnp.asarray(config.discount, next_value.dtype)
    remaining = discount**batch.steps
    cost = (1 - remaining) / (1 - discount)
    target = jnp.where(batch.reached, 0, remaining * next_value) - cost
    q = critics(batch.state, batch.value_goal, batch.action)
    loss = ((q - target) ** 2).sum(axis=0)
    return loss, jax.lax.stop_gradient({"critic_loss": loss, "q": q.min(axis=0)})


def q_of_action(critics: CriticFn, batch: GoalBatch, action: Float[Array, "b a"]) -> Float[Array, " b"]:
    """Return the lower critic's value of actions, clipped to their bounds, for the actor's goals."""
    return critics(batch.state, batch.actor_goal, jnp.clip(action, -1, 1)).min(axis=0)


def q_scale(q: Float[Array, " b"], axis: str | None = None) -> Float[Array, ""]:
    """Return lambda_Q, the mean magnitude over a batch on all devices, without gradient.

    It makes the two terms of the actor's loss commensurable.
    """
    return jax.lax.stop_gradient(mean_over_devices(jnp.abs(q).mean(), axis) + 1e-6)


def actor_loss(
    policy: PolicyFn,
    critics: CriticFn,
    observation: PyTree,
    batch: GoalBatch,
    config: GCIQLConfig,
    scale: Float[Array, ""] | None = None,
    axis: str | None = None,
) -> tuple[Float[Array, " b"], dict[str, Float[Array, " b"]]]:
    """Return the DDPG+BC loss of each example, and metrics of each.

    Args:
      policy: the actor.
      critics: fixed; the gradient passes through them to the action.
      observation: states and the actor's goals, as the policy reads them.
      batch: the examples, which may be a part of a minibatch.
      config: how to learn.
      scale: lambda_Q of the minibatch. Default: that of these examples, which are all of it.
      axis: the mesh axis over which they are sharded, inside `shard_map`.
    """
    now = policy(observation)
    assert now.loop is not None
    mean = now.distribution.mode()
    q = q_of_action(critics, batch, mean)
    q_loss = -q / (q_scale(q, axis) if scale is None else scale)
    behaviour = -now.distribution.log_prob(batch.action)
    metrics = {
        "q_loss": q_loss,
        "behaviour_loss": behaviour,
        "action_error": ((mean - batch.action) ** 2).mean(axis=-1),
        "q_of_policy": q,
        "loops": now.loop.loops.astype(q.dtype),
        "executed_loops": jnp.full_like(q, now.loop.weighted_loop_cost / len(q)),
    }
    return q_loss + config.bc_weight * behaviour, jax.lax.stop_gradient(metrics)


def _metrics(learner: LearnerState, updates: UpdateInfo) -> dict[str, Array]:
    """Return means over the updates that were applied."""
    mean = functools.partial(mean_over_applied, updates)
    metrics = {name: mean(values) for name, values in updates.metrics.items()}
    if "loops" in metrics:
        metrics["utilisation"] = metrics["loops"] / metrics["executed_loops"]
    return metrics | {
        "loss": mean(updates.loss),
        "gradient_norm": mean(updates.gradient_norm),
        "skipped_updates": learner.skipped,
        "skipped_in_a_row": learner.skipped_in_a_row,
    }
