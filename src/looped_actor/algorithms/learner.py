"""One step of gradient descent that a broken gradient cannot spoil."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from looped_actor.algorithms.collectives import all_finite, average, keep_if
from looped_actor.algorithms.gciql import GCIQLConfig
from looped_actor.algorithms.instruments import CoreGradient
from looped_actor.algorithms.rollout_config import RolloutConfig
from looped_actor.loop import MeanGradient


class LearnerState(NamedTuple):
    """Parameters, and what their optimiser remembers."""

    parameters: PyTree
    optimiser: optax.OptState
    skipped: Int[Array, ""]
    """Updates that were left out because loss or gradient was not finite."""
    skipped_in_a_row: Int[Array, ""]
    """How many of the last updates; 0 after one that was taken."""


class Update(NamedTuple):
    """What a step of gradient descent saw."""

    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    """Before clipping."""
    taken: Bool[Array, ""]
    terms: Any
    """What the loss function returned beside its value, averaged over devices."""
    core: CoreGradient | None = None
    """Where gradients are measured, of the first of several updates."""


def new_learner(parameters: PyTree, optimiser: optax.GradientTransformation) -> LearnerState:
    """Before the first update."""
    return LearnerState(parameters, optimiser.init(parameters), jnp.int32(0), jnp.int32(0))


def clipped_adam(config: RolloutConfig | GCIQLConfig, updates: int) -> optax.GradientTransformation:
    """Adam on clipped gradients; where the learning rate decays, it falls to nothing over all updates."""
    rate = config.learning_rate
    schedule = optax.linear_schedule(rate, 0, updates) if config.decay_learning_rate else rate
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(schedule))


def mean_over_taken(updates: Update, values: Float[Array, " updates"]) -> Float[Array, ""]:
    """Mean over the updates that were not skipped."""
    return jnp.where(updates.taken, values, 0).sum() / updates.taken.sum()


def descend(
    learner: LearnerState,
    optimiser: optax.GradientTransformation,
    found: MeanGradient,
    axis: str | None = None,
) -> tuple[LearnerState, Update]:
    """One update, or none where the loss or its gradient is not finite.

    Args:
      learner: parameters and optimiser.
      optimiser: how to use a gradient.
      found: the gradient on this device's part of the batch, at the learner's parameters.
      axis: the mesh axis over which the batch is spread, inside `shard_map`.
    """
    value, terms, gradient = average(found, axis)
    change, state = optimiser.update(gradient, learner.optimiser, learner.parameters)
    parameters = optax.apply_updates(learner.parameters, change)
    # The new parameters are looked at too: a finite gradient can still overflow the optimiser.
    good = all_finite((value, gradient, parameters))
    parameters, state = keep_if(good, (parameters, state), (learner.parameters, learner.optimiser))
    after = LearnerState(
        parameters,
        state,
        learner.skipped + ~good,
        jnp.where(good, 0, learner.skipped_in_a_row + 1),
    )
    return after, Update(value, optax.tree.norm(gradient), good, terms)
