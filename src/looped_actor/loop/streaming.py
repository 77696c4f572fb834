"""`Streaming`: turn halting into time when acting, by giving a slot to the next state at once.

A batch of loops waits for its deepest example. A stream does not: it has a fixed number of *slots*, and
every *tick* computes one loop for all of them. A slot whose state has halted is free, and takes the next
state before the next tick. States come from *rows* (environments, levels): a row waits for a slot, thinks
in it, and is then *settled*, which means that its decision is carried out and it may want to think again.

Settling touches all rows at once and so costs the same for one as for many; it is done when a slot is free
and no row waits. With more rows than slots that is every few ticks, with as many rows as slots in every
tick with a halt. In either case no slot stays free as long as any row could use it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from looped_actor.checks import at_least_one
from looped_actor.loop.halting import StopReason
from looped_actor.loop.hardware import default_slots
from looped_actor.loop.starts import Memory
from looped_actor.loop.state import LoopProblem, LoopState, advance, begin, select_rows


@dataclass(frozen=True)
class OpenLoop:
    """A looped policy taken apart, for an execution that lets states in and decisions out one by one."""

    embed: Callable[[Any], PyTree]
    """Observations to the inputs of the loop."""
    start: Callable[[PyTree], Float[Array, "b ..."]]
    """Inputs to the latents before the first loop, where nothing is carried."""
    problem: LoopProblem
    decode: Callable[[Float[Array, "b ..."]], Any]
    """Latents to decisions, a pytree with the batch as first axis."""


class Thought(NamedTuple):
    """What came of thinking, row by row."""

    decision: Any
    loops: Int[Array, " r"]
    stop: Int[Array, " r"]
    """Values of `StopReason`."""
    latent: Float[Array, "r ..."] | None = None
    """In which it ended; None where nothing is carried."""


class Streamed(NamedTuple):
    """The end of a stream."""

    table: Any
    thoughts: Thought
    """The last of every row."""
    asked: Int[Array, ""]
    """Loops of all thoughts."""
    executed: Int[Array, ""]
    """Loops that the hardware computed for them: slots x ticks."""


@dataclass(frozen=True)
class Streaming:
    """Thoughts in slots: one that halts makes room for the next at once."""

    slots: int | None = None
    """How many. None: what suits the hardware."""

    def __post_init__(self) -> None:
        if self.slots is not None:
            at_least_one(self, "slots")

    def slots_for(self, loop: OpenLoop, observation: Any, rows: int) -> int:
        """Slots for `rows` rows with observations like these (arrays, or their shapes)."""
        if self.slots is not None:
            return min(self.slots, rows)
        latent = jax.eval_shape(lambda observation: loop.start(loop.embed(observation)), observation)
        # Some rows wait while others think, so that these need not be settled at once.
        return min(default_slots(latent.size // latent.shape[0]), -(-rows // 2))

    def run(
        self,
        loop: OpenLoop,
        table: Any,
        rows: int,
        observe: Callable[[Any, Int[Array, " s"]], Any],
        settle: Callable[[Any, Bool[Array, " r"], Thought], tuple[Any, Bool[Array, " r"]]],
        waiting: Bool[Array, " r"] | None = None,
        recall: Callable[[Any, Int[Array, " s"]], Memory | None] | None = None,
    ) -> Streamed:
        """Let rows think until none wants to any more.

        Args:
          loop: the policy.
          table: what `observe` and `settle` know about the rows: any pytree.
          rows: how many there are.
          observe: the observations of some rows.
          settle: carry out the thoughts of the rows that are marked. Returns the table after it, and for
            these rows whether they want to think again; what it returns for the others is not looked at.
          waiting: which rows want to think at first. Default: all.
          recall: what some rows carry from their last decision. Default: nothing.
        """
        stream = Stream(loop, observe, recall or (lambda table, row: None), rows)
        waiting = jnp.ones(rows, bool) if waiting is None else waiting
        observation = jax.eval_shape(lambda table: observe(table, jnp.zeros(1, int)), table)
        slots = self.slots_for(loop, observation, rows)
        run = stream.begin(table, waiting, slots)
        for size, smaller in shrinking(slots):
            run = stream.until_few(stream.compact(run, size), smaller, settle, f"{size}_of_{slots}")
        return Streamed(run.table, run.thoughts, run.asked, run.executed)

    def think(
        self,
        loop: OpenLoop,
        observation: PyTree[Shaped[Array, "r ..."]],
        waiting: Bool[Array, " r"] | None = None,
        memory: Memory | None = None,
    ) -> Streamed:
        """Let every row, or those that are waiting, think once about observations that are all there."""
        rows = jax.tree.leaves(observation)[0].shape[0]

        def chosen_of(tree: PyTree) -> Callable[[None, Int[Array, " s"]], Any]:
            return lambda table, chosen: jax.tree.map(lambda leaf: leaf[chosen], tree)

        def settle(table: None, decided: Bool[Array, " r"], thought: Thought) -> tuple[None, Array]:
            return None, jnp.zeros_like(decided)

        return self.run(loop, None, rows, chosen_of(observation), settle, waiting, chosen_of(memory))


def shrinking(slots: int) -> list[tuple[int, int]]:
    """Sizes to compact a draining stream to, each with the next: half, and a quarter."""
    sizes = [slots]
    while len(sizes) < 3 and sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return list(zip(sizes, [*sizes[1:], 0], strict=True))


class _Slots(NamedTuple):
    """Thoughts under way."""

    row: Int[Array, " s"]
    """Whose thought it is; the number of rows where the slot is free."""
    x: PyTree
    state: LoopState


class StreamState(NamedTuple):
    """A stream between two ticks."""

    table: Any
    waiting: Bool[Array, " r"]
    """Rows that want a slot."""
    slots: _Slots
    thoughts: Thought
    ended: Bool[Array, " r"]
    """Rows whose thought has ended and is not settled yet."""
    asked: Int[Array, ""]
    executed: Int[Array, ""]


@dataclass(frozen=True)
class Stream:
    """The moves of a stream, for whoever settles rows in another way than `Streaming.run`."""

    loop: OpenLoop
    observe: Callable
    recall: Callable
    rows: int

    def begin(self, table: Any, waiting: Bool[Array, " r"], slots: int) -> StreamState:
        """Rows wait, all slots are free."""
        x, state = self._entered(table, jnp.zeros(slots, jnp.int32))
        # An int, since a member of an enum makes the array weakly typed: another type than a tick returns.
        free = state._replace(stop=jnp.full(slots, int(StopReason.CAP), jnp.int32))
        thought = jax.eval_shape(lambda state: self._thought(state), state)
        if jax.eval_shape(lambda table: self.recall(table, jnp.zeros(1, int)), table) is not None:
            thought = thought._replace(latent=state.latent)
        nothing = jax.tree.map(lambda leaf: jnp.zeros((self.rows, *leaf.shape[1:]), leaf.dtype), thought)
        return StreamState(
            table,
            waiting,
            _Slots(jnp.full(slots, self.rows, jnp.int32), x, free),
            nothing,
            ended=jnp.zeros(self.rows, bool),
            asked=jnp.int32(0),
            executed=jnp.int32(0),
        )

    def until_few(self, run: StreamState, few: int, settle: Callable, name: str) -> StreamState:
        """Think until at most `few` rows are left. By the name of its loops a profile or plan knows them."""

        def left(run: StreamState) -> Int[Array, ""]:
            return run.waiting.sum() + run.ended.sum() + (run.slots.row < self.rows).sum()

        def settle_and_tick(run: StreamState) -> StreamState:
            table, again = settle(run.table, run.ended, run.thoughts)
            waiting = run.waiting | (run.ended & again)
            run = self.fill(run._replace(table=table, waiting=waiting, ended=jnp.zeros_like(run.ended)))
            with jax.named_scope(f"tick_{name}"):
                return jax.lax.while_loop(self._may_tick, self.tick, run)

        with jax.named_scope(f"settle_{name}"):
            return jax.lax.while_loop(lambda run: left(run) > few, settle_and_tick, run)

    def compact(self, run: StreamState, size: int) -> StreamState:
        """The same thoughts in fewer slots. There must be no more of them."""
        if size == len(run.slots.row):
            return run
        busy_first = jnp.argsort(run.slots.row)[:size]
        return run._replace(slots=jax.tree.map(lambda leaf: leaf[busy_first], run.slots))

    def _may_tick(self, run: StreamState) -> Bool[Array, ""]:
        """Some slot is busy, and none is free that settling could fill."""
        busy = run.slots.row < self.rows
        return busy.any() & (busy.all() | ~run.ended.any())

    def tick(self, run: StreamState) -> StreamState:
        """One loop in every slot. What has halted leaves, and what waits enters."""
        slots = run.slots
        state = advance(self.loop.problem, slots.state, slots.x)
        halted = (slots.row < self.rows) & ~state.running
        # Which slot each row's thought comes from, if any. As a matrix of comparisons, since a scatter
        # would be a loop over the slots on CPU.
        came = (slots.row == jnp.arange(self.rows)[:, None]) & halted
        came_from, ended = came.argmax(axis=1), came.any(axis=1)
        before, thoughts = run.thoughts, jax.tree.map(lambda leaf: leaf[came_from], self._thought(state))
        thoughts = select_rows(ended, thoughts, before._replace(latent=None))
        if before.latent is not None:
            # These are large, so only those of the slots are moved; a row that is not there is dropped.
            place = jnp.where(halted, slots.row, self.rows)
            thoughts = thoughts._replace(latent=before.latent.at[place].set(state.latent, mode="drop"))
        return self.fill(
            run._replace(
                slots=_Slots(jnp.where(halted, self.rows, slots.row), slots.x, state),
                thoughts=thoughts,
                ended=run.ended | ended,
                asked=run.asked + jnp.where(halted, state.loops, 0).sum(dtype=jnp.int32),
                executed=run.executed + len(halted),
            )
        )

    def fill(self, run: StreamState) -> StreamState:
        """Let waiting rows into free slots: the n-th into the n-th."""
        slots = run.slots
        free = slots.row == self.rows
        enters = free[:, None] & run.waiting & (_rank(free)[:, None] == _rank(run.waiting))
        entering = enters.any(axis=1)
        row = jnp.where(entering, enters.argmax(axis=1).astype(jnp.int32), slots.row)
        x, state = self._entered(run.table, jnp.minimum(row, self.rows - 1))
        x, state = select_rows(entering, (x, state), (slots.x, slots.state))
        return run._replace(waiting=run.waiting & ~enters.any(axis=0), slots=_Slots(row, x, state))

    def _entered(self, table: Any, row: Int[Array, " s"]) -> tuple[PyTree, LoopState]:
        """Inputs and states of rows that begin to think."""
        x, memory = self.loop.embed(self.observe(table, row)), self.recall(table, row)
        start = self.loop.start(x)
        return x, begin(self.loop.problem, start if memory is None else memory.start(start), x)

    def _thought(self, state: LoopState) -> Thought:
        return Thought(self.loop.decode(state.latent), state.loops, state.stop)


def _rank(marked: Bool[Array, " n"]) -> Int[Array, " n"]:
    """How many are marked before each."""
    return jnp.cumsum(marked) - marked
