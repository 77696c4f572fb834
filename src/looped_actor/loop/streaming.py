"""`Streaming`: turn halting into time when acting, by giving the slot of a state that halts to the next
state.

A batch of loops waits for its deepest example. A stream does not: it has a fixed number of *slots*, and every
*tick* computes one loop for all of them. States come from *rows* (environments, levels, requests). A row
waits for a slot, loops in it until its halting rule is satisfied, and is then *settled*: its decision is
carried out, after which it may want to decide again.

Settling touches all rows at once and so costs the same for one as for many; it is done when a slot is free
and no row waits. With more rows than slots that is every few ticks, with as many rows as slots in every tick
with a halt. In either case no slot stays free as long as any row could use it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from looped_actor.loop.carry import Carry, empty_carry
from looped_actor.loop.halting import StopReason
from looped_actor.loop.microbatch import default_slots
from looped_actor.loop.state import LoopProblem, LoopState, advance, begin, select_rows
from looped_actor.utils.checks import at_least_one


@dataclass(frozen=True)
class StreamablePolicy:
    """A looped policy in parts, for an execution in which states enter and decisions leave one by one."""

    embed: Callable[[Any], PyTree]
    """Observations to the inputs of the loop."""
    initial_latent: Callable[[PyTree], Float[Array, "b ..."]]
    """Inputs to the latents before the first loop, where nothing is carried."""
    problem: LoopProblem
    decode: Callable[[Float[Array, "b ..."]], Any]
    """Latents to decisions, a pytree with the batch as first axis."""


class StreamOutput(NamedTuple):
    """The last decision of each row."""

    decision: Any
    """Output of `StreamablePolicy.decode`."""
    loops: Int[Array, " r"]
    stop: Int[Array, " r"]
    """Values of `StopReason`."""
    latent: Float[Array, "r ..."]
    """Latent in which the decision ended; `[R, 0]` where nothing is carried."""


class StreamResult(NamedTuple):
    """The end of a stream."""

    table: Any
    output: StreamOutput
    """The last decision of every row."""
    loops: Int[Array, ""]
    """Loops of all decisions."""
    executed: Int[Array, ""]
    """Loops that the hardware computed for them: slots x ticks."""


@dataclass(frozen=True)
class Streaming:
    """Compute decisions in slots; a state that halts is replaced by the next one immediately."""

    slots: int | None = None
    """States computed together. None: what suits the device."""

    def __post_init__(self) -> None:
        if self.slots is not None:
            at_least_one(self, "slots")

    def slots_for(self, policy: StreamablePolicy, observation: Any, rows: int) -> int:
        """Return the slots for `rows` rows with observations like these (arrays, or their shapes)."""
        if self.slots is not None:
            return min(self.slots, rows)
        latent = jax.eval_shape(lambda o: policy.initial_latent(policy.embed(o)), observation)
        # Some rows wait while others loop, so these need not be settled immediately.
        return min(default_slots(latent.size // latent.shape[0]), -(-rows // 2))

    def run(
        self,
        policy: StreamablePolicy,
        table: Any,
        rows: int,
        observe: Callable[[Any, Int[Array, " s"]], Any],
        settle: Callable[[Any, Bool[Array, " r"], StreamOutput], tuple[Any, Bool[Array, " r"]]],
        carry_of: Callable[[Any, Int[Array, " s"]], Carry] | None = None,
        waiting: Bool[Array, " r"] | None = None,
    ) -> StreamResult:
        """Decide for rows until none needs another decision.

        Args:
          policy: the policy in parts.
          table: state of the rows for the callbacks: any pytree.
          rows: number of rows.
          observe: returns the observations of some rows, from the table and their indices.
          settle: carries out the decisions of the marked rows. Returns the new table, and a mask of those
            that need another decision; its values for other rows are ignored.
          carry_of: returns the carry of some rows. None: nothing is carried.
          waiting: mask of the rows that need a decision at first. None: all.
        """
        stream = Stream(policy, observe, carry_of or _no_carry, rows)
        waiting = jnp.ones(rows, bool) if waiting is None else waiting
        observation = jax.eval_shape(lambda table: observe(table, jnp.zeros(1, int)), table)
        slots = self.slots_for(policy, observation, rows)
        run = stream.begin(table, waiting, slots)
        for size, smaller in drain_sizes(slots):
            run = stream.run_until(stream.compact(run, size), smaller, settle, f"{size}_of_{slots}")
        return StreamResult(run.table, run.output, run.loops, run.executed)

    def decide(
        self,
        policy: StreamablePolicy,
        observation: PyTree[Shaped[Array, "r ..."]],
        waiting: Bool[Array, " r"] | None = None,
        carry: Carry | None = None,
    ) -> StreamResult:
        """Decide once for every row, or for those that are waiting."""
        rows = jax.tree.leaves(observation)[0].shape[0]
        carry = empty_carry(rows) if carry is None else carry

        def take(tree: PyTree) -> Callable[[None, Int[Array, " s"]], Any]:
            return lambda table, chosen: jax.tree.map(lambda leaf: leaf[chosen], tree)

        def settle(table: None, decided: Bool[Array, " r"], output: StreamOutput) -> tuple[None, Array]:
            return None, jnp.zeros_like(decided)

        return self.run(policy, None, rows, take(observation), settle, take(carry), waiting)


def drain_sizes(slots: int) -> list[tuple[int, int]]:
    """Return the numbers of slots of a draining stream (all, half, a quarter), each with the next."""
    sizes = [slots]
    while len(sizes) < 3 and sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return list(zip(sizes, [*sizes[1:], 0], strict=True))


class _Slots(NamedTuple):
    """Decisions under way."""

    row: Int[Array, " s"]
    """Row of each; the number of rows where the slot is free."""
    x: PyTree
    state: LoopState


class StreamState(NamedTuple):
    """A stream between two ticks."""

    table: Any
    waiting: Bool[Array, " r"]
    """Rows that want a slot."""
    slots: _Slots
    output: StreamOutput
    ended: Bool[Array, " r"]
    """Rows whose decision is made and not settled yet."""
    loops: Int[Array, ""]
    executed: Int[Array, ""]


@dataclass(frozen=True)
class Stream:
    """The steps of a stream, for callers that settle rows in another way than `Streaming.run`."""

    policy: StreamablePolicy
    observe: Callable
    carry_of: Callable
    rows: int

    def begin(self, table: Any, waiting: Bool[Array, " r"], slots: int) -> StreamState:
        """Return the state in which rows wait and all slots are free."""
        x, state = self._enter(table, jnp.zeros(slots, jnp.int32))
        # An int, since a member of an enum makes the array weakly typed: another type than a tick returns.
        free = state._replace(stop=jnp.full(slots, int(StopReason.CAP), jnp.int32))
        output = jax.eval_shape(lambda state: self._output(state), state)
        carry = jax.eval_shape(lambda table: self.carry_of(table, jnp.zeros(1, int)), table)
        latent = state.latent if carry.latent.size else jnp.zeros((slots, 0), state.latent.dtype)
        nothing = jax.tree.map(
            lambda leaf: jnp.zeros((self.rows, *leaf.shape[1:]), leaf.dtype), output._replace(latent=latent)
        )
        return StreamState(
            table=table,
            waiting=waiting,
            slots=_Slots(jnp.full(slots, self.rows, jnp.int32), x, free),
            output=nothing,
            ended=jnp.zeros(self.rows, bool),
            loops=jnp.int32(0),
            executed=jnp.int32(0),
        )

    def run_until(self, run: StreamState, few: int, settle: Callable, name: str) -> StreamState:
        """Tick and settle until at most `few` rows are left. Profiles and plans know its loops by `name`."""

        def left(run: StreamState) -> Int[Array, ""]:
            return run.waiting.sum() + run.ended.sum() + (run.slots.row < self.rows).sum()

        def settle_and_tick(run: StreamState) -> StreamState:
            table, again = settle(run.table, run.ended, run.output)
            waiting = run.waiting | (run.ended & again)
            run = self.fill(run._replace(table=table, waiting=waiting, ended=jnp.zeros_like(run.ended)))
            with jax.named_scope(f"tick_{name}"):
                return jax.lax.while_loop(self._may_tick, self.tick, run)

        with jax.named_scope(f"settle_{name}"):
            return jax.lax.while_loop(lambda run: left(run) > few, settle_and_tick, run)

    def compact(self, run: StreamState, size: int) -> StreamState:
        """Move the decisions under way, of which there must be no more than `size`, to `size` slots."""
        if size == len(run.slots.row):
            return run
        busy_first = jnp.argsort(run.slots.row)[:size]
        return run._replace(slots=jax.tree.map(lambda leaf: leaf[busy_first], run.slots))

    def _may_tick(self, run: StreamState) -> Bool[Array, ""]:
        """Return whether some slot is busy, and none is free that settling could fill."""
        busy = run.slots.row < self.rows
        return busy.any() & (busy.all() | ~run.ended.any())

    def tick(self, run: StreamState) -> StreamState:
        """Compute one loop in every slot; rows that have halted leave, and waiting rows enter."""
        slots = run.slots
        state = advance(self.policy.problem, slots.state, slots.x)
        halted = (slots.row < self.rows) & ~state.running
        # Slot of each row's decision, if any. As a matrix of comparisons, since a scatter would be a loop
        # over the slots on CPU.
        matches = (slots.row == jnp.arange(self.rows)[:, None]) & halted
        slot, ended = matches.argmax(axis=1), matches.any(axis=1)
        before, latents = run.output, run.output.latent
        nothing = jnp.zeros((self.rows, 0), latents.dtype)
        output = jax.tree.map(lambda leaf: leaf[slot], self._output(state))._replace(latent=nothing)
        output = select_rows(ended, output, before._replace(latent=nothing))
        if latents.size:  # large, so only those of the slots are moved; a row that is not there is dropped
            place = jnp.where(halted, slots.row, self.rows)
            latents = latents.at[place].set(state.latent, mode="drop")
        return self.fill(
            run._replace(
                slots=_Slots(jnp.where(halted, self.rows, slots.row), slots.x, state),
                output=output._replace(latent=latents),
                ended=run.ended | ended,
                loops=run.loops + jnp.where(halted, state.loops, 0).sum(dtype=jnp.int32),
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
        x, state = self._enter(run.table, jnp.minimum(row, self.rows - 1))
        x, state = select_rows(entering, (x, state), (slots.x, slots.state))
        return run._replace(waiting=run.waiting & ~enters.any(axis=0), slots=_Slots(row, x, state))

    def _enter(self, table: Any, row: Int[Array, " s"]) -> tuple[PyTree, LoopState]:
        """Return the inputs and states of rows before their first loop."""
        x = self.policy.embed(self.observe(table, row))
        z0 = self.carry_of(table, row).initial_latent(self.policy.initial_latent(x))
        return x, begin(self.policy.problem, z0, x)

    def _output(self, state: LoopState) -> StreamOutput:
        return StreamOutput(self.policy.decode(state.latent), state.loops, state.stop, state.latent)


def _no_carry(table: Any, row: Int[Array, " s"]) -> Carry:
    return empty_carry(len(row))


def _rank(marked: Bool[Array, " n"]) -> Int[Array, " n"]:
    """Return how many are marked before each."""
    return jnp.cumsum(marked) - marked
