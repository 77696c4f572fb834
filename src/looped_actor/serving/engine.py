"""Many askers, one device: requests enter between ticks, and decisions leave as soon as they are there.

One thread drives the device. Whoever asks gets a future at once, or is told that too many wait already.
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

from looped_actor.loop import Memory
from looped_actor.policy.policy import Policy
from looped_actor.serving.rows import Asked, Came, Ends, Rows
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError

TICKS_AT_ONCE = 4
"""While others might come in: nobody who asks waits for more ticks than that before a slot is looked for."""
TICKS_WHEN_FULL = 16
"""While nobody could: deadlines are looked at as often."""
MOMENT = 0.002
"""Seconds that a call should last, if thoughts do: between two of them the host takes half a millisecond."""
LATE = "the deadline passed before this request had a slot"


class BusyError(Exception):
    """As many requests wait as may: ask again later."""


class LateError(Exception):
    """The deadline passed before a thought began."""


class Answer(NamedTuple):
    """A decision."""

    outputs: dict[str, Any]
    """All that an exported policy returns, too: the action, and its logits and value where it has such."""
    loops: int
    stop: int
    """Why the thought ended: a value of `StopReason`, RUNNING where its deadline did."""
    seconds: float
    """From the question to this answer."""
    memory: Memory | None = None
    """What to ask the next decision of the same episode with; None where nothing is carried."""

    @property
    def action(self) -> Any:
        """As the environment takes it."""
        return self.outputs["action"]


class Standing(NamedTuple):
    """How an engine stands. Counts are since it began."""

    waiting: int
    thinking: int
    answered: int
    refused: int
    loops: int
    """Of all answers."""
    executed: int
    """Loops that the hardware computed for them: slots x ticks."""


class _Request(NamedTuple):
    asked: Asked
    future: Future
    began: float
    deadline: float


class Engine:
    """Answers requests for decisions, each thought as long as it needs.

    ```python
    with Engine(looped_actor.load_policy("runs/first")) as engine:
        answer = engine.ask(observation).result()
        answer.action, answer.loops
    ```

    Args:
      policy: who answers.
      slots: thoughts at a time. Default: what suits the hardware.
      most_waiting: requests that may wait; one more is refused.
      most_loops: no request may think longer. Default: as in training.
      board: puzzles: rows and columns of the boards. Default: as in training.
      compile_all: compile all programs before the first answer, and not when they are first needed.
    """

    def __init__(
        self,
        policy: Policy,
        slots: int | None = None,
        most_waiting: int = 1024,
        most_loops: int | None = None,
        board: tuple[int, int] | None = None,
        compile_all: bool = False,
    ):
        self.policy, self.most_waiting = policy, most_waiting
        at_least_one(self, "most_waiting")
        self.rows = Rows(policy, slots, most_loops, board)
        self._queue: collections.deque[_Request] = collections.deque()
        self._changed = threading.Condition()
        self._closing, self._failure, self._compile_all = False, None, compile_all
        self._at_work: dict[int, _Request] = {}
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
        memory: Memory | None = None,
    ) -> Future[Answer]:
        """Ask for a decision; the future has it as soon as the thought has ended.

        Args:
          observation: one.
          max_loops: the most loops to think. Default: as in training.
          threshold: the divergence at which to halt. Default: as in training.
          seconds: after which to answer with the policy of the loop that was reached.
          memory: of the last answer of the same episode. Default: an episode begins.
        """
        request = self._request(observation, max_loops, threshold, seconds, memory)
        with self._changed:
            if self._failure is not None:
                raise RuntimeError(f"this engine has failed: {self._failure}")
            if self._closing:
                raise BusyError("this engine is closing")
            if len(self._queue) >= self.most_waiting:
                self._refused += 1
                raise BusyError(f"{len(self._queue)} requests wait already")
            self._queue.append(request)
            self._changed.notify()
        return request.future

    @property
    def standing(self) -> Standing:
        """How it stands."""
        with self._changed:
            waits, works = len(self._queue), len(self._at_work)
            return Standing(waits, works, self._answered, self._refused, self._loops, self._executed)

    @property
    def failed(self) -> bool:
        """Whether it can answer no more."""
        return self._failure is not None

    def close(self) -> None:
        """Answer whoever waits, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _request(
        self,
        observation: PyTree,
        max_loops: int | None,
        threshold: float | None,
        seconds: float | None,
        memory: Memory | None,
    ) -> _Request:
        """A request that has been looked at."""
        rows, usual = self.rows, self.policy.run.net.max_loops
        if not rows.loops and (max_loops is not None or threshold is not None):
            raise UserError(f"{self.policy.config.arm} does not loop: its depth cannot be changed")
        cap = min(usual, rows.most_loops) if max_loops is None else max_loops
        if not 1 <= cap <= rows.most_loops:
            raise UserError(f"max_loops is {cap}; it must be from 1 to {rows.most_loops}")
        threshold = rows.threshold if threshold is None else threshold
        if not 0 <= threshold < math.inf:
            raise UserError(f"threshold is {threshold}; it must be a number of at least 0")
        if seconds is not None and not seconds > 0:
            raise UserError(f"seconds is {seconds}; it must be above 0")
        if memory is not None and not rows.carries:
            raise UserError("this policy carries nothing from one decision to the next: leave memory out")
        began = time.monotonic()
        deadline = math.inf if seconds is None else began + seconds
        limits = np.asarray(cap, np.int32), np.asarray(threshold, np.float32)
        asked = Asked(self._fitting(observation), *limits, memory)
        return _Request(asked, Future(), began, deadline)

    def _fitting(self, observation: PyTree) -> tuple[np.ndarray, ...]:
        """An observation as this engine's programs read it, or an error that says what they read."""
        wanted = list(self.rows.program.inputs.values())
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(observation)]
        fits = len(leaves) == len(wanted) and all(
            leaf.shape == one.shape and leaf.dtype.kind in "biuf"
            for leaf, one in zip(leaves, wanted, strict=True)
        )
        if not fits:
            found = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves) or "nothing"
            told = ", ".join(f"{one.dtype}{list(one.shape)}" for one in wanted)
            raise UserError(f"an observation is {told}; what was given is {found}")
        return tuple(leaves)

    def _drive(self) -> None:
        """In a thread of its own: let requests in, think, and let answers out, until it is closed."""
        try:
            with self.policy.precision:
                state, table = self.rows.begin(), self.rows.nothing()
                if self._compile_all:
                    state = self.rows.compile_all(state)
                leaving, quick = np.zeros(self.rows.count, bool), 0
                while (entering := self._admitted(table)) is not None:
                    free = self.rows.slots - len(self._at_work)
                    enough = 1 if not self._queue else max(1, self.rows.slots // 4)
                    most = max(TICKS_AT_ONCE if free > 0 else TICKS_WHEN_FULL, quick)
                    width, began = len(self._at_work), time.monotonic()
                    ends = Ends(enough, quick, most)
                    state, came = self.rows.think(state, table, entering, leaving, ends, width)
                    quick = int(MOMENT * came.ticks / (time.monotonic() - began))
                    self._executed = int(came.executed)
                    leaving = self._let_out(came)
        except Exception as error:  # whatever it is, nobody must wait for an answer that will not come
            self._failure = f"{type(error).__name__}: {error}"
            with self._changed:
                left = [*self._at_work.values(), *self._queue]
                self._queue.clear()
            for request in left:
                _fail(request.future, RuntimeError(f"this engine has failed: {self._failure}"))

    def _admitted(self, table: Asked) -> np.ndarray | None:
        """Let requests into free rows; which. None when all is done and nobody will come."""
        entering = np.zeros(self.rows.count, bool)
        with self._changed:
            while not self._queue and not self._at_work:
                if self._closing:
                    return None
                self._changed.wait()
            self._drop_late()
            for row in range(self.rows.count):
                while row not in self._at_work and self._queue:
                    request = self._queue.popleft()
                    if request.future.set_running_or_notify_cancel():
                        self._at_work[row], entering[row] = request, True
                        _write(table, row, request.asked)
        return entering

    def _drop_late(self) -> None:
        """Tell those whose deadline passed while they waited."""
        now = time.monotonic()
        late = [request for request in self._queue if now >= request.deadline]
        if late:
            self._queue = collections.deque(one for one in self._queue if now < one.deadline)
        for request in late:
            _fail(request.future, LateError(LATE))

    def _let_out(self, came: Came) -> np.ndarray:
        """Answer whoever can be answered; rows that are free again."""
        leaving, now = np.zeros(self.rows.count, bool), time.monotonic()
        for row, request in list(self._at_work.items()):
            late = now >= request.deadline
            if not (came.ended[row] or late):
                continue
            leaving[row] = True
            with self._changed:
                del self._at_work[row]
            if not came.ended[row] and not (came.thinking[row] and came.loops[row]):
                _fail(request.future, LateError(LATE))
                continue
            loops, memory = int(came.loops[row]), None
            if came.latent is not None:
                memory = Memory(came.latent[row].copy(), np.array(False))  # not all rows
            self._answered, self._loops = self._answered + 1, self._loops + loops
            outputs = {name: values[row] for name, values in came.outputs.items()}
            answer = Answer(outputs, loops, int(came.stop[row]), now - request.began, memory)
            request.future.set_result(answer)
        return leaving


def _write(table: Asked, row: int, asked: Asked) -> None:
    """Put a request into a row."""
    memory = table.memory
    if memory is not None:
        memory.fresh[row] = asked.memory is None
        if asked.memory is not None:
            memory.latent[row] = asked.memory.latent
    for there, given in zip(
        jax.tree.leaves(table._replace(memory=None)),
        jax.tree.leaves(asked._replace(memory=None)),
        strict=True,
    ):
        there[row] = given


def _fail(future: Future, error: Exception) -> None:
    """Tell whoever still waits for it."""
    if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
        future.set_exception(error)
