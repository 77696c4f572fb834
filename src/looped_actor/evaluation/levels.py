"""Evaluation on levels: every level once, with the most probable action.

`stream_levels` is how it is computed; `play_levels`, in which all levels wait for the deepest decision, is
its oracle, and records what analyses need.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from looped_actor.algorithms import Acting, PolicyFn, Weights, make_acting_policy, make_policy
from looped_actor.envs import LevelEnvironment, Outcome
from looped_actor.evaluation.repeats import find_new_states, fingerprint
from looped_actor.loop import (
    Carry,
    HaltingRule,
    StopReason,
    StreamablePolicy,
    Streaming,
    StreamOutput,
    empty_carry,
    zero_carry,
)
from looped_actor.loop.state import select_rows
from looped_actor.training.sharding import (
    DATA,
    REPLICATED,
    ROWS,
    abstract_shards,
    jit_per_device,
    replicate,
)
from looped_actor.utils.processes import Progress, no_progress

MIN_ROWS = 256
"""Levels that are played together, if there are as many."""


class Episodes(NamedTuple):
    """One episode for each level."""

    success: Bool[Array | np.ndarray, " n"] | None
    """None if the environment does not report success."""
    returns: Float[Array | np.ndarray, " n"]
    length: Int[Array | np.ndarray, " n"]
    """Number of decisions."""
    loops: Int[Array | np.ndarray, " n"]
    """Loops of all decisions."""
    histogram: Int[Array | np.ndarray, "n most"]
    """Number of decisions that took 1, 2, ... loops."""
    stops: Int[Array | np.ndarray, "n reasons"]
    """Number of decisions that stopped for each `StopReason`."""


class Decisions(NamedTuple):
    """Every decision of some episodes; zeros after the last one."""

    fingerprints: UInt32[Array | np.ndarray, "n t 2"]
    """Fingerprints of the observations; see `evaluation.repeats`."""
    loops: Int[Array | np.ndarray, "n t"]


class Trace(NamedTuple):
    """Episodes step by step."""

    recorded: PyTree
    """Features that were recorded, `[T, N, ...]`."""
    loops: Int[Array | np.ndarray, "t n"]
    mask: Bool[Array | np.ndarray, "t n"]
    """Steps before the end of each episode."""


Record = Callable[[PyTree, Any], PyTree]
"""States before their decisions, and the outputs of the policy, to the features to record of each."""


class Played(NamedTuple):
    """Episodes, and their cost."""

    episodes: Episodes
    executed: Int[Array | np.ndarray, "*d"]
    """Loops that the hardware computed on each device; `episodes.loops.sum()` were needed in all."""
    trace: Trace | None = None
    decisions: Decisions | None = None

    def new_states(self) -> Bool[np.ndarray, "n t"]:
        """Return whether the state of each decision was new in its episode."""
        assert self.decisions is not None
        fingerprints, lengths = self.decisions.fingerprints, self.episodes.length
        return find_new_states(np.asarray(fingerprints), np.asarray(lengths))


def level_batches(
    levels: int, per_device: int, devices: int, part: range | None = None
) -> Iterator[Int[np.ndarray, " n"]]:
    """Yield levels, or a part of them, in batches of one size; the last one is padded with -1."""
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
    """Record the decisions that were made."""
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
    policy: PolicyFn,
    levels: Int[Array, " n"],
    most_loops: int,
    record: Record | None = None,
    carry_latent: bool = False,
) -> Played:
    """Play each level once, all together, until the last one ends. Negative numbers are padding.

    With `record`, also return the features that it makes of every step.
    """
    count = len(levels)

    def decide(states: PyTree, expected: Int[Array, " n"], carry: Carry | None = None) -> Any:
        return policy(jax.vmap(env.observe)(states), expected_loops=expected, carry=carry)

    def trace_of(states: PyTree, output: Any, alive: Array) -> Trace | None:
        return None if record is None else Trace(record(states, output), output.loop.loops, alive)

    def body(carry: tuple) -> tuple:
        step, states, alive, expected, so_far, executed, trace, latents, decisions = carry
        output = decide(states, expected, latents)
        latents = latents.update(output.loop.latent)
        trace = jax.tree.map(lambda all, now: all.at[step].set(now), trace, trace_of(states, output, alive))
        loops, observation = output.loop.loops, jax.vmap(env.observe)(states)
        decisions = _with_decisions(decisions, jnp.arange(count), so_far.length, observation, loops, alive)
        states, outcome = jax.vmap(env.step)(states, output.distribution.mode())
        so_far = _with_step(so_far, outcome, loops, output.loop.stop, alive)
        alive = alive & ~outcome.terminated & (so_far.length < env.time_limit)
        # Rows that are done are expected to be shallow: they should not hold up the others.
        expected, executed = jnp.where(alive, loops, 0), executed + output.loop.executed
        return step + 1, states, alive, expected, so_far, executed, trace, latents, decisions

    states, alive = jax.vmap(env.reset_to)(jnp.maximum(levels, 0)), levels >= 0
    nothing = jnp.zeros(count, jnp.int32)
    shapes = jax.eval_shape(lambda: trace_of(states, decide(states, nothing), alive))
    trace = jax.tree.map(lambda leaf: jnp.zeros((env.time_limit, *leaf.shape), leaf.dtype), shapes)
    latent = jax.eval_shape(lambda: decide(states, nothing).loop.latent)
    latents = zero_carry(latent) if carry_latent else empty_carry(count)
    so_far = _none_played(count, most_loops)
    decisions = _no_decisions(count, env.time_limit)
    carry = (jnp.int32(0), states, alive, nothing, so_far, jnp.int32(0), trace, latents, decisions)
    with jax.named_scope("steps"):
        end = jax.lax.while_loop(lambda carry: carry[2].any(), body, carry)
    *_, episodes, executed, trace, _, decisions = end
    return Played(episodes, executed, trace, decisions)


class _Table(NamedTuple):
    """Levels under way, and finished ones."""

    states: PyTree
    place: Int[Array, " r"]
    """Level of each row, as a position in the list of levels."""
    so_far: Episodes
    next: Int[Array, ""]
    """Position of the first level that has not begun."""
    ended: Episodes
    """Episodes in the order of their end, then zeros."""
    ended_place: Int[Array, " n"]
    """Their positions, then numbers beyond any."""
    ended_count: Int[Array, ""]
    carry: Carry
    decisions: Decisions
    """By position."""


@dataclass(frozen=True)
class _StreamedLevels:
    """Callbacks of the stream: observe and carry rows, and carry out their decisions."""

    env: LevelEnvironment
    levels: Int[Array, " n"]
    rows: int
    most_loops: int

    @property
    def _beyond(self) -> int:
        return len(self.levels) + self.rows

    def init(self, policy: StreamablePolicy, carry_latent: bool) -> _Table:
        place = jnp.arange(self.rows, dtype=jnp.int32)
        states = self._start(place)
        observation = jax.eval_shape(jax.vmap(self.env.observe), states)
        latent = jax.eval_shape(lambda o: policy.initial_latent(policy.embed(o)), observation)
        return _Table(
            states=states,
            place=place,
            so_far=_none_played(self.rows, self.most_loops),
            next=jnp.int32(self.rows),
            ended=_none_played(self._beyond, self.most_loops),
            ended_place=jnp.full(self._beyond, self._beyond, jnp.int32),
            ended_count=jnp.int32(0),
            carry=zero_carry(latent) if carry_latent else empty_carry(self.rows),
            decisions=_no_decisions(len(self.levels), self.env.time_limit),
        )

    def exists(self, place: Int[Array, " r"]) -> Bool[Array, " r"]:
        """Return whether there is a level at a position: padding comes last."""
        return place < (self.levels >= 0).sum()

    def observe(self, table: _Table, row: Int[Array, " s"]) -> PyTree:
        return jax.vmap(self.env.observe)(jax.tree.map(lambda leaf: leaf[row], table.states))

    def carry_of(self, table: _Table, row: Int[Array, " s"]) -> Carry:
        return jax.tree.map(lambda leaf: leaf[row], table.carry)

    def settle(
        self, table: _Table, decided: Bool[Array, " r"], output: StreamOutput
    ) -> tuple[_Table, Bool[Array, " r"]]:
        """Act, store the episodes that ended, and start the next levels in their rows."""
        decisions = _with_decisions(
            table.decisions,
            table.place,
            table.so_far.length,
            jax.vmap(self.env.observe)(table.states),
            output.loops,
            decided,
        )
        states, outcome = jax.vmap(self.env.step)(table.states, output.decision.distribution.mode())
        states = select_rows(decided, states, table.states)
        so_far = _with_step(table.so_far, outcome, output.loops, output.stop, decided)
        over = decided & (outcome.terminated | (so_far.length >= self.env.time_limit))
        ended, ended_place = self._store(table, so_far, over)

        rank = jnp.cumsum(over, dtype=jnp.int32) - over
        place = jnp.where(over, table.next + rank, table.place)
        count = over.sum(dtype=jnp.int32)
        table = _Table(
            states=select_rows(over, self._start(place), states),
            place=place,
            so_far=select_rows(over, _none_played(self.rows, self.most_loops), so_far),
            next=table.next + count,
            ended=ended,
            ended_place=ended_place,
            ended_count=table.ended_count + count,
            carry=select_rows(decided, table.carry.update(output.latent, over), table.carry),
            decisions=decisions,
        )
        return table, self.exists(place)

    def _start(self, place: Int[Array, " r"]) -> PyTree:
        level = self.levels[jnp.minimum(place, len(self.levels) - 1)]
        return jax.vmap(self.env.reset_to)(jnp.maximum(level, 0))

    def _store(
        self, table: _Table, so_far: Episodes, over: Bool[Array, " r"]
    ) -> tuple[Episodes, Int[Array, " n"]]:
        """Append the episodes that ended to those that ended before.

        What is written beyond them is overwritten later, or cut off.
        """
        first = jnp.argsort(~over)

        def append(new: Array, all: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(all, new[first], table.ended_count, axis=0)

        real = select_rows(over, so_far, _none_played(self.rows, self.most_loops))
        place = jnp.where(over, table.place, self._beyond)
        return jax.tree.map(append, real, table.ended), append(place, table.ended_place)


def stream_levels(
    env: LevelEnvironment,
    policy: StreamablePolicy,
    levels: Int[Array, " n"],
    most_loops: int,
    streaming: Streaming,
    carry_latent: bool = False,
) -> Played:
    """Return the episodes of `play_levels`, in about the time that their loops need.

    A row whose episode ends takes the next level immediately. Negative numbers are padding, and come last.
    """
    count = len(levels)
    rows = min(count, max(MIN_ROWS, 2 * streaming.slots_for(policy, _observation(env), count)))
    streamed = _StreamedLevels(env, levels, rows, most_loops)
    table = streamed.init(policy, carry_latent)
    end = streaming.run(
        policy,
        table,
        rows,
        streamed.observe,
        streamed.settle,
        streamed.carry_of,
        waiting=streamed.exists(table.place),
    )
    in_order = jnp.argsort(end.table.ended_place)[:count]
    episodes = jax.tree.map(lambda leaf: leaf[in_order], end.table.ended)
    return Played(episodes, end.executed, decisions=end.table.decisions)


def _observation(env: LevelEnvironment) -> Any:
    """Return the shape of a batch of one observation."""
    return jax.eval_shape(lambda: jax.vmap(lambda level: env.observe(env.reset_to(level)))(jnp.zeros(1, int)))


@dataclass(frozen=True)
class LevelPlayer:
    """Plays levels of an environment once each, on all devices.

    Args:
      env: the environment with its levels.
      levels: number of its levels.
      definition: the net without its weights.
      most_loops: its cap.
      mesh: the devices.
      halting: replaces the halting rule of training.
      acting: how decisions are computed. Nets that do not loop always act synchronously.
      batch: levels that each device plays at a time.
      carry_latent: start a decision from the last latent of its episode.
    """

    env: LevelEnvironment
    levels: int
    definition: nnx.GraphDef
    most_loops: int
    mesh: Mesh
    halting: HaltingRule | None = None
    acting: Acting = field(default_factory=Streaming)
    batch: int = 512
    carry_latent: bool = False

    def play(self, weights: Weights, progress: Progress = no_progress, part: range | None = None) -> Played:
        """Return an episode of each level, or of a part of them, as arrays of this process."""
        return self._in_batches(self._play, weights, progress, part)

    def record(self, weights: Weights, record: Record, progress: Progress = no_progress) -> Played:
        """Return the same episodes, computed together, with a trace of what `record` makes of every step."""

        def record_own(env: LevelEnvironment, weights: Weights, levels: Any) -> Played:
            policy = make_policy(self.definition, weights, self.halting)
            played = play_levels(env, policy, levels, self.most_loops, record, self.carry_latent)
            return played._replace(executed=played.executed[None])

        steps: Any = PartitionSpec(None, DATA)
        out_specs = Played(ROWS, ROWS, steps, ROWS)
        run = jit_per_device(self.mesh, record_own, (REPLICATED, REPLICATED, ROWS), out_specs)
        return self._in_batches(run, weights, progress)

    def _in_batches(
        self, run: Callable[..., Played], weights: Weights, progress: Progress, part: range | None = None
    ) -> Played:
        part, batches = range(self.levels) if part is None else part, []
        for chosen in level_batches(self.levels, self.batch, self.mesh.size, part):
            played = run(self._placed_env, weights, replicate(self.mesh, chosen))
            batches.append(jax.tree.map(np.asarray, played))
            progress(int(chosen.max()) + 1 - part.start, len(part))

        def join(axis: int, *some: Any) -> Any:
            whole = jax.tree.map(lambda *arrays: np.concatenate(arrays, axis), *some)
            return jax.tree.map(lambda all: all[(slice(None),) * axis + (slice(len(part)),)], whole)

        episodes, executed, trace, decisions = zip(*batches, strict=True)
        return Played(join(0, *episodes), np.concatenate(executed), join(1, *trace), join(0, *decisions))

    def trace(self, weights: Weights) -> Any:
        """Trace the program from shapes, for devices that need not be present."""
        chosen = next(level_batches(self.levels, self.batch, self.mesh.size))
        given = (self.env, REPLICATED), (weights, REPLICATED), (chosen, ROWS)
        return self._play.trace(*(abstract_shards(self.mesh, tree, spec) for tree, spec in given))

    @functools.cached_property
    def _placed_env(self) -> LevelEnvironment:
        return replicate(self.mesh, self.env)

    @functools.cached_property
    def _play(self) -> Any:
        def play_own(env: LevelEnvironment, weights: Weights, levels: Any) -> Played:
            policy = make_acting_policy(self.definition, weights, self.acting, self.halting)
            if isinstance(policy, StreamablePolicy):
                assert isinstance(self.acting, Streaming)
                played = stream_levels(env, policy, levels, self.most_loops, self.acting, self.carry_latent)
            else:
                played = play_levels(env, policy, levels, self.most_loops, carry_latent=self.carry_latent)
            played = played._replace(executed=played.executed[None])
            # Every process gets all of them, so that all processes report the same.
            return jax.tree.map(lambda a: jax.lax.all_gather(a, DATA, tiled=True), played)

        return jit_per_device(self.mesh, play_own, (REPLICATED, REPLICATED, ROWS), REPLICATED)
