"""Lambda-returns and advantages, in the form of Brax that the paper uses.

A true end cuts the return. A time-out does not: what was to come is unknown, so the step that timed out
teaches nothing (advantage 0, its own value as target), and the steps before it bootstrap from its value.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Advantages(NamedTuple):
    """What a rollout says of its states and actions. Time-major."""

    advantage: Float[Array, "t b"]
    """How much better an action was than the state's value: r + gamma V_hat(t+1) - V(t)."""
    value_target: Float[Array, "t b"]
    """The lambda-return V_hat."""


def advantages(
    reward: Float[Array, "t b"],
    value: Float[Array, "t b"],
    bootstrap: Float[Array, " b"],
    terminated: Bool[Array, "t b"],
    truncated: Bool[Array, "t b"],
    *,
    discount: float,
    gae_lambda: float,
) -> Advantages:
    """Advantages of a rollout, by one pass backwards through time.

    Args:
      reward: what each step brought.
      value: V of the state that each step was taken in.
      bootstrap: V of the state after the last step.
      terminated: which steps truly ended their episode.
      truncated: which steps ended it by a time-out.
      discount: gamma.
      gae_lambda: lambda.
    """
    counts = ~truncated
    ahead = discount * ~terminated

    def after(values: Float[Array, "t b"]) -> Float[Array, "t b"]:
        return jnp.concatenate([values[1:], bootstrap[None]])

    surprise = counts * (reward + ahead * after(value) - value)

    def back(sum_ahead: Float[Array, " b"], step: tuple) -> tuple[Array, Array]:
        surprise, ahead, counts = step
        total = surprise + counts * ahead * gae_lambda * sum_ahead
        return total, total

    _, correction = jax.lax.scan(back, jnp.zeros_like(bootstrap), (surprise, ahead, counts), reverse=True)
    target = value + correction
    return Advantages(counts * (reward + ahead * after(target) - value), target)
