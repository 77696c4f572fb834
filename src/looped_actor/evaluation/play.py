"""Every level once, with the most probable action.

`stream_levels` is how it is done; `play_levels` is the obvious way, in step, and the oracle.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from looped_actor.algorithms import Decide
from looped_actor.envs import Environment, Outcome
from looped_actor.loop import OpenLoop, Streaming, Thought
from looped_actor.loop.state import select_rows
from looped_actor.loop.streaming import default_slots

LEAST_AT_PLAY = 256
"""Levels that are streamed side by side, where there are so many."""


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


class Played(NamedTuple):
    """Episodes, and what they took."""

    episodes: Episodes
    executed: Int[Array | np.ndarray, "*d"]
    """Loops that the hardware computed, on each device; `episodes.loops.sum()` were asked for in all."""


def level_batches(levels: int, per_device: int, devices: int) -> Iterator[Int[np.ndarray, " n"]]:
    """All levels, so many at a time; the last batch is filled up with -1, so that one program does."""
    at_once = min(per_device, -(-levels // devices)) * devices
    for first in range(0, levels, at_once):
        chosen = np.arange(first, first + at_once, dtype=np.int32)
        yield np.where(chosen < levels, chosen, np.int32(-1))


def _none_played(count: int, most_loops: int) -> Episodes:
    zeros = jnp.zeros(count, jnp.int32)
    histogram = jnp.zeros((count, most_loops), jnp.int32)
    return Episodes(jnp.zeros(count, bool), jnp.zeros(count), zeros, zeros, histogram)


def _with_step(
    so_far: Episodes, outcome: Outcome, loops: Int[Array, " n"], acted: Bool[Array, " n"]
) -> Episodes:
    took = loops[:, None] == 1 + jnp.arange(so_far.histogram.shape[1])
    return Episodes(
        so_far.success | (outcome.success & acted),
        so_far.returns + jnp.where(acted, outcome.reward, 0),
        so_far.length + acted,
        so_far.loops + jnp.where(acted, loops, 0),
        so_far.histogram + (took & acted[:, None]),
    )


def play_levels(env: LevelEnvironment, decide: Decide, levels: Int[Array, " n"], most_loops: int) -> Played:
    """Play each level once, all in step, until the last one ends. A level below 0 is none."""
    count = len(levels)

    def body(carry: tuple) -> tuple:
        states, alive, expected, so_far, executed = carry
        decision = decide(jax.vmap(env.observe)(states), expected_loops=expected)
        loops = decision.loop.loops
        states, outcome = jax.vmap(env.step)(states, decision.distribution.mode())
        so_far = _with_step(so_far, outcome, loops, alive)
        alive = alive & ~outcome.terminated & (so_far.length < env.time_limit)
        # A row that is done is not asked again: it should not hold up the others.
        return states, alive, jnp.where(alive, loops, 0), so_far, executed + decision.loop.executed

    states = jax.vmap(env.start)(jnp.maximum(levels, 0))
    nothing = jnp.zeros(count, jnp.int32)
    carry = (states, levels >= 0, nothing, _none_played(count, most_loops), jnp.int32(0))
    *_, episodes, executed = jax.lax.while_loop(lambda carry: carry[1].any(), body, carry)
    return Played(episodes, executed)


class _Table(NamedTuple):
    """Levels at play, and those that were played."""

    states: PyTree
    place: Int[Array, " r"]
    """Which of the levels each row plays, as a place in their list."""
    so_far: Episodes
    next: Int[Array, ""]
    """Place of the first level that nobody has begun."""
    ended: Episodes
    """Episodes in the order of their end, then nothing."""
    ended_place: Int[Array, " n"]
    """Their places, then numbers beyond any."""
    ended_count: Int[Array, ""]


def stream_levels(
    env: LevelEnvironment,
    loop: OpenLoop,
    levels: Int[Array, " n"],
    most_loops: int,
    streaming: Streaming,
) -> Played:
    """The episodes of `play_levels`, in about the time that their loops ask for.

    A row whose episode ends takes the next level at once. Levels below 0 are none and come last.
    """
    count = len(levels)
    real = (levels >= 0).sum()
    rows = min(count, max(LEAST_AT_PLAY, 2 * (streaming.slots or default_slots(loop, _observation(env)))))
    beyond = count + rows

    def begin_level(place: Int[Array, " r"]) -> PyTree:
        return jax.vmap(env.start)(jnp.maximum(levels[jnp.minimum(place, count - 1)], 0))

    def observe(table: _Table, row: Int[Array, " s"]) -> PyTree:
        return jax.vmap(env.observe)(jax.tree.map(lambda leaf: leaf[row], table.states))

    def settle(
        table: _Table, decided: Bool[Array, " r"], thought: Thought
    ) -> tuple[_Table, Bool[Array, " r"]]:
        states, outcome = jax.vmap(env.step)(table.states, thought.decision.distribution.mode())
        states = select_rows(decided, states, table.states)
        so_far = _with_step(table.so_far, outcome, thought.loops, decided)
        over = decided & (outcome.terminated | (so_far.length >= env.time_limit))

        # Episodes that are over, first of all rows, go behind those that were over before. What is
        # written beyond them is written over later, or cut off.
        first = jnp.argsort(~over)

        def append(new: Array, all: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(all, new[first], table.ended_count, axis=0)

        nothing = _none_played(rows, most_loops)
        ended = jax.tree.map(append, select_rows(over, so_far, nothing), table.ended)
        ended_place = append(jnp.where(over, table.place, beyond), table.ended_place)

        rank = jnp.cumsum(over, dtype=jnp.int32) - over
        place = jnp.where(over, table.next + rank, table.place)
        goes_on = place < real
        states = select_rows(over, begin_level(place), states)
        so_far = select_rows(over, nothing, so_far)
        overs = over.sum(dtype=jnp.int32)
        table = _Table(
            states, place, so_far, table.next + overs, ended, ended_place, table.ended_count + overs
        )
        return table, goes_on

    place = jnp.arange(rows, dtype=jnp.int32)
    begin = _Table(
        begin_level(place),
        place,
        _none_played(rows, most_loops),
        jnp.int32(rows),
        _none_played(count + rows, most_loops),
        jnp.full(count + rows, beyond, jnp.int32),
        jnp.int32(0),
    )
    end = streaming.run(loop, begin, rows, observe, settle, waiting=place < real)
    in_order = jnp.argsort(end.table.ended_place)[:count]
    return Played(jax.tree.map(lambda leaf: leaf[in_order], end.table.ended), end.executed)


def _observation(env: LevelEnvironment) -> Any:
    """The shape of a batch of one observation."""
    return jax.eval_shape(lambda: jax.vmap(lambda level: env.observe(env.start(level)))(jnp.zeros(1, int)))
