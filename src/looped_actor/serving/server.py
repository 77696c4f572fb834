"""The server: one process per replica, all on one port, and a supervisor that restarts and reloads them.

The supervisor opens the listening socket, and the replicas inherit it: the system hands each connection to
one of them, and a connection that waits in its queue survives the death of a replica.
"""

import asyncio
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import queue
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from looped_actor.policy.policy import Policy
from looped_actor.serving.options import METRICS_FOLDER, ServeOptions
from looped_actor.utils.checks import shown
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import (
    devices_here,
    end_with_parent,
    select_device,
    without_interrupts,
)

READY, RELOAD, RELOADED, FAILED = "ready", "reload", "reloaded", "failed"
"""Messages between supervisor and replicas."""
SECONDS_TO_DRAIN = 60
"""Time that a replica has to answer accepted requests when it is asked to end."""
SECONDS_TO_RELOAD = 600
BACKOFF = 0.5, 30.0
"""First and longest pause in seconds before a replica that died is restarted; doubled at each death."""
SECONDS_TO_TRUST = 60
"""Uptime after which a replica's next death counts as its first."""
BACKLOG = 2048
"""Connections that wait to be accepted."""
_SPAWN = multiprocessing.get_context("spawn")


class Supervisor:
    """Runs the replicas of a server until SIGTERM or SIGINT; reloads policies on SIGHUP.

    Args:
      folders: folders of the policies by name.
      options: address and limits.
      report: called with a sentence at each event.
      warn: called with a sentence at each failure.
    """

    def __init__(
        self,
        folders: Mapping[str, str],
        options: ServeOptions,
        report: Callable[[str], None] = print,
        warn: Callable[[str], None] = print,
    ):
        for name in folders:
            if not re.fullmatch(r"[\w.-]{1,100}", name):
                raise UserError(f"a policy cannot be named {shown(name)}: use letters, digits, ., - and _")
        self._folders, self._options = dict(folders), options
        self._report, self._warn = report, warn
        self._platform = "cpu"
        if options.replicas > 1:
            self._platform, count = devices_here()
            if self._platform != "cpu" and options.replicas > count:
                raise UserError(
                    f"{options.replicas} replicas were requested, and each needs its own device: there are "
                    f"{count} of type {self._platform}"
                )
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._replicas: list[_Replica] = []

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until a signal says to stop; `ready` is called when all replicas answer."""
        with contextlib.ExitStack() as stack:
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                before = signal.signal(number, lambda number, _: self._signals.put(number))
                stack.callback(signal.signal, number, before)
            listener = stack.enter_context(_listen(self._options.host, self._options.port))
            metrics = stack.enter_context(tempfile.TemporaryDirectory(prefix="looped-actor-metrics-"))
            stack.callback(self._stop)
            for slot in range(self._options.replicas):
                job = (self._folders, self._options, listener, metrics, (slot, self._platform))
                self._replicas.append(_Replica(slot, job))
            for replica in self._replicas:
                if not self._wait_until_ready(replica):
                    return
            ready()
            while self._handle_signals():
                for replica in self._replicas:
                    replica.restart_if_dead(self._warn)

    def _wait_until_ready(self, replica: "_Replica") -> bool:
        """Wait for a replica's first message. Return False if a signal ends the server before."""
        while not replica.poll(0.2):
            if not self._signals.empty() and self._signals.get() != signal.SIGHUP:
                return False
        message = replica.receive()
        if message != (READY, ""):
            raise UserError(message[1])
        return True

    def _handle_signals(self) -> bool:
        """Wait a moment for a signal. Return False if the server is to stop."""
        try:
            number = self._signals.get(timeout=0.2)
        except queue.Empty:
            return True
        if number != signal.SIGHUP:
            self._report("answering the last requests ...")
            return False
        for replica in self._replicas:  # one after the other: the others have the whole machine
            outcome, reason = replica.reload()
            if outcome != RELOADED:
                self._warn(f"not reloaded, the old policies are still served: {reason}")
                return True
        self._report("reloaded")
        return True

    def _stop(self) -> None:
        """Let all replicas answer what they accepted, and end them."""
        for replica in self._replicas:
            replica.terminate()
        deadline = time.monotonic() + SECONDS_TO_DRAIN + 10
        for replica in self._replicas:
            replica.join(deadline)


class _Replica:
    """A process of the server, as its supervisor sees it."""

    def __init__(self, slot: int, job: tuple):
        self._slot, self._job, self._deaths, self._due = slot, job, 0, 0.0
        self._start()

    def _start(self) -> None:
        self._messages, there = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_run_replica, args=(*self._job, there), daemon=True)
        with without_interrupts():
            self._process.start()
        there.close()
        self._started, self._due = time.monotonic(), 0.0

    def poll(self, seconds: float) -> bool:
        """Return whether a message is there, or the process has died."""
        return bool(multiprocessing.connection.wait([self._messages, self._process.sentinel], seconds))

    def receive(self) -> tuple[str, str]:
        """Return the next message; that of a dead process is a failure."""
        with contextlib.suppress(EOFError, OSError):
            if self._messages.poll(1):
                return self._messages.recv()
        return FAILED, f"replica {self._slot} died (out of memory?)"

    def reload(self) -> tuple[str, str]:
        """Let the process load its policies again. Return the outcome, and the reason of a failure."""
        with contextlib.suppress(OSError):
            self._messages.send(RELOAD)
        return self.receive() if self.poll(SECONDS_TO_RELOAD) else (FAILED, f"replica {self._slot} hangs")

    def restart_if_dead(self, warn: Callable[[str], None]) -> None:
        """Start the process again, some time after it died."""
        if self._process.is_alive():
            return
        now = time.monotonic()
        if not self._due:
            self._deaths = 1 if now - self._started > SECONDS_TO_TRUST else self._deaths + 1
            pause = min(BACKOFF[0] * 2 ** (self._deaths - 1), BACKOFF[1])
            self._due = now + pause
            warn(f"replica {self._slot} died ({self._process.exitcode}); restarting in {pause:g} s")
        elif now >= self._due:
            self._start()

    def terminate(self) -> None:
        """Ask the process to answer what it accepted, and to end."""
        self._process.terminate()

    def join(self, deadline: float) -> None:
        """Wait for the end of the process, and kill it after the deadline."""
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextlib.contextmanager
def _listen(host: str, port: int) -> Any:
    """Yield a socket that listens at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    with listener:
        yield listener


def load_policies(folders: Mapping[str, str], options: ServeOptions) -> dict[str, Policy]:
    """Load policies, or raise an error for one that cannot be served with these options."""
    from looped_actor.runs.load import policy_at

    code, policies = options.custom_code, {}
    for name, folder in folders.items():
        policy = policies[name] = policy_at(pathlib.Path(folder), code=code)
        policy.spec.inputs(options.board)
        if options.replicas > 1 and policy.carry_latent:
            raise UserError(
                f"{name} carries its latent from one decision to the next, in the replica that made it, and "
                f"requests may reach any of {options.replicas} replicas: serve it with one replica"
            )
    return policies


def _run_replica(
    folders: Mapping[str, str],
    options: ServeOptions,
    listener: socket.socket,
    metrics_folder: str,
    device: tuple[int, str],
    messages: Any,
) -> None:
    """Serve until SIGTERM; runs in a process of its own."""
    end_with_parent()
    select_device(*device)
    os.environ[METRICS_FOLDER] = metrics_folder  # before prometheus_client is imported
    import uvicorn

    from looped_actor.serving.app import make_app
    from looped_actor.serving.metrics import Metrics
    from looped_actor.serving.model import ServedModel
    from looped_actor.training.sharding import start_devices

    start_devices(1)
    metrics, models = Metrics(), {}

    def load() -> dict[str, ServedModel]:
        policies = load_policies(folders, options)
        return {name: ServedModel(name, policy, options, metrics) for name, policy in policies.items()}

    try:
        models.update(load())
    except UserError as error:
        messages.send((FAILED, str(error)))
        return
    config = uvicorn.Config(
        make_app(models, options, metrics),
        http="httptools",
        loop="uvloop",
        lifespan="off",
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=SECONDS_TO_DRAIN,
        timeout_keep_alive=75,
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=obey, args=(loop,), daemon=True).start()
        watch = loop.create_task(exit_on_failure())
        messages.send((READY, ""))
        await server.serve(sockets=[listener])
        watch.cancel()

    async def exit_on_failure() -> None:
        """End the process if an engine failed: the supervisor starts a new one."""
        while not any(model.engine.failed for model in models.values()):
            await asyncio.sleep(1)
        os._exit(1)

    async def swap(new: dict[str, ServedModel]) -> None:
        """Replace the models, in the thread of the event loop: between two requests."""
        models.update(new)

    def obey(loop: asyncio.AbstractEventLoop) -> None:
        """Reload the policies whenever the supervisor says so; runs in a thread."""
        while True:
            try:
                messages.recv()
                new = load()
            except EOFError:
                return
            except Exception as error:  # the old policies are still served
                messages.send((FAILED, str(error)))
                continue
            old = dict(models)
            asyncio.run_coroutine_threadsafe(swap(new), loop).result()
            for model in old.values():
                model.close()  # answers what it accepted
            messages.send((RELOADED, ""))

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())
    for model in models.values():
        model.close()
