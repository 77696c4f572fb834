"""The device's part of serving: requests in rows, a few of which think in slots at a time.

It is the stream in which environments act (`looped_actor.loop.streaming`), settled by the host: a call lets
new requests into rows, ticks until some thoughts have ended, and tells what came of all rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from looped_actor.algorithms import Weights, as_open_loop
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.loop import HaltingRule, LoopProblem, Memory, OpenLoop, Thought
from looped_actor.loop.hardware import default_slots
from looped_actor.loop.state import select_rows
from looped_actor.loop.streaming import Stream, StreamState
from looped_actor.policy.policy import Policy
from looped_actor.training.sharding import on_one_device

WAITING_PER_SLOT = 2
"""Rows to a slot: the others wait on the device, so that a free slot is filled without the host."""


class Asked(NamedTuple):
    """Requests: of one, or of all rows."""

    inputs: tuple[Any, ...]
    """What is observed, in the order of the program's inputs."""
    cap: Int[Array | np.ndarray, "*r"]
    """The most loops that it may think."""
    threshold: Float[Array | np.ndarray, "*r"]
    """The divergence at which it may halt."""
    memory: Memory | None
    """What it starts from; None where nothing is carried."""


class Came(NamedTuple):
    """What there is of every row after a call."""

    ended: Bool[Array | np.ndarray, " r"]
    thinking: Bool[Array | np.ndarray, " r"]
    """Rows in slots: what is said of them is what they would do now."""
    outputs: dict[str, Any]
    """Action, logits and what else the policy says."""
    loops: Int[Array | np.ndarray, " r"]
    stop: Int[Array | np.ndarray, " r"]
    latent: Any
    """None where nothing is carried."""
    executed: Int[Array | np.ndarray, ""]
    """Loops that the hardware has computed so far."""
    ticks: Int[Array | np.ndarray, ""]
    """Of this call."""


class Ends(NamedTuple):
    """When a call ends: with enough thoughts, or when all have."""

    enough: Int[Array, ""] | int
    """Thoughts that have ended."""
    least: Int[Array, ""] | int
    """Ticks before which it does not end for that."""
    most: Int[Array, ""] | int
    """Ticks after which it ends in any case."""


@dataclass(frozen=True)
class _Limits:
    """A halting rule whose threshold is each example's own: the divergence is what is above it."""

    rule: Any
    max_loops: int

    @property
    def min_loops(self) -> int:
        return self.rule.min_loops

    def observe(self, latent: Array, x: Asked, readout: Any) -> tuple[PyTree, Any]:
        return self.rule.observe(latent, x, readout), x.threshold

    def divergence(self, before: tuple, now: tuple) -> Float[Array, " b"]:
        above = self.rule.divergence(before[0], now[0])
        return above - now[1].astype(above.dtype)

    def converged(self, loop: Int[Array, " b"], divergence: Float[Array, " b"]) -> Bool[Array, " b"]:
        return (loop >= self.min_loops) & (divergence < 0)


def _limited(loop: OpenLoop, observation: Callable[..., PyTree], most_loops: int) -> OpenLoop:
    """The same policy for requests with limits of their own."""
    problem = loop.problem
    limits: HaltingRule = _Limits(problem.halting, most_loops)
    return replace(
        loop,
        embed=lambda asked: asked._replace(inputs=(loop.embed(observation(*asked.inputs)),)),
        start=lambda x: loop.start(x.inputs[0]),
        problem=LoopProblem(
            step=lambda latent, x: problem.step(latent, x.inputs[0]),
            readout=lambda latent, x: problem.readout(latent, x.inputs[0]),
            halting=limits,
            cap=lambda x: x.cap,
        ),
    )


class Rows:
    """The compiled programs of a policy that is asked.

    Args:
      policy: who answers.
      slots: thoughts at a time. Default: what suits the hardware.
      most_loops: no request may think longer. Default: as in training.
      board: puzzles: rows and columns of the boards. Default: as in training.
    """

    def __init__(
        self,
        policy: Policy,
        slots: int | None = None,
        most_loops: int | None = None,
        board: tuple[int, int] | None = None,
    ):
        self.program = policy.run.program(board)
        self.policy, self.most_loops = policy, most_loops or policy.run.net.max_loops
        self.loops = policy.halting is not None
        self.carries = policy.starting.begin(lambda: jnp.zeros((1, 1))) is not None
        self._tree = jax.tree.structure(policy.weights)
        with policy.precision:
            self.leaves = jax.tree.leaves(on_one_device(policy.weights))
            self.slots = self._slots(slots)
            self.count = WAITING_PER_SLOT * self.slots
            self._think = jax.jit(self._called, donate_argnums=1, static_argnums=6)

    @property
    def threshold(self) -> float:
        """At which a thought halts if its request does not say otherwise; 0 where the rule has none."""
        return float(getattr(self.policy.halting, "threshold", 0.0))

    def nothing(self) -> Asked:
        """A table of rows in which nobody asks, on the host, to be written into."""
        inputs = tuple(np.zeros(one.shape, one.dtype) for one in self._inputs(self.count))
        memory = None
        if self.carries:
            like = self._latents(self.count)
            memory = Memory(np.zeros(like.shape, like.dtype), np.ones(self.count, bool))
        limits = np.ones(self.count, np.int32), np.zeros(self.count, np.float32)
        return Asked(inputs, *limits, memory)

    @property
    def widths(self) -> list[int]:
        """Numbers of slots of which a tick can be: powers of two, and all; one where nothing ticks."""
        if not self.loops:
            return [self.slots]
        return [*(2**n for n in range((self.slots - 1).bit_length())), self.slots]

    def compile_all(self, state: Any) -> Any:
        """Compile the programs of all widths, so that nobody has to wait for one; the state is as it was."""
        nobody = np.zeros(self.count, bool)
        for width in self.widths:
            state, _ = self.think(state, self.nothing(), nobody, nobody, Ends(1, 0, 1), width)
        return state

    def begin(self) -> Any:
        """The state before the first call."""
        if not self.loops:
            return jnp.int32(0)

        def begin(leaves: list[Array], table: Asked) -> StreamState:
            return self._stream(leaves).begin(table, jnp.zeros(self.count, bool), self.slots)

        return jax.jit(begin)(self.leaves, self.nothing())

    def think(
        self,
        state: Any,
        table: Asked,
        entering: Bool[np.ndarray, " r"],
        leaving: Bool[np.ndarray, " r"],
        ends: Ends,
        width: int | None = None,
    ) -> tuple[Any, Came]:
        """Let rows in and out, and tick until enough thoughts have ended.

        Args:
          state: after the last call. It is used up.
          table: what the entering rows ask.
          entering: rows that begin to wait for a slot.
          leaving: rows whose thoughts nobody waits for any more.
          ends: when the call does.
          width: rows that think or wait: a tick computes no more slots than it takes to hold them.
        """
        width = next(size for size in self.widths if size >= min(width or self.slots, self.slots))
        state, came = self._think(self.leaves, state, table, entering, leaving, ends, width)
        return state, jax.device_get(came)

    def _called(
        self,
        leaves: list[Array],
        state: Any,
        table: Asked,
        entering: Bool[Array, " r"],
        leaving: Bool[Array, " r"],
        ends: Ends,
        width: int,
    ) -> tuple[Any, Came]:
        if not self.loops:
            return self._at_once(leaves, state, table, entering)
        stream, run = self._stream(leaves), state
        gone = leaving[jnp.minimum(run.slots.row, self.count - 1)] & (run.slots.row < self.count)
        run = run._replace(
            table=select_rows(entering, table, run.table),
            waiting=(run.waiting & ~leaving) | entering,
            ended=run.ended & ~leaving,
            slots=run.slots._replace(row=jnp.where(gone, self.count, run.slots.row)),
        )

        def goes_on(carry: tuple[StreamState, Int[Array, ""]]) -> Bool[Array, ""]:
            run, ticks = carry
            busy = (run.slots.row < self.count).any()
            wanted = (run.ended.sum() < ends.enough) | (ticks < ends.least)
            return busy & wanted & (ticks < ends.most)

        begun = stream.fill(stream.compact(run, width)), jnp.int32(0)
        run, ticks = jax.lax.while_loop(goes_on, lambda carry: (stream.tick(carry[0]), carry[1] + 1), begun)
        return run._replace(slots=self._widened(run.slots)), self._came(stream, run, ticks)

    def _widened(self, slots: Any) -> Any:
        """All slots again: those that took no part are free."""
        more = self.slots - len(slots.row)
        full = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:1].repeat(more, axis=0)]), slots)
        return full._replace(row=jnp.concatenate([slots.row, jnp.full(more, self.count, slots.row.dtype)]))

    def _came(self, stream: Stream, run: StreamState, ticks: Int[Array, ""]) -> Came:
        """What has ended, and what those who think would do if they had to stop here."""
        slots = run.slots
        thinks = slots.row == jnp.arange(self.count)[:, None]
        slot, thinking = thinks.argmax(axis=1), thinks.any(axis=1)
        now = Thought(stream.loop.decode(slots.state.latent), slots.state.loops, slots.state.stop)
        so_far = jax.tree.map(lambda leaf: leaf[slot], now)
        ended, latent = run.thoughts._replace(latent=None), run.thoughts.latent
        thought = select_rows(run.ended, ended, so_far)
        if latent is not None:
            latent = select_rows(run.ended, latent, slots.state.latent[slot])
        outputs = self.program.outputs(thought.decision)
        return Came(run.ended, thinking, outputs, thought.loops, thought.stop, latent, run.executed, ticks)

    def _at_once(
        self, leaves: list[Array], executed: Array, table: Asked, entering: Bool[Array, " r"]
    ) -> tuple[Array, Came]:
        """A net that does not loop has decided when it is asked."""
        decide = deciding(self.policy.run.definition, self._weights(leaves))
        decision = decide(self.program.observation(*table.inputs))
        outputs, loop = self.program.outputs(decision), decision.loop
        executed = executed + loop.executed
        nobody = jnp.zeros_like(entering)
        came = Came(entering, nobody, outputs, loop.loops, loop.stop, None, executed, jnp.int32(1))
        return executed, came

    def _stream(self, leaves: list[Array]) -> Stream:
        loop = as_open_loop(self.policy.run.definition, self._weights(leaves))
        assert loop is not None
        of_rows = lambda table, row: jax.tree.map(lambda leaf: leaf[row], table)  # noqa: E731
        observe = lambda table, row: of_rows(table._replace(memory=None), row)  # noqa: E731
        recall = lambda table, row: of_rows(table.memory, row)  # noqa: E731
        return Stream(_limited(loop, self.program.observation, self.most_loops), observe, recall, self.count)

    def _weights(self, leaves: list[Array]) -> Weights:
        return jax.tree.unflatten(self._tree, leaves)

    def _latents(self, count: int) -> Any:
        """Their shape."""

        def start(leaves: list[Array], *inputs: Array) -> Any:
            loop: Any = as_open_loop(self.policy.run.definition, self._weights(leaves))
            return loop.start(loop.embed(self.program.observation(*inputs)))

        return jax.eval_shape(start, self.leaves, *self._inputs(count))

    def _inputs(self, count: int) -> list[jax.ShapeDtypeStruct]:
        """The shapes of what many observe."""
        return [jax.ShapeDtypeStruct((count, *one.shape), one.dtype) for one in self.program.inputs.values()]

    def _slots(self, asked: int | None) -> int:
        if asked is not None or not self.loops:
            return asked or 16
        latent = self._latents(1)
        return default_slots(latent.size)
