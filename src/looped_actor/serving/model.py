"""A policy behind the Open Inference Protocol: its engine, and the carried latents of its sequences."""

import asyncio
import time
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from looped_actor.loop import Carry, StopReason
from looped_actor.policy.policy import Policy
from looped_actor.serving.engine import Answer, BusyError, Engine, LateError
from looped_actor.serving.metrics import Metrics
from looped_actor.serving.options import ServeOptions
from looped_actor.serving.protocol import (
    InferRequest,
    ProtocolError,
    format_response,
    number,
    parse_request,
    tensors,
)

RETRY_AFTER = 1
"""Seconds after which a refused client may retry."""
SEQUENCE_SECONDS = 600
"""Time after which an idle sequence is forgotten."""
MAX_SEQUENCES = 10_000


class ServedModel:
    """A policy that answers requests of the protocol.

    Args:
      name: name in URLs.
      policy: the policy.
      options: limits of requests.
      metrics: counters to update. None: no metrics.
    """

    def __init__(self, name: str, policy: Policy, options: ServeOptions, metrics: Metrics | None = None):
        self.name, self.options, self._metrics = name, options, metrics
        self.engine = Engine(
            policy,
            slots=options.slots,
            max_waiting=options.max_waiting,
            max_loops=options.max_loops,
            board=options.board,
            compile_all=True,
        )
        self.inputs = self.engine.rows.inputs
        zeros = [np.zeros(one.shape, one.dtype) for one in self.inputs.values()]
        first = self.engine.ask(zeros).result()  # compiles all programs
        self.outputs = {
            output: jax.ShapeDtypeStruct(values.shape[1:], values.dtype)
            for output, values in _stack_outputs([first]).items()
        }
        self._sequences: OrderedDict[Any, tuple[Carry, float]] = OrderedDict()
        self._answers = _Bridge()

    def metadata(self) -> dict[str, Any]:
        """Return the model metadata of the protocol."""
        rows, policy = self.engine.rows, self.engine.policy
        rule: Any = policy.halting
        return {
            "name": self.name,
            "versions": ["1"],
            "platform": "looped-actor",
            "inputs": tensors(self.inputs),
            "outputs": tensors(self.outputs),
            "parameters": {
                "task": policy.spec.task,
                "arm": policy.spec.arm,
                "halting": None if rule is None else {"rule": type(rule).__name__, **asdict(rule)},
                "start": "carried" if policy.carry_latent else "fixed",
                "max_loops": rows.max_loops,
                "slots": rows.slots,
            },
        }

    def stats(self) -> dict[str, Any]:
        """Return the counters of the engine and the number of sequences."""
        return self.engine.stats._asdict() | {"sequences": len(self._sequences)}

    async def infer(self, body: bytes, header_length: str | None) -> tuple[bytes, dict[str, str]]:
        """Decide for each example of a request. Return the body and the headers of the response."""
        request = parse_request(body, header_length, self.inputs, list(self.outputs), self.options.max_rows)
        parameters = request.parameters
        sequence, carry = self._find_sequence(request)
        microseconds = number(parameters, "timeout", int)
        limits = {
            "max_loops": number(parameters, "max_loops", int),
            "threshold": number(parameters, "threshold"),
            "seconds": None if microseconds is None else microseconds / 1e6,
            "carry": carry,
        }
        answers = await self._ask(request, limits)
        if self._metrics is not None:
            self._metrics.observe(self.name, answers, self.engine)
        reply: dict[str, Any] = {}
        if any(answer.stop == StopReason.RUNNING for answer in answers):
            reply["late"] = True
        if sequence is not None:
            reply |= {"sequence_id": sequence, "sequence_fresh": carry is None}
            self._store_sequence(sequence, answers[0], ended=parameters.get("sequence_end") is True)
        return format_response(request, self.name, _stack_outputs(answers), reply)

    def close(self) -> None:
        """Answer all waiting requests, and stop the engine."""
        self.engine.close()

    async def _ask(self, request: InferRequest, limits: dict[str, Any]) -> list[Answer]:
        futures = []
        try:
            for row in range(request.rows):
                observation = [values[row] for values in request.inputs.values()]
                futures.append(self.engine.ask(observation, **limits))
            return await asyncio.gather(*map(self._answers.wait_for, futures))
        except BusyError as error:
            if self._metrics is not None:
                self._metrics.refused.labels(self.name).inc()
            raise ProtocolError(f"too busy: {error}", 503, retry_after=RETRY_AFTER) from None
        except LateError as error:
            raise ProtocolError(str(error), 504) from None
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        except RuntimeError as error:
            raise ProtocolError(str(error), 500) from None
        finally:
            for future in futures:
                future.cancel()  # those that are not done, if one has failed or the client is gone

    def _find_sequence(self, request: InferRequest) -> tuple[Any, Carry | None]:
        """Return the id of a request's sequence and its carry; None if it begins or was forgotten."""
        sequence = request.parameters.get("sequence_id")
        if not isinstance(sequence, (int, str)) or sequence in (0, "") or not self.engine.policy.carry_latent:
            return None, None
        if request.rows != 1:
            raise ProtocolError("a request of a sequence has one example")
        now = time.monotonic()
        while self._sequences and next(iter(self._sequences.values()))[1] < now - SEQUENCE_SECONDS:
            self._sequences.popitem(last=False)
        if request.parameters.get("sequence_start") is True:
            self._sequences.pop(sequence, None)
        # A latent stays until the next one replaces it: a request that failed can be retried.
        carry, _ = self._sequences.get(sequence, (None, now))
        return sequence, carry

    def _store_sequence(self, sequence: Any, answer: Answer, ended: bool) -> None:
        self._sequences.pop(sequence, None)
        if ended or answer.carry is None:
            return
        self._sequences[sequence] = answer.carry, time.monotonic()  # the newest is last
        if len(self._sequences) > MAX_SEQUENCES:
            self._sequences.popitem(last=False)


class _Bridge:
    """Passes results of the engine's thread to the event loop, all of a tick at once.

    `asyncio.wrap_future` wakes the event loop for each future, which costs more than a small policy's
    decision.
    """

    def __init__(self) -> None:
        self._done: deque[tuple[asyncio.Future, Future]] = deque()
        self._scheduled = False

    def wait_for(self, future: Future) -> asyncio.Future:
        """Return a future of the running event loop with the result of another thread."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def pass_on(done: Future) -> None:  # in the engine's thread, or here if it is done already
            self._done.append((waiter, done))
            if not self._scheduled:
                self._scheduled = True
                loop.call_soon_threadsafe(self._deliver)

        future.add_done_callback(pass_on)
        return waiter

    def _deliver(self) -> None:
        self._scheduled = False  # before the queue is read: what comes later schedules again
        while self._done:
            waiter, done = self._done.popleft()
            if waiter.done():
                continue
            if done.cancelled():
                waiter.cancel()
            elif (error := done.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(done.result())


def _stack_outputs(answers: list[Answer]) -> dict[str, np.ndarray]:
    """Return the outputs of answers as batches by name, with loops and stop reasons."""
    outputs = {name: np.stack([one.outputs[name] for one in answers]) for name in answers[0].outputs}
    outputs["loops"] = np.array([one.loops for one in answers], np.int32)
    outputs["stop"] = np.array([one.stop for one in answers], np.int32)
    return outputs
