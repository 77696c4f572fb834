"""The engine: requests enter between ticks, and decisions leave when they are made.

One thread drives the device. A client gets a future immediately, or an error if too many requests wait.
"""

import collections
import math
import threading
import time
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from looped_actor.loop import Carry
from looped_actor.policy.policy import Policy
from looped_actor.serving.rows import Request, Rows, TickLimits, TickResult
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError

MAX_TICKS_FREE = 4
"""Ticks of a call while slots are free: a new request waits no longer before it gets one."""
MAX_TICKS_FULL = 16
"""Ticks of a call while no slot is free: deadlines are checked as often."""
MIN_SECONDS = 0.002
"""Minimum duration of a call while decisions are under way: between two calls the host takes half a
millisecond."""
LATE = "the deadline passed before this request had a slot"


class BusyError(Exception):
    """The queue is full."""


class LateError(Exception):
    """The deadline passed before the request had a slot."""


class Answer(NamedTuple):
    """A decision."""

    outputs: dict[str, Any]
    """Outputs of the policy by name: action, logits or mean, and value."""
    loops: int
    stop: int
    """Value of `StopReason`; RUNNING if the deadline stopped the decision."""
    seconds: float
    """Time from request to answer."""
    carry: Carry | None = None
    """Carry for the next request of the same episode; None if nothing is carried."""

    @property
    def action(self) -> Any:
        """The action in the form that the environment takes."""
        return self.outputs["action"]


class EngineStats(NamedTuple):
    """Counts since the engine started, and its current load."""

    waiting: int
    looping: int
    answered: int
    refused: int
    loops: int
    """Loops of all answers."""
    executed: int
    """Loops that the hardware computed for them: slots x ticks."""


class _Pending(NamedTuple):
    """A request that was accepted."""

    request: Request
    future: Future
    received: float
    deadline: float


class Engine:
    """Answers requests for decisions; each takes as many loops as it needs.

    ```python
    with Engine(looped_actor.load_policy("runs/first")) as engine:
        answer = engine.ask(observation).result()
        answer.action, answer.loops
    ```

    Args:
      policy: the policy.
      slots: states that loop together. Default: what suits the device.
      max_waiting: length of the queue; further requests are refused.
      max_loops: maximum that a request may ask for. Default: as in training.
      board: puzzles: rows and columns of the boards. Default: as in training.
      compile_all: compile all programs before the first answer, instead of at their first use.
    """

    def __init__(
        self,
        policy: Policy,
        slots: int | None = None,
        max_waiting: int = 1024,
        max_loops: int | None = None,
        board: tuple[int, int] | None = None,
        compile_all: bool = False,
    ):
        self.policy, self.max_waiting = policy, max_waiting
        at_least_one(self, "max_waiting")
        self.rows = Rows(policy, slots, max_loops, board)
        self._queue: collections.deque[_Pending] = collections.deque()
        self._changed = threading.Condition()
        self._closing, self._failure, self._compile_all = False, None, compile_all
        self._by_row: dict[int, _Pending] = {}
        self._answered, self._refused, self._loops, self._executed = 0, 0, 0, 0
        self._thread = threading.Thread(target=self._drive, name="engine", daemon=True)
        self._thread.start()

    def ask(
        self,
        observation: PyTree,
        *,
        max_loops: int | None = None,
        threshold: float | None = None,
        seconds: float | None = None,
        carry: Carry | None = None,
    ) -> Future[Answer]:
        """Request a decision; the future has it when it is made.

        Args:
          observation: one observation.
          max_loops: maximum number of loops. Default: as in training.
          threshold: divergence below which to halt. Default: as in training.
          seconds: time after which to answer with the policy of the loop reached so far.
          carry: of the last answer of the same episode. Default: an episode begins.
        """
        pending = self._accept(observation, max_loops, threshold, seconds, carry)
        with self._changed:
            if self._failure is not None:
                raise RuntimeError(f"this engine has failed: {self._failure}")
            if self._closing:
                raise BusyError("this engine is closing")
            if len(self._queue) >= self.max_waiting:
                self._refused += 1
                raise BusyError(f"{len(self._queue)} requests wait already")
            self._queue.append(pending)
            self._changed.notify()
        return pending.future

    @property
    def stats(self) -> EngineStats:
        """Counts since the engine started, and its current load."""
        with self._changed:
            return EngineStats(
                waiting=len(self._queue),
                looping=len(self._by_row),
                answered=self._answered,
                refused=self._refused,
                loops=self._loops,
                executed=self._executed,
            )

    @property
    def waiting(self) -> int:
        """Number of requests without a slot."""
        return len(self._queue)

    @property
    def failed(self) -> bool:
        """True if the engine has failed and answers no more requests."""
        return self._failure is not None

    def close(self) -> None:
        """Answer all waiting requests, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _accept(
        self,
        observation: PyTree,
        max_loops: int | None,
        threshold: float | None,
        seconds: float | None,
        carry: Carry | None,
    ) -> _Pending:
        """Check a request, and return it with its future."""
        rows = self.rows
        if not rows.is_looped and (max_loops is not None or threshold is not None):
            raise UserError(f"{self.policy.spec.arm} does not loop: its depth cannot be changed")
        cap = min(self.policy.spec.max_loops, rows.max_loops) if max_loops is None else max_loops
        if not 1 <= cap <= rows.max_loops:
            raise UserError(f"max_loops is {cap}; it must be from 1 to {rows.max_loops}")
        threshold = rows.threshold if threshold is None else threshold
        if not 0 <= threshold < math.inf:
            raise UserError(f"threshold is {threshold}; it must be a number of at least 0")
        if seconds is not None and not seconds > 0:
            raise UserError(f"seconds is {seconds}; it must be above 0")
        if carry is not None and not self.policy.carry_latent:
            raise UserError("this policy carries nothing from one decision to the next: leave carry out")
        received = time.monotonic()
        request = Request(
            inputs=self._check_observation(observation),
            cap=np.asarray(cap, np.int32),
            threshold=np.asarray(threshold, np.float32),
            carry=carry or Carry(np.zeros(0, np.float32), np.array(True)),
        )
        return _Pending(request, Future(), received, math.inf if seconds is None else received + seconds)

    def _check_observation(self, observation: PyTree) -> tuple[np.ndarray, ...]:
        """Return the arrays of an observation, or raise an error that says what they must be."""
        wanted = list(self.rows.inputs.values())
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(observation)]
        fits = len(leaves) == len(wanted) and all(
            leaf.shape == one.shape and leaf.dtype.kind in "biuf"
            for leaf, one in zip(leaves, wanted, strict=True)
        )
        if not fits:
            found = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves) or "nothing"
            expected = ", ".join(f"{one.dtype}{list(one.shape)}" for one in wanted)
            raise UserError(f"an observation is {expected}; what was given is {found}")
        return tuple(leaves)

    def _drive(self) -> None:
        """Let requests in, tick, and answer them, until the engine is closed; runs in the engine's thread."""
        try:
            state, table = self.rows.init(), self.rows.empty_table()
            if self._compile_all:
                state = self.rows.compile_all(state)
            leaving, min_ticks = np.zeros(self.rows.count, bool), 0
            while (entering := self._let_in(table)) is not None:
                free = self.rows.slots - len(self._by_row)
                decisions = 1 if not self._queue else max(1, self.rows.slots // 4)
                max_ticks = max(MAX_TICKS_FREE if free > 0 else MAX_TICKS_FULL, min_ticks)
                width, began = len(self._by_row), time.monotonic()
                limits = TickLimits(decisions, min_ticks, max_ticks)
                state, result = self.rows.tick(state, table, entering, leaving, limits, width)
                min_ticks = int(MIN_SECONDS * result.ticks / (time.monotonic() - began))
                self._executed = int(result.executed)
                leaving = self._answer(result)
        except Exception as error:  # whatever it is, no client may wait for ever
            self._failure = f"{type(error).__name__}: {error}"
            with self._changed:
                left = [*self._by_row.values(), *self._queue]
                self._queue.clear()
            for pending in left:
                _fail(pending.future, RuntimeError(f"this engine has failed: {self._failure}"))

    def _let_in(self, table: Request) -> np.ndarray | None:
        """Write waiting requests into free rows, and return these; None if the engine is closed and idle."""
        entering = np.zeros(self.rows.count, bool)
        with self._changed:
            while not self._queue and not self._by_row:
                if self._closing:
                    return None
                self._changed.wait()
            self._drop_late()
            for row in range(self.rows.count):
                while row not in self._by_row and self._queue:
                    pending = self._queue.popleft()
                    if pending.future.set_running_or_notify_cancel():
                        self._by_row[row], entering[row] = pending, True
                        _write_row(table, row, pending.request)
        return entering

    def _drop_late(self) -> None:
        """Fail requests whose deadline passed while they waited."""
        now = time.monotonic()
        late = [pending for pending in self._queue if now >= pending.deadline]
        if late:
            self._queue = collections.deque(one for one in self._queue if now < one.deadline)
        for pending in late:
            _fail(pending.future, LateError(LATE))

    def _answer(self, result: TickResult) -> np.ndarray:
        """Answer the requests that have a decision or a passed deadline, and return their rows."""
        leaving, now = np.zeros(self.rows.count, bool), time.monotonic()
        for row, pending in list(self._by_row.items()):
            late = now >= pending.deadline
            if not (result.ended[row] or late):
                continue
            leaving[row] = True
            with self._changed:
                del self._by_row[row]
            if not result.ended[row] and not (result.looping[row] and result.loops[row]):
                _fail(pending.future, LateError(LATE))
                continue
            loops, carry = int(result.loops[row]), None
            if self.policy.carry_latent:
                carry = Carry(result.latent[row].copy(), np.array(False))  # not a view of all rows
            self._answered, self._loops = self._answered + 1, self._loops + loops
            outputs = {name: values[row] for name, values in result.outputs.items()}
            seconds = now - pending.received
            pending.future.set_result(Answer(outputs, loops, int(result.stop[row]), seconds, carry))
        return leaving


def _write_row(table: Request, row: int, request: Request) -> None:
    """Write a request into a row of the table."""
    for there, given in zip(table.inputs, request.inputs, strict=True):
        there[row] = given
    table.cap[row], table.threshold[row] = request.cap, request.threshold
    table.carry.reset[row] = request.carry.reset
    if not request.carry.reset:
        table.carry.latent[row] = request.carry.latent


def _fail(future: Future, error: Exception) -> None:
    """Raise an error in the client, if it still waits."""
    if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
        future.set_exception(error)
