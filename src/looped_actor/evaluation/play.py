"""Every level once, with the most probable action: the obvious, synchronous way."""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from looped_actor.algorithms import Decide
from looped_actor.envs import Environment


@runtime_checkable
class LevelEnvironment(Environment, Protocol):
    """An environment whose episodes can be chosen."""

    def start(self, level: Int[Array, ""]) -> PyTree:
        """The state of a chosen level."""
        ...


class Episodes(NamedTuple):
    """One episode for each level."""

    success: Bool[Array | np.ndarray, " n"]
    returns: Float[Array | np.ndarray, " n"]
    length: Int[Array | np.ndarray, " n"]
    """Decisions taken."""
    loops: Int[Array | np.ndarray, " n"]
    """Loops of all of them."""
    histogram: Int[Array | np.ndarray, "n most"]
    """How many of them took 1, 2, ... loops."""


def play_levels(env: LevelEnvironment, decide: Decide, levels: Int[Array, " n"], most_loops: int) -> Episodes:
    """Play each level once, all in step, until the last one ends. A level below 0 is none."""
    count = len(levels)
    start = Episodes(
        jnp.zeros(count, bool),
        jnp.zeros(count),
        jnp.zeros(count, jnp.int32),
        jnp.zeros(count, jnp.int32),
        jnp.zeros((count, most_loops), jnp.int32),
    )

    def body(carry: tuple) -> tuple:
        states, alive, expected, so_far = carry
        decision = decide(jax.vmap(env.observe)(states), expected_loops=expected)
        loops = decision.loop.loops
        states, outcome = jax.vmap(env.step)(states, decision.distribution.mode())
        so_far = Episodes(
            so_far.success | (outcome.success & alive),
            so_far.returns + jnp.where(alive, outcome.reward, 0),
            so_far.length + alive,
            so_far.loops + jnp.where(alive, loops, 0),
            so_far.histogram.at[jnp.arange(count), loops - 1].add(alive),
        )
        alive = alive & ~outcome.terminated & (so_far.length < env.time_limit)
        # A row that is done is not asked again: it should not hold up the others.
        return states, alive, jnp.where(alive, loops, 0), so_far

    states = jax.vmap(env.start)(jnp.maximum(levels, 0))
    carry = (states, levels >= 0, jnp.zeros(count, jnp.int32), start)
    return jax.lax.while_loop(lambda carry: carry[1].any(), body, carry)[3]
