"""Gradient descent on averaged gradients; updates that are not finite are skipped."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from looped_actor.loop import MeanGradient
from looped_actor.training.sharding import mean_over_devices
from looped_actor.utils.trees import all_finite, choose


class LearnerState(NamedTuple):
    """Parameters and optimizer state."""

    parameters: PyTree
    opt_state: optax.OptState
    skipped: Int[Array, ""]
    """Updates skipped so far because loss or gradient was not finite."""
    skipped_in_a_row: Int[Array, ""]
    """Updates skipped since the last one that was applied."""


class UpdateInfo(NamedTuple):
    """Facts about one update."""

    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    """Before clipping."""
    applied: Bool[Array, ""]
    metrics: Any
    """Metrics that the loss function returned, averaged over devices."""


@runtime_checkable
class OptimizerConfig(Protocol):
    """Fields that `clipped_adam` reads."""

    @property
    def learning_rate(self) -> float: ...

    @property
    def decay_learning_rate(self) -> bool: ...

    @property
    def max_gradient_norm(self) -> float: ...


def init_learner(parameters: PyTree, optimizer: optax.GradientTransformation) -> LearnerState:
    """Return the state before the first update."""
    return LearnerState(parameters, optimizer.init(parameters), jnp.int32(0), jnp.int32(0))


def clipped_adam(config: OptimizerConfig, updates: int) -> optax.GradientTransformation:
    """Return Adam on clipped gradients. A decaying learning rate falls linearly to zero over `updates`."""
    rate = config.learning_rate
    schedule = optax.linear_schedule(rate, 0, updates) if config.decay_learning_rate else rate
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(schedule))


def apply_gradients(
    learner: LearnerState,
    optimizer: optax.GradientTransformation,
    found: MeanGradient,
    axis: str | None = None,
) -> tuple[LearnerState, UpdateInfo]:
    """Apply one update, or none if loss, gradient or new parameters are not finite.

    Args:
      learner: parameters and optimizer state.
      optimizer: the gradient transformation.
      found: gradient on this device's part of the batch, at the learner's parameters.
      axis: the mesh axis over which the batch is sharded, inside `shard_map`.
    """
    loss, metrics, gradient = mean_over_devices(found, axis)
    change, opt_state = optimizer.update(gradient, learner.opt_state, learner.parameters)
    parameters = optax.apply_updates(learner.parameters, change)
    # The new parameters are checked too: a finite gradient can still overflow the optimizer.
    finite = all_finite((loss, gradient, parameters))
    parameters, opt_state = choose(finite, (parameters, opt_state), (learner.parameters, learner.opt_state))
    after = LearnerState(
        parameters=parameters,
        opt_state=opt_state,
        skipped=learner.skipped + ~finite,
        skipped_in_a_row=jnp.where(finite, 0, learner.skipped_in_a_row + 1),
    )
    return after, UpdateInfo(loss, optax.tree.norm(gradient), finite, metrics)


def mean_over_applied(updates: UpdateInfo, values: Float[Array, " updates"]) -> Float[Array, ""]:
    """Return the mean over the updates that were applied."""
    return jnp.where(updates.applied, values, 0).sum() / updates.applied.sum()
