"""Policies behind HTTP, by Ray Serve: replicas, health, rolling updates and routing are its work.

Every policy is an application of its own under /v2/models/NAME, whose replicas hold an engine each; another
one under /v2 tells who is there. What comes in is read by `looped_actor.serving.protocol`.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import pathlib
import queue
import re
import signal
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from looped_actor.loop import Carry, StopReason
from looped_actor.policy.pretrained import locate
from looped_actor.runs.custom import read_code
from looped_actor.runs.load import policy_at
from looped_actor.runs.run import CustomCode
from looped_actor.serving.engine import Answer, BusyError, Engine, LateError
from looped_actor.serving.gate import RETRY_AFTER, STRANGER, TOKEN, bears, put_up
from looped_actor.serving.protocol import (
    HEADER_LENGTH,
    InferRequest,
    ProtocolError,
    format_response,
    number,
    parse_request,
    tensors,
)
from looped_actor.utils.checks import at_least_one, shown
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import join_ray
from looped_actor.version import __version__

MODELS = "/v2/models"
DOOR = "server"
EXTENSIONS = ["binary_tensor_data", "sequence", "statistics"]
SEQUENCE_SECONDS = 600
"""After which a sequence that nobody goes on with is forgotten."""
MOST_SEQUENCES = 10_000
SECONDS_TO_ANSWER = 60
"""Which a replica that is to end has for those who have asked."""
LATENCIES = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]


@dataclass(frozen=True)
class Serving:
    """How policies are served."""

    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    """Processes for each policy."""
    ray: str = "local"
    """A Ray cluster's address, auto for the one this machine belongs to, or local to start one."""
    slots: int | None = None
    """Thoughts at a time in a replica. Default: what suits its hardware."""
    max_waiting: int = 1024
    """Requests that wait in a replica; those above are refused with 503."""
    max_loops: int | None = None
    """No request may think longer. Default: as in training."""
    max_rows: int = 256
    """Examples in a request."""
    max_bytes: int = 2**24
    """Of a request's body."""
    board: tuple[int, int] | None = None
    """Puzzles: rows and columns of the boards. Default: as in training."""
    code: str | None = None
    """Of policies of the user's own world: the Python file with `env` and `build`, which is executed."""
    token: str = ""
    """What whoever asks must bear. Empty: nothing, which is for loopback alone."""

    def __post_init__(self) -> None:
        at_least_one(self, "replicas", "max_waiting", "max_rows", "max_bytes")
        if not self.token and not _is_loopback(self.host):
            raise UserError(
                f"{self.host} can be reached by others: put a token that they must bear into the environment "
                f"variable {TOKEN}, or serve on 127.0.0.1"
            )

    @property
    def custom_code(self) -> CustomCode | None:
        """What of the user's world is code. Its file is executed."""
        if self.code is None:
            return None
        module = read_code(pathlib.Path(self.code))
        return CustomCode(module.build, module.env)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class Asking:
    """What every application does with a request: look at who asks, and answer mistakes in JSON."""

    def __init__(self, settings: Mapping[str, Any]):
        self.settings = Serving(**settings)

    async def __call__(self, request: Any) -> Any:
        """A request of Starlette's to a response."""
        from starlette.responses import Response

        try:
            if not bears(request.headers.get("authorization", ""), self.settings.token):
                raise ProtocolError(STRANGER, 401)
            body, headers = await self.answer(request)
            return Response(body, headers=headers)
        except ProtocolError as error:
            again = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
            body, headers = _json({"error": str(error)})
            return Response(body, error.status, headers=headers | again)

    async def answer(self, request: Any) -> tuple[bytes, dict[str, str]]:
        """Body and headers."""
        raise NotImplementedError


class Door(Asking):
    """Tells who is there."""

    def __init__(self, settings: Mapping[str, Any], models: list[str]):
        super().__init__(settings)
        self.models = models

    async def answer(self, request: Any) -> tuple[bytes, dict[str, str]]:
        """About the server; its models have applications of their own."""
        path = request.url.path.rstrip("/")
        if request.method != "GET" and path in ("/v2", "/v2/health/live", "/v2/health/ready"):
            raise ProtocolError(f"{path} answers GET", 405)
        if path in ("/v2/health/live", "/v2/health/ready"):
            return _json({})
        if path == "/v2":
            told = {"name": "looped-actor", "version": __version__, "extensions": EXTENSIONS}
            return _json(told | {"models": self.models})
        raise ProtocolError(f"there is nothing at {shown(path)}; models are {self.models}", 404)


class Replica(Asking):
    """A policy in a process of its own."""

    def __init__(self, settings: Mapping[str, Any], name: str, folder: str):
        super().__init__(settings)
        from looped_actor.training.sharding import start_devices

        start_devices(1)
        self.name, asked = name, self.settings
        given = asked.slots, asked.max_waiting, asked.max_loops, asked.board
        policy = policy_at(pathlib.Path(folder), code=asked.custom_code)
        self.engine = Engine(policy, *given, compile_all=True)
        self.sequences: OrderedDict[Any, tuple[Carry, float]] = OrderedDict()
        self._metrics()
        self._first_answer()  # whatever is to be compiled is, before anyone asks

    def _metrics(self) -> None:
        """For Prometheus, by Ray."""
        from ray.util.metrics import Counter, Gauge, Histogram

        loops = [2.0**n for n in range(8)]
        self._count = Counter("looped_actor_decisions", "Decisions.")
        self._loops = Histogram("looped_actor_loops", "Loops of a decision.", loops)
        self._seconds = Histogram("looped_actor_seconds", "From question to decision.", LATENCIES)
        self._waiting = Gauge("looped_actor_waiting", "Requests without a slot.")

    def _first_answer(self) -> None:
        rows = self.engine.rows
        self.inputs = rows.inputs
        nothing = [np.zeros(one.shape, one.dtype) for one in self.inputs.values()]
        answer = self.engine.ask(nothing).result()
        self.outputs = _by_name([answer])

    def check_health(self) -> None:
        """Asked by Ray Serve from time to time; a replica that fails it is replaced."""
        if self.engine.failed:
            raise RuntimeError("the engine has failed")

    async def answer(self, request: Any) -> tuple[bytes, dict[str, str]]:
        """About the model, or a decision by it."""
        path = request.url.path.rstrip("/").removeprefix(f"{MODELS}/{self.name}")
        path = path.removeprefix("/versions/1")
        if path == "/infer":
            if request.method != "POST":
                raise ProtocolError("infer answers POST", 405)
            return await self.infer(await self._body(request), request.headers.get(HEADER_LENGTH))
        told = {"": self.about, "/ready": dict, "/stats": self.stats}.get(path)
        if told is None:
            raise ProtocolError(f"there is nothing at {shown(request.url.path)}", 404)
        if request.method != "GET":
            raise ProtocolError("this answers GET", 405)
        return _json(told())

    def about(self) -> dict[str, Any]:
        """Its metadata."""
        rows, policy = self.engine.rows, self.engine.policy
        rule: Any = policy.halting
        return {
            "name": self.name,
            "versions": ["1"],
            "platform": "looped-actor",
            "inputs": tensors(self.inputs),
            "outputs": tensors({name: values[0] for name, values in self.outputs.items()}),
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
        """How its engine stands."""
        return self.engine.stats._asdict() | {"sequences": len(self.sequences)}

    async def infer(self, body: bytes, header_length: str | None) -> tuple[bytes, dict[str, str]]:
        """Decide for a batch, each example by itself."""
        names = list(self.outputs)
        question = parse_request(body, header_length, self.inputs, names, self.settings.max_rows)
        parameters = question.parameters
        sequence, carry = self._recalled(question)
        microseconds = number(parameters, "timeout", int)
        limits = {
            "max_loops": number(parameters, "max_loops", int),
            "threshold": number(parameters, "threshold"),
            "seconds": None if microseconds is None else microseconds / 1e6,
            "carry": carry,
        }
        answers = await self._asked(question, limits)
        for answer in answers:
            self._count.inc()
            self._loops.observe(answer.loops)
            self._seconds.observe(answer.seconds)
        self._waiting.set(self.engine.stats.waiting)
        said: dict[str, Any] = {}
        if any(answer.stop == StopReason.RUNNING for answer in answers):
            said["late"] = True
        if sequence is not None:
            said |= {"sequence_id": sequence, "sequence_fresh": carry is None}
            self._remember(sequence, answers[0], ended=parameters.get("sequence_end") is True)
        return format_response(question, self.name, _by_name(answers), said)

    async def _asked(self, question: InferRequest, limits: dict[str, Any]) -> list[Answer]:
        futures = []
        try:
            for row in range(question.rows):
                seen = [values[row] for values in question.inputs.values()]
                futures.append(self.engine.ask(seen, **limits))
            return await asyncio.gather(*map(asyncio.wrap_future, futures))
        except BusyError as error:
            raise ProtocolError(f"too busy: {error}", 503, retry_after=RETRY_AFTER) from None
        except LateError as error:
            raise ProtocolError(str(error), 504) from None
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        except RuntimeError as error:
            raise ProtocolError(str(error), 500) from None
        finally:
            for future in futures:
                future.cancel()  # of those that are not done, if one has failed or nobody listens any more

    def _recalled(self, question: InferRequest) -> tuple[Any, Carry | None]:
        """Which sequence is asked to go on, and what it carries; None where it begins, or is forgotten."""
        sequence = question.parameters.get("sequence_id")
        if not isinstance(sequence, (int, str)) or sequence in (0, "") or not self.engine.policy.carry_latent:
            return None, None
        if question.rows != 1:
            raise ProtocolError("a request of a sequence is of one example")
        now = time.monotonic()
        while self.sequences and next(iter(self.sequences.values()))[1] < now - SEQUENCE_SECONDS:
            self.sequences.popitem(last=False)
        if question.parameters.get("sequence_start") is True:
            self.sequences.pop(sequence, None)
        # A latent stays until its successor is here: a request that fails can be sent again.
        carry, _ = self.sequences.get(sequence, (None, now))
        return sequence, carry

    def _remember(self, sequence: Any, answer: Answer, ended: bool) -> None:
        self.sequences.pop(sequence, None)
        if ended or answer.carry is None:
            return
        self.sequences[sequence] = answer.carry, time.monotonic()  # as the newest
        if len(self.sequences) > MOST_SEQUENCES:
            self.sequences.popitem(last=False)

    async def _body(self, request: Any) -> bytes:
        """No more of it than may be."""
        parts, size = [], 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > self.settings.max_bytes:
                raise ProtocolError(f"a request has at most {self.settings.max_bytes} bytes", 413)
        return b"".join(parts)


def _by_name(answers: list[Answer]) -> dict[str, np.ndarray]:
    """What was answered, as batches."""
    values = [{**a.outputs, "loops": np.int32(a.loops), "stop": np.int32(a.stop)} for a in answers]
    return {name: np.stack([one[name] for one in values]) for name in values[0]}


def _json(value: Any) -> tuple[bytes, dict[str, str]]:
    return json.dumps(value).encode(), {"Content-Type": "application/json"}


def start(
    policies: Mapping[str, str], settings: Serving, ways: Mapping[str, type[Replica]] | None = None
) -> None:
    """Start serving, and return when all is ready.

    Args:
      policies: their folders by their names.
      settings: how to serve.
      ways: other replicas than usual, by the same names.
    """
    for name, folder in policies.items():
        locate(folder)
        if not re.fullmatch(r"[\w.-]{1,100}", name) or name == DOOR:
            raise UserError(f"a policy cannot be called {shown(name)}: letters, digits, - and _, not {DOOR}")
    _check(policies, settings)  # before a cluster is started
    if settings.ray == "local":
        os.environ.setdefault("RAY_worker_niceness", "0")  # someone waits for their answers
        put_up(settings.max_waiting * settings.replicas * len(policies), settings.token)
    join_ray(settings.ray)
    try:
        _deploy(policies, settings, ways or {})
    except BaseException:
        stop(policies)
        raise


def deploy(
    policies: Mapping[str, str], settings: Serving, ways: Mapping[str, type[Replica]] | None = None
) -> None:
    """Serve what lies in the folders now; what is served already answers until its replacement is ready.

    Replicas are replaced one after the other. Where a policy cannot be loaded, nothing changes.
    """
    _check(policies, settings)
    _deploy(policies, settings, ways or {})


def _check(policies: Mapping[str, str], settings: Serving) -> None:
    """Raise an error for policies that cannot be loaded, or not be served in this way."""
    code = settings.custom_code
    for name, folder in policies.items():
        policy = policy_at(pathlib.Path(folder), code=code)
        policy.spec.inputs(settings.board)
        if settings.replicas > 1 and policy.carry_latent:
            raise UserError(
                f"{name} carries its latent from one decision to the next, in the replica that made it, and "
                f"requests may reach any of {settings.replicas} replicas: serve it with one replica"
            )


def _deploy(policies: Mapping[str, str], settings: Serving, ways: Mapping[str, type[Replica]]) -> None:
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    quiet = {"log_level": "ERROR", "enable_access_log": False}
    http = {"host": settings.host, "port": settings.port}
    serve.start(proxy_location="HeadOnly", http_options=http, logging_config=quiet)
    given, common = asdict(settings), {"ray_actor_options": {"num_cpus": 0}, "logging_config": quiet}
    replica: Any = serve.deployment(
        name="Replica",
        num_replicas=settings.replicas,
        max_ongoing_requests=2 * settings.max_waiting + 64,  # the gate and the engine know when to refuse
        health_check_period_s=2,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=SECONDS_TO_ANSWER,
        **common,
    )
    door: Any = serve.deployment(max_ongoing_requests=1000, **common)(Door)
    targets = [
        serve.RunTarget(replica(ways.get(name, Replica)).bind(given, name, folder), name, f"{MODELS}/{name}")
        for name, folder in policies.items()
    ]
    serve.run_many([*targets, serve.RunTarget(door.bind(given, list(policies)), DOOR, "/v2")])


def stop(policies: Iterable[str]) -> None:
    """Answer who has asked, and end. What else a cluster serves is left alone."""
    import ray
    from ray import serve

    for name in {*policies, DOOR} & serve.status().applications.keys():
        serve.delete(name)  # its replicas answer before they end
    ray.shutdown()


def reload_signals() -> Iterator[None]:
    """Yield at every SIGHUP, and end at SIGTERM or SIGINT."""
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()
    for which in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda number, _: heard.put(number))
    while True:
        with contextlib.suppress(queue.Empty):
            if heard.get(timeout=1) != signal.SIGHUP:  # a wait without end would not be interrupted
                return
            yield
