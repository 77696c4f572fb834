"""Agreement of a policy with a solver, state by state."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Shaped

from looped_actor.algorithms import Weights, make_policy
from looped_actor.evaluation.intervals import wilson
from looped_actor.loop import HaltingRule
from looped_actor.training.sharding import to_one_device


@dataclass(frozen=True)
class Agreement:
    """States labelled with all of their optimal actions, to compare policies with.

    Args:
      definition: the net without its weights.
      observation: observations of the states.
      optimal: optimal actions of each state.
      halting: replaces the halting rule of training.
      batch: states that are computed together.
    """

    definition: nnx.GraphDef
    observation: Shaped[np.ndarray, "n ..."]
    optimal: Bool[np.ndarray, "n a"]
    halting: HaltingRule | None = None
    batch: int = 512

    def measure(self, weights: Weights) -> dict[str, Any]:
        """Return the share of states in which the most probable action is optimal, as JSON."""
        weights, count = to_one_device(weights), len(self.optimal)
        correct = 0
        for first in range(0, count, self.batch):
            # The last batch is padded with earlier states, so that all have one size.
            rows = np.arange(first, first + self.batch) % count
            actions = np.asarray(self._choose(weights, jnp.asarray(self.observation[rows])))
            correct += int(self.optimal[rows, actions][: count - first].sum())
        low, high = wilson(correct, count)
        return {
            "optimal_actions": correct / count,
            "optimal_actions_interval_95": [low, high],
            "optimal_actions_states": count,
        }

    @functools.cached_property
    def _choose(self) -> Callable[..., Array]:
        def choose(weights: Weights, observation: Array) -> Array:
            return make_policy(self.definition, weights, self.halting)(observation).distribution.mode()

        return jax.jit(choose)
