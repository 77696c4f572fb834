"""Goals in hindsight: what was reached on the way is taken for what was wanted.

A value goal is the state itself, a later state of its episode at a geometric distance, or any state of the
dataset. An actor's goal is a later state of its episode, each as likely as the others, or at a geometric
distance too. A goal is never taken across the end of an episode; from its last transition on, the later
state is that of the row itself.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, UInt32

from looped_actor.errors import UserError
from looped_actor.offline.dataset import EpisodeIndex


@dataclass(frozen=True)
class GoalSampling:
    """How value goals are mixed. The defaults are GCIQL's."""

    current: float = 0.2
    """Share of goals that are the state itself."""
    future: float = 0.5
    """Share from later in the episode."""
    random: float = 0.3
    """Share from anywhere in the dataset."""
    near_actor: bool = False
    """Draw the actor's goals at a geometric distance, too, instead of evenly over the rest of the episode."""

    def __post_init__(self) -> None:
        shares = (self.current, self.future, self.random)
        if min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise UserError(f"shares of goals are {shares}; they must be at least 0 and sum to 1")


class Drawn(NamedTuple):
    """Rows of a dataset to learn from."""

    row: Int[Array, "*b"]
    later: Int[Array, "*b"]
    """A few steps on, or where the episode ends."""
    value_goal: Int[Array, "*b"]
    actor_goal: Int[Array, "*b"]


def draw(
    index: EpisodeIndex,
    key: Key[Array, ""] | UInt32[Array, "2"],
    sampling: GoalSampling,
    discount: float,
    steps: int = 1,
) -> Drawn:
    """One transition, any of the dataset's, and goals for it.

    Args:
      index: where the transitions are.
      key: of this one example, so that a batch does not depend on how it is spread over devices.
      sampling: shares of value goals.
      discount: a future value goal is k steps ahead with probability (1 - discount) discount^(k - 1).
      steps: to the later state.
    """
    keys = jax.random.split(key, 5)
    count = len(index.begins)
    row = jnp.asarray(index.begins)[jax.random.randint(keys[0], (), 0, count)]
    anywhere = jnp.asarray(index.begins)[jax.random.randint(keys[1], (), 0, count)]
    last = jnp.asarray(index.last)[row]

    def ahead(key: Any) -> Int[Array, ""]:
        return jnp.minimum(row + jax.random.geometric(key, 1 - discount, dtype=jnp.int32), last)

    future = ahead(keys[2])
    kind = jax.random.uniform(keys[3])
    value_goal = jnp.where(
        kind < sampling.current, row, jnp.where(kind < sampling.current + sampling.future, future, anywhere)
    )
    evenly = jax.random.randint(keys[4], (), jnp.minimum(row + 1, last), last + 1)
    actor_goal = ahead(keys[4]) if sampling.near_actor else evenly
    return Drawn(row, jnp.minimum(row + steps, last + 1), value_goal, actor_goal)
