"""Goals in hindsight: states that an episode reached are used as its goals.

A value goal is the state itself, a later state of its episode at a geometric distance, or any state of the dataset. An
actor's goal is a later state of its episode, uniformly at random or at a geometric distance. A goal never crosses the
end of an episode; for its last transition, the later state is that of the row itself.
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
    """Mixture of value goals. The defaults are GCIQL's."""

    current: float = 0.2
    """Share of goals that are the state itself."""
    future: float = 0.5
    """Share of goals from later in the episode."""
    random: float = 0.3
    """Share of goals from anywhere in the dataset."""
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
      index: of the transitions.
      key: of this one example, so that a batch does not depend on how it is sharded.
      sampling: shares of value goals.
      discount: a future value goal is k steps ahead with probability (1 - discount) discount^(k - 1).
      steps: from the row to the next row.
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
    uniform = jax.random.randint(keys[4], (), jnp.minimum(row + 1, last), last + 1)
    actor_goal = ahead(keys[4]) if sampling.near_actor else uniform
    return GoalRows(row, jnp.minimum(row + steps, last + 1), value_goal, actor_goal)
