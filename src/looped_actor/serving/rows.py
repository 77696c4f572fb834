"""The device's part of serving: requests in rows, some of which loop in slots.

This is the stream in which environments act (`looped_actor.loop.streaming`), settled by the host: a call lets
new requests into rows, ticks until some decisions are made, and returns the state of all rows.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from looped_actor.algorithms import Weights, make_policy, to_streaming
from looped_actor.loop import Carry, HaltingRule, LoopProblem, StreamablePolicy, StreamOutput
from looped_actor.loop.microbatch import default_slots
from looped_actor.loop.state import select_rows
from looped_actor.loop.streaming import Stream, StreamState
from looped_actor.policy.policy import Policy, PolicySpec
from looped_actor.training.sharding import to_one_device

ROWS_PER_SLOT = 2
"""Rows for each slot: the others wait on the device, so that a free slot is filled without the host."""


class Request(NamedTuple):
    """One request, or the requests of all rows."""

    inputs: tuple[Any, ...]
    """Arrays of the observation, in the order of `PolicySpec.inputs`."""
    cap: Int[Array | np.ndarray, "*r"]
    """Maximum number of loops."""
    threshold: Float[Array | np.ndarray, "*r"]
    """Divergence below which to halt."""
    carry: Carry


class TickResult(NamedTuple):
    """State of every row after a call."""

    ended: Bool[Array | np.ndarray, " r"]
    looping: Bool[Array | np.ndarray, " r"]
    """Rows in slots; their outputs are those of the last loop so far."""
    outputs: dict[str, Any]
    """Outputs of the policy by name."""
    loops: Int[Array | np.ndarray, " r"]
    stop: Int[Array | np.ndarray, " r"]
    latent: Any
    """Latents in which decisions ended; `[R, 0]` if nothing is carried."""
    executed: Int[Array | np.ndarray, ""]
    """Loops that the hardware has computed since the start."""
    ticks: Int[Array | np.ndarray, ""]
    """Ticks of this call."""


class TickLimits(NamedTuple):
    """Conditions that end a call; it also ends when no row loops any more."""

    decisions: Int[Array, ""] | int
    """End when this number of decisions is made, ..."""
    min_ticks: Int[Array, ""] | int
    """... but not before this number of ticks."""
    max_ticks: Int[Array, ""] | int
    """End after this number of ticks."""


@dataclass(frozen=True)
class _RequestLimits:
    """A halting rule whose threshold is each request's own: the divergence is the excess over it."""

    rule: Any
    max_loops: int

    @property
    def min_loops(self) -> int:
        return self.rule.min_loops

    def observe(self, latent: Array, x: Request, readout: Any) -> tuple[PyTree, Any]:
        return self.rule.observe(latent, x, readout), x.threshold

    def divergence(self, before: tuple, now: tuple) -> Float[Array, " b"]:
        divergence = self.rule.divergence(before[0], now[0])
        return divergence - now[1].astype(divergence.dtype)

    def converged(self, loop: Int[Array, " b"], divergence: Float[Array, " b"]) -> Bool[Array, " b"]:
        return (loop >= self.min_loops) & (divergence < 0)


def _with_request_limits(policy: StreamablePolicy, spec: PolicySpec, max_loops: int) -> StreamablePolicy:
    """Return the policy with limits per request."""
    problem = policy.problem
    halting: HaltingRule = _RequestLimits(problem.halting, max_loops)
    return replace(
        policy,
        embed=lambda request: request._replace(inputs=(policy.embed(spec.to_observation(request.inputs)),)),
        initial_latent=lambda x: policy.initial_latent(x.inputs[0]),
        problem=LoopProblem(
            step=lambda latent, x: problem.step(latent, x.inputs[0]),
            readout=lambda latent, x: problem.readout(latent, x.inputs[0]),
            halting=halting,
            cap=lambda x: x.cap,
        ),
    )


class Rows:
    """Compiled programs of a policy that answers requests.

    Args:
      policy: the policy.
      slots: states that loop together. Default: what suits the device.
      max_loops: maximum that a request may ask for. Default: as in training.
      board: puzzles: rows and columns of the boards. Default: as in training.
    """

    def __init__(
        self,
        policy: Policy,
        slots: int | None = None,
        max_loops: int | None = None,
        board: tuple[int, int] | None = None,
    ):
        self.policy, self.spec, self.inputs = policy, policy.spec, policy.spec.inputs(board)
        self.max_loops = max_loops or policy.spec.max_loops
        self.is_looped = policy.halting is not None
        self.leaves = jax.tree.leaves(to_one_device(policy.weights))
        self._structure = jax.tree.structure(policy.weights)
        self.slots = slots or (default_slots(self._latents(1).size) if self.is_looped else 16)
        self.count = ROWS_PER_SLOT * self.slots
        self._tick = jax.jit(self._tick_rows, donate_argnums=1, static_argnums=6)

    @property
    def threshold(self) -> float:
        """Default threshold of requests; 0 if the halting rule has none."""
        return float(getattr(self.policy.halting, "threshold", 0.0))

    def empty_table(self) -> Request:
        """Return a table of rows without requests, on the host, to be written into."""
        latent = np.zeros((self.count, 0), np.float32)
        if self.policy.carry_latent:
            like = self._latents(self.count)
            latent = np.zeros(like.shape, like.dtype)
        return Request(
            inputs=tuple(np.zeros(one.shape, one.dtype) for one in self._batch(self.count)),
            cap=np.ones(self.count, np.int32),
            threshold=np.zeros(self.count, np.float32),
            carry=Carry(latent, np.ones(self.count, bool)),
        )

    @property
    def widths(self) -> list[int]:
        """Numbers of slots that a tick can compute: powers of two, and all."""
        if not self.is_looped:
            return [self.slots]
        return [*(2**n for n in range((self.slots - 1).bit_length())), self.slots]

    def compile_all(self, state: Any) -> Any:
        """Compile the programs of all widths, and return the unchanged state."""
        none = np.zeros(self.count, bool)
        for width in self.widths:
            state, _ = self.tick(state, self.empty_table(), none, none, TickLimits(1, 0, 1), width)
        return state

    def init(self) -> Any:
        """Return the state before the first call."""
        if not self.is_looped:
            return jnp.int32(0)

        def init(leaves: list[Array], table: Request) -> StreamState:
            return self._stream(leaves).begin(table, jnp.zeros(self.count, bool), self.slots)

        return jax.jit(init)(self.leaves, self.empty_table())

    def tick(
        self,
        state: Any,
        table: Request,
        entering: Bool[np.ndarray, " r"],
        leaving: Bool[np.ndarray, " r"],
        limits: TickLimits,
        width: int | None = None,
    ) -> tuple[Any, TickResult]:
        """Let rows in and out, and tick until a limit is reached.

        Args:
          state: state after the last call, which is donated.
          table: requests of the entering rows.
          entering: rows that start to wait for a slot.
          leaving: rows whose requests were answered or cancelled.
          limits: conditions that end the call.
          width: number of rows with requests: a tick computes no more slots than it takes to hold them.
        """
        width = next(size for size in self.widths if size >= min(width or self.slots, self.slots))
        state, result = self._tick(self.leaves, state, table, entering, leaving, limits, width)
        return state, jax.device_get(result)

    def _tick_rows(
        self,
        leaves: list[Array],
        state: Any,
        table: Request,
        entering: Bool[Array, " r"],
        leaving: Bool[Array, " r"],
        limits: TickLimits,
        width: int,
    ) -> tuple[Any, TickResult]:
        if not self.is_looped:
            return self._decide_directly(leaves, state, table, entering)
        stream, run = self._stream(leaves), state
        cancelled = leaving[jnp.minimum(run.slots.row, self.count - 1)] & (run.slots.row < self.count)
        run = run._replace(
            table=select_rows(entering, table, run.table),
            waiting=(run.waiting & ~leaving) | entering,
            ended=run.ended & ~leaving,
            slots=run.slots._replace(row=jnp.where(cancelled, self.count, run.slots.row)),
        )

        def within_limits(carry: tuple[StreamState, Int[Array, ""]]) -> Bool[Array, ""]:
            run, ticks = carry
            busy = (run.slots.row < self.count).any()
            wanted = (run.ended.sum() < limits.decisions) | (ticks < limits.min_ticks)
            return busy & wanted & (ticks < limits.max_ticks)

        start = stream.fill(stream.compact(run, width)), jnp.int32(0)
        run, ticks = jax.lax.while_loop(
            within_limits, lambda carry: (stream.tick(carry[0]), carry[1] + 1), start
        )
        return run._replace(slots=self._widen(run.slots)), self._result(stream, run, ticks)

    def _widen(self, slots: Any) -> Any:
        """Return all slots again: those that were left out are free."""
        more = self.slots - len(slots.row)
        full = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:1].repeat(more, axis=0)]), slots)
        return full._replace(row=jnp.concatenate([slots.row, jnp.full(more, self.count, slots.row.dtype)]))

    def _result(self, stream: Stream, run: StreamState, ticks: Int[Array, ""]) -> TickResult:
        """Return the decisions that are made, and those that looping rows would make if they stopped now."""
        slots = run.slots
        matches = slots.row == jnp.arange(self.count)[:, None]
        slot, looping = matches.argmax(axis=1), matches.any(axis=1)
        latents = slots.state.latent
        nothing = jnp.zeros((self.count, 0), latents.dtype)
        now = StreamOutput(stream.policy.decode(latents), slots.state.loops, slots.state.stop, latents)
        so_far = jax.tree.map(lambda leaf: leaf[slot], now)._replace(latent=nothing)
        output = select_rows(run.ended, run.output._replace(latent=nothing), so_far)
        latent = run.output.latent
        if latent.size:
            latent = select_rows(run.ended, latent, latents[slot])
        return TickResult(
            ended=run.ended,
            looping=looping,
            outputs=self.spec.outputs(output.decision),
            loops=output.loops,
            stop=output.stop,
            latent=latent,
            executed=run.executed,
            ticks=ticks,
        )

    def _decide_directly(
        self, leaves: list[Array], executed: Array, table: Request, entering: Bool[Array, " r"]
    ) -> tuple[Array, TickResult]:
        """Decide for all rows at once, with a net that does not loop."""
        policy = make_policy(self.spec.definition, self._weights(leaves))
        output = policy(self.spec.to_observation(table.inputs))
        assert output.loop is not None
        executed = executed + output.loop.executed
        result = TickResult(
            ended=entering,
            looping=jnp.zeros_like(entering),
            outputs=self.spec.outputs(output),
            loops=output.loop.loops,
            stop=output.loop.stop,
            latent=jnp.zeros((self.count, 0)),
            executed=executed,
            ticks=jnp.int32(1),
        )
        return executed, result

    def _stream(self, leaves: list[Array]) -> Stream:
        policy = to_streaming(self.spec.definition, self._weights(leaves))
        assert policy is not None

        def take(tree: Any, row: Int[Array, " s"]) -> Any:
            return jax.tree.map(lambda leaf: leaf[row], tree)

        return Stream(
            _with_request_limits(policy, self.spec, self.max_loops),
            take,
            lambda table, row: take(table.carry, row),
            self.count,
        )

    def _weights(self, leaves: list[Array]) -> Weights:
        return jax.tree.unflatten(self._structure, leaves)

    def _latents(self, count: int) -> Any:
        """Return the shape of the latents of a batch."""

        def initial(leaves: list[Array], *inputs: Array) -> Any:
            policy: Any = to_streaming(self.spec.definition, self._weights(leaves))
            return policy.initial_latent(policy.embed(self.spec.to_observation(inputs)))

        return jax.eval_shape(initial, self.leaves, *self._batch(count))

    def _batch(self, count: int) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes of the inputs of a batch."""
        return [jax.ShapeDtypeStruct((count, *one.shape), one.dtype) for one in self.inputs.values()]
