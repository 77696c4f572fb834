"""Goals in hindsight: states that an episode reached serve as its goals.

A value goal is the state itself, a later state of its episode at a geometric distance, or any state of the
dataset. An actor's goal is a later state of its episode, uniformly at random or at a geometric distance.
Goals are states at which a transition starts. So the latest goal of an episode is the state before its last
one, and the goal of its last transition is the state itself.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, UInt32

from looped_actor.offline.dataset import EpisodeIndex
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class GoalSampling:
    """Distribution of goals. The defaults are GCIQL's."""

    current: float = 0.2
    """Share of value goals that are the state itself."""
    future: float = 0.5
    """Share of value goals that are a later state of the episode."""
    random: float = 0.3
    """Share of value goals that are any state of the dataset."""
    near_actor: bool = False
    """Draw the actor's goals at a geometric distance, instead of uniformly from the rest of the episode."""

    def __post_init__(self) -> None:
        shares = (self.current, self.future, self.random)
        if min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise UserError(f"shares of goals are {shares}; they must be at least 0 and sum to 1")


class GoalRows(NamedTuple):
    """Rows of a dataset: transitions and their goals."""

    row: Int[Array, "*b"]
    next_row: Int[Array, "*b"]
    """Row one or a few steps later, or at the end of the episode."""
    value_goal: Int[Array, "*b"]
    actor_goal: Int[Array, "*b"]


def sample_rows(
    index: EpisodeIndex,
    key: Key[Array, ""] | UInt32[Array, "2"],
    sampling: GoalSampling,
    discount: float,
    steps: int = 1,
) -> GoalRows:
    """Draw one transition of a dataset uniformly, and goals for it.

    Args:
      index: the dataset's transitions.
      key: of this one example, so that a batch does not depend on how it is sharded.
      sampling: shares of value goals.
      discount: a future goal is k steps ahead with probability (1 - discount) discount^(k - 1).
      steps: from the row to the next row.
    """
    keys = jax.random.split(key, 5)
    rows = jnp.asarray(index.transition_rows)
    row = rows[jax.random.randint(keys[0], (), 0, len(rows))]
    random = rows[jax.random.randint(keys[1], (), 0, len(rows))]
    last = jnp.asarray(index.last_rows)[row]

    def at_geometric_distance(key: Any) -> Int[Array, ""]:
        return jnp.minimum(row + jax.random.geometric(key, 1 - discount, dtype=jnp.int32), last)

    future = at_geometric_distance(keys[2])
    share = jax.random.uniform(keys[3])
    value_goal = jnp.where(
        share < sampling.current, row, jnp.where(share < sampling.current + sampling.future, future, random)
    )
    uniform = jax.random.randint(keys[4], (), jnp.minimum(row + 1, last), last + 1)
    return GoalRows(
        row=row,
        next_row=jnp.minimum(row + steps, last + 1),
        value_goal=value_goal,
        actor_goal=at_geometric_distance(keys[4]) if sampling.near_actor else uniform,
    )
