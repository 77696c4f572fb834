"""Goal-conditioned implicit Q-learning with a DDPG+BC actor, as in the paper's equation for offline learning.

Three losses. The *value* is an expectile of what the target critics think of the actions in the data, so no
other action is ever asked about. The *critics* learn one step of it, or a few: every step costs 1 until the
goal is there. The *actor* climbs the critics and stays near the data. Each is a loss of every example; a
batch is learned from by their mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from looped_actor.algorithms.collectives import average
from looped_actor.algorithms.deciding import Decide
from looped_actor.checks import above_zero, at_least_one
from looped_actor.errors import UserError

Value = Callable[[Float[Array, "b n"], Float[Array, "b n"]], Float[Array, " b"]]
"""States and goals to how near they are."""
Critics = Callable[[Float[Array, "b n"], Float[Array, "b n"], Float[Array, "b a"]], Float[Array, "2 b"]]
"""States, goals and actions to what two critics think of them."""


@dataclass(frozen=True)
class GCIQLConfig:
    """How to learn offline. The defaults are the paper's."""

    batch: int = 1024
    """Examples of one gradient, over all devices."""
    updates_per_iteration: int = 500
    """Gradient steps between two rows of metrics; evaluations and checkpoints count in these."""
    learning_rate: float = 3e-4
    """Step size of Adam, for all nets."""
    decay_learning_rate: bool = False
    """Let the learning rate fall linearly, to nothing at the end of the run."""
    max_gradient_norm: float = 1.0
    """Longer gradients, of all nets together, are shortened to this."""
    discount: float = 0.99
    """gamma; also of the geometric distance of future goals."""
    expectile: float = 0.9
    """Which of the actions in the data the value believes in: 0.5 the mean, towards 1 the best."""
    n_step: int = 1
    """Steps of an episode from a state to the one whose value its critics believe; fewer where it ends."""
    target_rate: float = 0.005
    """How far the target critics go towards the critics in each update."""
    bc_weight: float = 1.0
    """c_BC: the weight of behaviour cloning."""
    hidden: tuple[int, ...] = (512, 512, 512)
    """Layers of the value and of each critic."""
    FORMER: ClassVar = {"behaviour_cost": "bc_weight"}

    def __post_init__(self) -> None:
        at_least_one(self, "batch", "updates_per_iteration", "n_step")
        above_zero(self, "learning_rate", "max_gradient_norm")
        for name in ("discount", "expectile", "target_rate"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be between 0 and 1")
        if not self.bc_weight >= 0:
            raise UserError(f"bc_weight is {self.bc_weight}; it must be at least 0")
        if not self.hidden or min(self.hidden) < 1:
            raise UserError(f"hidden is {list(self.hidden)}; it must name at least one layer, of at least 1")


class GoalBatch(NamedTuple):
    """What GCIQL learns from: transitions, and goals to look back at them with."""

    state: Float[Array, "*b n"]
    action: Float[Array, "*b a"]
    later_state: Float[Array, "*b n"]
    """Where the critics' target looks: after the next step, or after a few."""
    value_goal: Float[Array, "*b n"]
    actor_goal: Float[Array, "*b n"]
    reached: Bool[Array, "*b"]
    """Whether the value goal is met before that, as the state itself is: the way ends there."""
    steps: Int[Array, "*b"]
    """How many there are to the later state, or to the value goal if it is reached."""


class ValueTerms(NamedTuple):
    """What the value's loss saw: of each example, or means of them."""

    value_loss: Float[Array, "*b"]
    value: Float[Array, "*b"]


class CriticTerms(NamedTuple):
    """What the critics' loss saw."""

    critic_loss: Float[Array, "*b"]
    q: Float[Array, "*b"]
    """Q of the actions in the data, by the lower critic."""


class ActorTerms(NamedTuple):
    """What the actor's loss saw."""

    q_loss: Float[Array, "*b"]
    behaviour_loss: Float[Array, "*b"]
    """Negative log-probability of the actions in the data."""
    action_error: Float[Array, "*b"]
    """Mean squared distance from them."""
    q_of_policy: Float[Array, "*b"]
    loops: Float[Array, "*b"]
    executed_loops: Float[Array, "*b"]
    """Loops that the hardware computed, forward and back, spread evenly; `loops` were asked for."""


def value_loss(
    value: Value, target_critics: Critics, batch: GoalBatch, config: GCIQLConfig
) -> tuple[Float[Array, " b"], ValueTerms]:
    """Expectile regression: underestimating is dearer than overestimating."""
    q = jax.lax.stop_gradient(target_critics(batch.state, batch.value_goal, batch.action).min(axis=0))
    now = value(batch.state, batch.value_goal)
    gap = q - now
    loss = jnp.where(gap >= 0, config.expectile, 1 - config.expectile) * gap**2
    return loss, jax.lax.stop_gradient(ValueTerms(loss, now))


def critic_loss(
    critics: Critics, value: Value, batch: GoalBatch, config: GCIQLConfig
) -> tuple[Float[Array, " b"], CriticTerms]:
    """The cost of a step, or of a few, and the value of where they lead."""
    later = jax.lax.stop_gradient(value(batch.later_state, batch.value_goal))
    discount = jnp.asarray(config.discount, later.dtype)
    left = discount**batch.steps
    cost = (1 - left) / (1 - discount)
    target = jnp.where(batch.reached, 0, left * later) - cost
    both = critics(batch.state, batch.value_goal, batch.action)
    loss = ((both - target) ** 2).sum(axis=0)
    return loss, jax.lax.stop_gradient(CriticTerms(loss, both.min(axis=0)))


def q_of_action(critics: Critics, batch: GoalBatch, action: Float[Array, "b a"]) -> Float[Array, " b"]:
    """What the lower critic thinks of actions on the way to the actor's goals, cut to the bounds."""
    return critics(batch.state, batch.actor_goal, jnp.clip(action, -1, 1)).min(axis=0)


def q_scale(q: Float[Array, " b"], axis: str | None = None) -> Float[Array, ""]:
    """lambda_Q: the mean magnitude of a batch, on whichever devices it lies, without gradient.

    It makes the two terms of the actor commensurable.
    """
    return jax.lax.stop_gradient(average(jnp.abs(q).mean(), axis) + 1e-6)


def actor_loss(
    decide: Decide,
    critics: Critics,
    observation: PyTree,
    batch: GoalBatch,
    config: GCIQLConfig,
    scale: Float[Array, ""] | None = None,
    axis: str | None = None,
) -> tuple[Float[Array, " b"], ActorTerms]:
    """DDPG+BC.

    Args:
      decide: the policy.
      critics: held fixed; the gradient passes through them to the action.
      observation: the states and the actor's goals, as the policy reads them.
      batch: the examples, which may be a part of a minibatch.
      config: how to learn.
      scale: lambda_Q of the minibatch. Default: that of these examples, which are all of it.
      axis: the mesh axis over which they are spread, inside `shard_map`.
    """
    now = decide(observation)
    mean = now.distribution.mode()
    q = q_of_action(critics, batch, mean)
    q_loss = -q / (q_scale(q, axis) if scale is None else scale)
    behaviour = -now.distribution.log_prob(batch.action)
    terms = ActorTerms(
        q_loss=q_loss,
        behaviour_loss=behaviour,
        action_error=((mean - batch.action) ** 2).mean(axis=-1),
        q_of_policy=q,
        loops=now.loop.loops.astype(q.dtype),
        executed_loops=jnp.full_like(q, now.loop.executed_to_learn / len(q)),
    )
    return q_loss + config.bc_weight * behaviour, jax.lax.stop_gradient(terms)
