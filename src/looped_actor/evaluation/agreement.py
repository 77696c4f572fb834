"""Whether a policy does what a solver would, state by state."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Shaped

from looped_actor.algorithms import Weights
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.evaluation.intervals import wilson
from looped_actor.loop import HaltingRule
from looped_actor.training.sharding import on_one_device


@dataclass(frozen=True)
class Agreement:
    """How often a policy does what a solver would: states with all of their optimal actions.

    Args:
      definition: the net without its weights.
      observation: what a policy sees of the states.
      optimal: which actions are optimal in each.
      halting: replaces the rule that the net was trained with.
      batch: states that are decided on together.
    """

    definition: nnx.GraphDef
    observation: Shaped[np.ndarray, "n ..."]
    optimal: Bool[np.ndarray, "n a"]
    halting: HaltingRule | None = None
    batch: int = 512

    def measure(self, weights: Weights) -> dict[str, Any]:
        """The share of states in which the most probable action is optimal, as facts that JSON can hold."""
        weights, count = on_one_device(weights), len(self.optimal)
        right = 0
        for first in range(0, count, self.batch):
            # The last batch is filled up with states that were asked before, so that one program does.
            rows = np.arange(first, first + self.batch) % count
            actions = np.asarray(self._choose(weights, jnp.asarray(self.observation[rows])))
            right += int(self.optimal[rows, actions][: count - first].sum())
        low, high = wilson(right, count)
        return {
            "optimal_actions": right / count,
            "optimal_actions_interval_95": [low, high],
            "optimal_actions_states": count,
        }

    @functools.cached_property
    def _choose(self) -> Callable[..., Array]:
        def choose(weights: Weights, observation: Array) -> Array:
            return deciding(self.definition, weights, self.halting)(observation).distribution.mode()

        return jax.jit(choose)
