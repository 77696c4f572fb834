"""What a policy achieves on levels: every level once, with the most probable action.

`stream_levels` is how it is done; `play_levels`, in step, is the oracle, and records what analyses look at.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from looped_actor.algorithms import Acting, Decide, Weights, acting_policy, deciding
from looped_actor.devices import DATA, EVERYWHERE, ROWS, on_each_device, on_every_device, shapes_on
from looped_actor.envs import Environment, Outcome
from looped_actor.evaluation.repeats import find_new_states, fingerprint
from looped_actor.loop import (
    FixedStart,
    HaltingRule,
    Memory,
    OpenLoop,
    Start,
    StopReason,
    Streaming,
    Thought,
)
from looped_actor.loop.state import select_rows
from looped_actor.processes import Progress, no_progress

LEAST_AT_PLAY = 256
"""Levels that are streamed side by side, if there are as many."""


@runtime_checkable
class LevelEnvironment(Environment, Protocol):
    """An environment whose episodes can be chosen."""

    def start(self, level: Int[Array, ""]) -> PyTree:
        """The state of a chosen level."""
        ...


class Episodes(NamedTuple):
    """One episode for each level."""

    success: Bool[Array | np.ndarray, " n"] | None
    """None if the environment does not report it."""
    returns: Float[Array | np.ndarray, " n"]
    length: Int[Array | np.ndarray, " n"]
    """Decisions taken."""
    loops: Int[Array | np.ndarray, " n"]
    """Loops of all decisions."""
    histogram: Int[Array | np.ndarray, "n most"]
    """How many decisions took 1, 2, ... loops."""
    stops: Int[Array | np.ndarray, "n reasons"]
    """How many decisions stopped for each `StopReason`."""


class Decisions(NamedTuple):
    """Every decision of some episodes; zeros follow the last one."""

    fingerprints: UInt32[Array | np.ndarray, "n t 2"]
    """Of what was observed; see `evaluation.repeats`."""
    loops: Int[Array | np.ndarray, "n t"]


class Trace(NamedTuple):
    """Episodes step by step; `taken` says which steps there were."""

    seen: PyTree
    """What was looked at, `[t, n, ...]`."""
    loops: Int[Array | np.ndarray, "t n"]
    taken: Bool[Array | np.ndarray, "t n"]


Look = Callable[[PyTree, Any], PyTree]
"""States before their decisions, and the decisions, to what is to be recorded of each."""


class Played(NamedTuple):
    """Episodes, and what they took."""

    episodes: Episodes
    executed: Int[Array | np.ndarray, "*d"]
    """Loops that the hardware computed, on each device; `episodes.loops.sum()` were asked for in all."""
    trace: Trace | None = None
    decisions: Decisions | None = None

    def new_states(self) -> Bool[np.ndarray, "n t"]:
        """Return which decisions were about a state that had not occurred before in their episode."""
        assert self.decisions is not None
        fingerprints, lengths = self.decisions.fingerprints, self.episodes.length
        return find_new_states(np.asarray(fingerprints), np.asarray(lengths))


def level_batches(
    levels: int, per_device: int, devices: int, part: range | None = None
) -> Iterator[Int[np.ndarray, " n"]]:
    """Levels, or a part of them, in batches; the last one is filled up with -1, so that one program does."""
    at_once = min(per_device, -(-levels // devices)) * devices
    part = range(levels) if part is None else part
    for first in range(part.start, part.stop, at_once):
        chosen = np.arange(first, first + at_once, dtype=np.int32)
        yield np.where(chosen < part.stop, chosen, np.int32(-1))


def _none_played(count: int, most_loops: int) -> Episodes:
    zeros = jnp.zeros(count, jnp.int32)
    histogram, stops = (jnp.zeros((count, many), jnp.int32) for many in (most_loops, len(StopReason)))
    return Episodes(jnp.zeros(count, bool), jnp.zeros(count), zeros, zeros, histogram, stops)


def _no_decisions(episodes: int, steps: int) -> Decisions:
    return Decisions(jnp.zeros((episodes, steps, 2), jnp.uint32), jnp.zeros((episodes, steps), jnp.int32))


def _with_decisions(
    decisions: Decisions,
    episode: Int[Array, " n"],
    step: Int[Array | np.ndarray, " n"],
    observation: PyTree,
    loops: Int[Array, " n"],
    acted: Bool[Array, " n"],
) -> Decisions:
    """Write down the decisions that were made."""
    episode = jnp.where(acted, episode, len(decisions.loops))  # beyond the last one: dropped
    now = Decisions(fingerprint(observation), loops)
    return jax.tree.map(lambda all, new: all.at[episode, step].set(new, mode="drop"), decisions, now)


def _with_step(
    so_far: Episodes,
    outcome: Outcome,
    loops: Int[Array, " n"],
    stop: Int[Array, " n"],
    acted: Bool[Array, " n"],
) -> Episodes:
    assert so_far.success is not None
    took = loops[:, None] == 1 + jnp.arange(so_far.histogram.shape[1])
    reason = stop[:, None] == jnp.arange(len(StopReason))
    return Episodes(
        so_far.success | (outcome.success & acted),
        so_far.returns + jnp.where(acted, outcome.reward, 0),
        so_far.length + acted,
        so_far.loops + jnp.where(acted, loops, 0),
        so_far.histogram + (took & acted[:, None]),
        so_far.stops + (reason & acted[:, None]),
    )


def play_levels(
    env: LevelEnvironment,
    decide: Decide,
    levels: Int[Array, " n"],
    most_loops: int,
    look: Look | None = None,
    starting: Start | None = None,
) -> Played:
    """Play each level once, all in step, until the last one ends. A level below 0 is none.

    With `look`, also record what it shows of every step.
    """
    count = len(levels)

    def think(states: PyTree, expected: Int[Array, " n"], memory: Memory | None = None) -> Any:
        return decide(jax.vmap(env.observe)(states), expected_loops=expected, memory=memory)

    def seen(states: PyTree, decision: Any, alive: Array) -> Trace | None:
        return None if look is None else Trace(look(states, decision), decision.loop.loops, alive)

    def body(carry: tuple) -> tuple:
        step, states, alive, expected, so_far, executed, trace, memory, decisions = carry
        decision = think(states, expected, memory)
        memory = None if memory is None else memory.after(decision.loop.latent)
        trace = jax.tree.map(lambda all, now: all.at[step].set(now), trace, seen(states, decision, alive))
        loops, observation = decision.loop.loops, jax.vmap(env.observe)(states)
        decisions = _with_decisions(decisions, jnp.arange(count), so_far.length, observation, loops, alive)
        states, outcome = jax.vmap(env.step)(states, decision.distribution.mode())
        so_far = _with_step(so_far, outcome, loops, decision.loop.stop, alive)
        alive = alive & ~outcome.terminated & (so_far.length < env.time_limit)
        # A row that is done is not asked again: it should not hold up the others.
        expected, executed = jnp.where(alive, loops, 0), executed + decision.loop.executed
        return step + 1, states, alive, expected, so_far, executed, trace, memory, decisions

    states, alive = jax.vmap(env.start)(jnp.maximum(levels, 0)), levels >= 0
    nothing = jnp.zeros(count, jnp.int32)
    shapes = jax.eval_shape(lambda: seen(states, think(states, nothing), alive))
    trace = jax.tree.map(lambda leaf: jnp.zeros((env.time_limit, *leaf.shape), leaf.dtype), shapes)
    memory = (starting or FixedStart()).begin(lambda: think(states, nothing).loop.latent)
    so_far = _none_played(count, most_loops)
    decisions = _no_decisions(count, env.time_limit)
    carry = (jnp.int32(0), states, alive, nothing, so_far, jnp.int32(0), trace, memory, decisions)
    with jax.named_scope("steps"):
        end = jax.lax.while_loop(lambda carry: carry[2].any(), body, carry)
    *_, episodes, executed, trace, _, decisions = end
    return Played(episodes, executed, trace, decisions)


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
    memory: Memory | None
    """What each row carries to its next decision."""
    decisions: Decisions
    """By place."""


@dataclass(frozen=True)
class _Levels:
    """The table of a stream of levels: its beginning, and what a decision does to it."""

    env: LevelEnvironment
    levels: Int[Array, " n"]
    rows: int
    most_loops: int

    @property
    def _beyond(self) -> int:
        return len(self.levels) + self.rows

    def begin(self, loop: OpenLoop, starting: Start) -> _Table:
        place = jnp.arange(self.rows, dtype=jnp.int32)
        states = self._start(place)
        seen = jax.vmap(self.env.observe)
        return _Table(
            states,
            place,
            _none_played(self.rows, self.most_loops),
            jnp.int32(self.rows),
            _none_played(self._beyond, self.most_loops),
            jnp.full(self._beyond, self._beyond, jnp.int32),
            jnp.int32(0),
            starting.begin(lambda: loop.start(loop.embed(seen(states)))),
            _no_decisions(len(self.levels), self.env.time_limit),
        )

    def real(self, place: Int[Array, " r"]) -> Bool[Array, " r"]:
        """Whether there is a level at a place: those below 0 are none and come last."""
        return place < (self.levels >= 0).sum()

    def observe(self, table: _Table, row: Int[Array, " s"]) -> PyTree:
        return jax.vmap(self.env.observe)(jax.tree.map(lambda leaf: leaf[row], table.states))

    def recall(self, table: _Table, row: Int[Array, " s"]) -> Memory | None:
        return jax.tree.map(lambda leaf: leaf[row], table.memory)

    def settle(
        self, table: _Table, decided: Bool[Array, " r"], thought: Thought
    ) -> tuple[_Table, Bool[Array, " r"]]:
        """Act, file the episodes that are over, and let their rows begin the next levels."""
        decisions = _with_decisions(
            table.decisions,
            table.place,
            table.so_far.length,
            jax.vmap(self.env.observe)(table.states),
            thought.loops,
            decided,
        )
        states, outcome = jax.vmap(self.env.step)(table.states, thought.decision.distribution.mode())
        states = select_rows(decided, states, table.states)
        so_far = _with_step(table.so_far, outcome, thought.loops, thought.stop, decided)
        over = decided & (outcome.terminated | (so_far.length >= self.env.time_limit))
        ended, ended_place = self._filed(table, so_far, over)

        rank = jnp.cumsum(over, dtype=jnp.int32) - over
        place = jnp.where(over, table.next + rank, table.place)
        states = select_rows(over, self._start(place), states)
        so_far = select_rows(over, _none_played(self.rows, self.most_loops), so_far)
        overs, memory = over.sum(dtype=jnp.int32), table.memory
        if memory is not None:
            assert thought.latent is not None
            memory = select_rows(decided, memory.after(thought.latent, over), memory)
        counts = table.next + overs, ended, ended_place, table.ended_count + overs
        return _Table(states, place, so_far, *counts, memory, decisions), self.real(place)

    def _start(self, place: Int[Array, " r"]) -> PyTree:
        level = self.levels[jnp.minimum(place, len(self.levels) - 1)]
        return jax.vmap(self.env.start)(jnp.maximum(level, 0))

    def _filed(
        self, table: _Table, so_far: Episodes, over: Bool[Array, " r"]
    ) -> tuple[Episodes, Int[Array, " n"]]:
        """Episodes that are over go behind those that were over before.

        What is written beyond them is written over later, or cut off.
        """
        first = jnp.argsort(~over)

        def append(new: Array, all: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(all, new[first], table.ended_count, axis=0)

        real = select_rows(over, so_far, _none_played(self.rows, self.most_loops))
        place = jnp.where(over, table.place, self._beyond)
        return jax.tree.map(append, real, table.ended), append(place, table.ended_place)


def stream_levels(
    env: LevelEnvironment,
    loop: OpenLoop,
    levels: Int[Array, " n"],
    most_loops: int,
    streaming: Streaming,
    starting: Start | None = None,
) -> Played:
    """The episodes of `play_levels`, in about the time that their loops ask for.

    A row whose episode ends takes the next level at once. Levels below 0 are none and come last.
    """
    count = len(levels)
    rows = min(count, max(LEAST_AT_PLAY, 2 * streaming.slots_for(loop, _observation(env), count)))
    played = _Levels(env, levels, rows, most_loops)
    begin = played.begin(loop, starting or FixedStart())
    waiting = played.real(begin.place)
    end = streaming.run(loop, begin, rows, played.observe, played.settle, waiting, played.recall)
    in_order = jnp.argsort(end.table.ended_place)[:count]
    episodes = jax.tree.map(lambda leaf: leaf[in_order], end.table.ended)
    return Played(episodes, end.executed, decisions=end.table.decisions)


def _observation(env: LevelEnvironment) -> Any:
    """The shape of a batch of one observation."""
    return jax.eval_shape(lambda: jax.vmap(lambda level: env.observe(env.start(level)))(jnp.zeros(1, int)))


@dataclass(frozen=True)
class LevelPlayer:
    """Plays levels of an environment once each, spread over all devices.

    Args:
      env: holds the levels.
      levels: how many it holds.
      definition: the net without its weights.
      most_loops: its cap.
      mesh: the devices.
      halting: replaces the rule that the net was trained with.
      acting: how decisions are computed. What does not loop is always played in step.
      batch: levels that each device is given at a time.
      starting: where thoughts start.
    """

    env: LevelEnvironment
    levels: int
    definition: nnx.GraphDef
    most_loops: int
    mesh: Mesh
    halting: HaltingRule | None = None
    acting: Acting = field(default_factory=Streaming)
    batch: int = 512
    starting: Start = field(default_factory=FixedStart)

    def play(self, weights: Weights, progress: Progress = no_progress, part: range | None = None) -> Played:
        """An episode of each level, or of a part of them, as arrays of this process."""
        return self._in_batches(self._play, weights, progress, part)

    def record(self, weights: Weights, look: Look, progress: Progress = no_progress) -> Played:
        """The same episodes in step, with a trace of what `look` shows of every step."""

        def record_own(env: LevelEnvironment, weights: Weights, levels: Any) -> Played:
            decide = deciding(self.definition, weights, self.halting)
            played = play_levels(env, decide, levels, self.most_loops, look, self.starting)
            return played._replace(executed=played.executed[None])

        steps: Any = PartitionSpec(None, DATA)
        gives = Played(ROWS, ROWS, steps, ROWS)
        run = on_each_device(self.mesh, record_own, (EVERYWHERE, EVERYWHERE, ROWS), gives)
        return self._in_batches(run, weights, progress)

    def _in_batches(
        self, run: Callable[..., Played], weights: Weights, progress: Progress, part: range | None = None
    ) -> Played:
        part, batches = range(self.levels) if part is None else part, []
        for chosen in level_batches(self.levels, self.batch, self.mesh.size, part):
            played = run(self._placed_env, weights, on_every_device(self.mesh, chosen))
            batches.append(jax.tree.map(np.asarray, played))
            progress(int(chosen.max()) + 1 - part.start, len(part))

        def join(axis: int, *some: Any) -> Any:
            whole = jax.tree.map(lambda *arrays: np.concatenate(arrays, axis), *some)
            return jax.tree.map(lambda all: all[(slice(None),) * axis + (slice(len(part)),)], whole)

        episodes, executed, trace, decisions = zip(*batches, strict=True)
        return Played(join(0, *episodes), np.concatenate(executed), join(1, *trace), join(0, *decisions))

    def trace(self, weights: Weights) -> Any:
        """Its program, traced from shapes, for devices that need not be here."""
        chosen = next(level_batches(self.levels, self.batch, self.mesh.size))
        given = (self.env, EVERYWHERE), (weights, EVERYWHERE), (chosen, ROWS)
        return self._play.trace(*(shapes_on(self.mesh, tree, spec) for tree, spec in given))

    @functools.cached_property
    def _placed_env(self) -> LevelEnvironment:
        return on_every_device(self.mesh, self.env)

    @functools.cached_property
    def _play(self) -> Any:
        def play_own(env: LevelEnvironment, weights: Weights, levels: Any) -> Played:
            policy = acting_policy(self.definition, weights, self.acting, self.halting)
            if isinstance(policy, OpenLoop):
                assert isinstance(self.acting, Streaming)
                played = stream_levels(env, policy, levels, self.most_loops, self.acting, self.starting)
            else:
                played = play_levels(env, policy, levels, self.most_loops, starting=self.starting)
            played = played._replace(executed=played.executed[None])
            # Every process sees all of them, so that all processes report the same.
            return jax.tree.map(lambda a: jax.lax.all_gather(a, DATA, tiled=True), played)

        return on_each_device(self.mesh, play_own, (EVERYWHERE, EVERYWHERE, ROWS), EVERYWHERE)
