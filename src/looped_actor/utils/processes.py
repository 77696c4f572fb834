"""Work over many processes: on this machine, or on a Ray cluster, by the same calls.

`run_batches` maps a function over tasks, in order and resumable: batches are fixed beforehand, so the result
does not depend on the number of workers. `fan_out` runs named jobs, each in a process with a device of its
own; a process that dies is started again, so a job that saves its progress, like a training run, continues.
"""

import itertools
import multiprocessing
import os
import pathlib
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import safetensors.numpy

from looped_actor.utils.checks import brief
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole

Arrays = dict[str, np.ndarray]
Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""
SECONDS_TO_SAVE = 120
"""Time that a process may take to save its work when it is asked to end."""
# Not forked: JAX has threads, and a forked thread pool hangs.
_SPAWN = multiprocessing.get_context("spawn")


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


def available_cores() -> set[int]:
    """The cores that this process may use."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else set(range(os.cpu_count() or 1))


def default_workers() -> int:
    """One worker per core that this process may use."""
    return len(available_cores())


@runtime_checkable
class Pool(Protocol):
    """Where work is done: `workers` tasks at a time, the rest in turn."""

    workers: int

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future:
        """Schedule a call."""
        ...


def run_batches(
    work: Callable[[Any], Arrays],
    tasks: Iterable[Any],
    *,
    workers: int | Pool,
    parts: pathlib.Path | None = None,
) -> Generator[Arrays, None, None]:
    """`work(task)` for each task, in order. Finished batches are kept in `parts`, and found again there.

    `work` must be importable, its results must depend on the task alone, and `parts` must belong to this
    job alone. Tasks may be endless: only a few more than requested are started. `workers` is a number of
    local processes, or a pool, which may be a cluster.
    """
    if isinstance(workers, int) and workers < 1:
        raise UserError(f"workers must be at least 1, not {workers}")
    if parts is not None:
        parts.mkdir(parents=True, exist_ok=True)
    if workers == 1:
        for number, task in enumerate(tasks):
            yield _kept(parts, number) or _keep(parts, number, work(task))
        return
    with _pool(workers) as (submit, count):
        numbered = enumerate(tasks)
        pending = deque()

        def start_next() -> None:
            for number, task in numbered:
                pending.append((number, _kept(parts, number) or submit(work, task)))
                return

        try:
            for _ in range(2 * count):
                start_next()
            while pending:
                number, result = pending.popleft()
                arrays = result if isinstance(result, dict) else _keep(parts, number, result.result())
                start_next()
                yield arrays
        except BrokenProcessPool:
            raise ChildProcessError(
                "worker died (out of memory? a script without `if __name__ == '__main__':`?); finished "
                "work is kept, run the command again to continue, with fewer workers if it happens again"
            ) from None
        finally:
            for _, result in pending:
                if isinstance(result, Future) and not isinstance(workers, int):  # local workers are ended
                    result.cancel()


@contextmanager
def _pool(workers: int | Pool) -> Iterator[tuple[Callable[..., Future], int]]:
    """What takes work, and how much of it at a time."""
    if not isinstance(workers, int):
        yield workers.submit, workers.workers
        return
    with ProcessPoolExecutor(workers, mp_context=_SPAWN, initializer=end_with_parent) as pool:

        def submit(*call: Any) -> Future:
            with without_interrupts():  # starts processes
                return pool.submit(*call)

        try:
            yield submit, workers
        finally:
            for process in list((pool._processes or {}).values()):
                process.terminate()  # what they are doing is not wanted any more, and may take minutes


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Start processes that never see Ctrl-C, which a terminal sends to all of a command's processes.

    Once they run, `end_with_parent` ignores it; until then Python would print a traceback. An interruption
    meanwhile is raised afterwards, or a process would be left without what it is to do.
    """
    resource_tracker.ensure_running()  # or it is started within, and unblocks the signal
    came: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    # A blocked signal may still reach another thread, and then interrupts the main one.
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number)) if in_main_thread else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def forget(parts: pathlib.Path) -> None:
    """Remove the kept batches of a job whose result is written."""
    shutil.rmtree(parts, ignore_errors=True)


def _kept(parts: pathlib.Path | None, number: int) -> Arrays | None:
    if parts is None:
        return None
    try:
        return safetensors.numpy.load_file(parts / f"{number:06d}.part")
    except (OSError, safetensors.SafetensorError):
        return None  # not there yet, or cut short


def _keep(parts: pathlib.Path | None, number: int, arrays: Arrays) -> Arrays:
    if parts is not None:
        write_whole(parts / f"{number:06d}.part", safetensors.numpy.save(arrays))
    return arrays


def end_with_parent() -> None:
    """In a worker: exit when the parent is gone, and leave interruptions from the keyboard to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class WorkError(UserError):
    """What a call raised, and where; it is not tried again."""


def devices_here() -> tuple[str, int]:
    """The platform and number of this machine's devices.

    Asked in a process of its own: one that has looked holds an accelerator's memory until it ends.
    """
    code = "import jax; print(jax.default_backend(), jax.local_device_count())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if found.returncode:
        raise ChildProcessError(f"JAX does not start here: {found.stderr.strip().splitlines()[-1]}")
    platform, count = found.stdout.split()
    return platform, default_workers() if platform == "cpu" else int(count)


VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}
"""Environment variables that name the accelerators of a process, by platform."""


def visible_devices(variable: str) -> list[str] | None:
    """The devices that an environment variable names, by number or UUID; None if it is not set.

    As CUDA reads it: an empty name or -1 ends the list.
    """
    if variable not in os.environ:
        return None
    names = [name.strip() for name in os.environ[variable].split(",")]
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), names))


class Processes:
    """A local pool: a new process for every call, on a device (of a CPU, some cores) that no other one uses.

    Accelerators are those that `CUDA_VISIBLE_DEVICES` or `TPU_VISIBLE_CHIPS` names, where it is set. More
    workers than accelerators are refused, since JAX takes most of a device's memory; CPU cores are shared.

    Args:
      workers: processes at a time. Default: one per device.
      retries: how often a process that dies is started again.
    """

    def __init__(self, workers: int | None = None, retries: int = 3):
        if workers is not None and workers < 1:
            raise UserError(f"workers must be at least 1, not {workers}")
        self._platform, number = devices_here()
        self.workers, self.retries = workers or number, retries
        if self._platform != "cpu" and self.workers > number:
            raise UserError(
                f"{self.workers} workers were asked for, and each needs a device of its own: there are "
                f"{number} of type {self._platform}"
            )
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(self.workers):
            self._slots.put(slot)
        self._threads = ThreadPoolExecutor(self.workers)
        self._alive: set[Any] = set()
        self._closing, self._lock = False, threading.Lock()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future:
        """Schedule a call. It raises `WorkError`, or `ChildProcessError` if its process died too often."""
        return self._threads.submit(self._persist, work, arguments)

    def _persist(self, work: Callable[..., Any], arguments: tuple) -> Any:
        slot = self._slots.get()
        try:
            for _ in range(self.retries + 1):
                with suppress(EOFError):
                    return _result(self._once(slot, work, arguments))
                if self._closing:
                    break
        finally:
            self._slots.put(slot)
        raise ChildProcessError(f"its process died {self.retries + 1} times (out of memory?)")

    def _once(self, slot: int, work: Callable[..., Any], arguments: tuple) -> Any:
        receiving, sending = _SPAWN.Pipe(duplex=False)
        place = (slot, self.workers, self._platform)
        process = _SPAWN.Process(target=_in_a_slot, args=(place, sending, work, arguments))
        with self._lock:
            if self._closing:
                raise EOFError
            with without_interrupts():
                process.start()
            self._alive.add(process)
        sending.close()
        try:
            return receiving.recv()
        finally:
            process.join()
            self._alive.discard(process)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: Any) -> None:
        """Ask what is running to save and end, and start nothing more."""
        with self._lock:
            self._closing, alive = True, list(self._alive)
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + SECONDS_TO_SAVE
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)


def join_ray(address: str = "local", workers: int | None = None) -> Any:
    """The module `ray`, in a cluster: see `RayTasks`."""
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: pip install 'looped-actor[ray]', or [serve]") from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "address": address}
    if address == "local":
        if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60):  # the first that asks for a token
            raise UserError(f"Ray {ray.__version__} lets anyone on the network in: install ray>=2.60")
        if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:  # it listens everywhere
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        options |= {"num_cpus": workers or default_workers(), "include_dashboard": False}
    elif workers is not None:
        raise UserError("workers of a Ray cluster are its own: leave them out, or start one with local")
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError) as error:
        raise UserError(f"no Ray cluster at {address}: {error}") from None
    return ray


class RayTasks:
    """A pool on a Ray cluster, with the extra `ray`. Folders must be on a file system that all nodes share.

    Args:
      address: of the cluster, "auto" for the one that this machine belongs to, or "local" to start one.
      workers: of a local cluster, tasks at a time. Default: one per core.
      retries: how often a task whose worker dies is started again, by Ray.
      accelerators: per task: 1 for a run on a GPU.
      reuse: let one process do many calls, such as batches of levels: they hold no device.
    """

    def __init__(
        self,
        address: str = "local",
        workers: int | None = None,
        retries: int = 3,
        accelerators: int = 0,
        reuse: bool = False,
    ):
        self._ray = ray = join_ray(address, workers)
        # JAX keeps its device until the process ends: a process is used once.
        limits: Any = {"num_gpus": accelerators, "max_retries": retries, "max_calls": 0 if reuse else 1}
        self._run = ray.remote(**limits)(_answer)
        self.workers = max(1, int(ray.cluster_resources().get("GPU" if accelerators else "CPU", 1)))

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future:
        """Schedule a call. It raises `WorkError`, or `ChildProcessError` if its worker died too often."""
        told: Future = Future()

        def tell(answer: Future) -> None:
            try:
                told.set_result(_result(answer.result()))
            except Exception as error:
                died = ChildProcessError(f"its worker died ({brief(getattr(error, 'cause', None) or error)})")
                told.set_exception(error if isinstance(error, WorkError) else died)

        self._run.remote(work, arguments).future().add_done_callback(tell)
        return told

    def __enter__(self) -> "RayTasks":
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave the cluster, or end the one that was started here."""
        self._ray.shutdown()


class Standing(NamedTuple):
    """How far a job is, as its files say."""

    done: float
    """From 0 to 1."""
    note: str = ""


@dataclass(frozen=True)
class Job:
    """A call with a name."""

    name: str
    work: Callable[..., Any]
    arguments: tuple = ()
    standing: Callable[[], Standing] = field(default=lambda: Standing(0.0))
    """Called while the job runs, in this process."""


class Status(NamedTuple):
    """A row of the table of jobs."""

    name: str
    state: Literal["waiting", "running", "finished", "failed"]
    standing: Standing


def fan_out(
    jobs: Sequence[Job],
    pool: Pool,
    show: Callable[[Sequence[Status]], None] = lambda statuses: None,
    seconds: float = 1.0,
) -> None:
    """Run all jobs, telling `show` how they stand; then raise an error if some failed."""
    if len({job.name for job in jobs}) < len(jobs):
        raise UserError("two jobs have the same name")
    futures = {job.name: pool.submit(job.work, *job.arguments) for job in jobs}
    ended = False
    while not ended:
        ended = all(future.done() for future in futures.values())
        show([_status(job, futures[job.name]) for job in jobs])
        time.sleep(0 if ended else seconds)
    failed = {name: future.exception() for name, future in futures.items() if future.exception()}
    if failed:
        told = "\n".join(f"  {name}: {error}" for name, error in failed.items())
        raise ChildProcessError(
            f"{len(failed)} of {len(jobs)} failed; the same command retries them:\n{told}"
        )


def _status(job: Job, future: Future) -> Status:
    standing = job.standing()
    if future.done():
        return Status(job.name, "failed" if future.exception() else "finished", standing)
    return Status(job.name, "running" if future.running() or standing.done else "waiting", standing)


def _answer(work: Callable[..., Any], arguments: tuple) -> tuple[bool, Any]:
    """The result of a call, or what it raised, in words: exceptions do not always travel."""
    try:
        return True, work(*arguments)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{pathlib.Path(place.filename).name}:{place.lineno}"
        return False, f"{error} ({type(error).__name__} at {where})"


def _result(answer: tuple[bool, Any]) -> Any:
    worked, value = answer
    if not worked:
        raise WorkError(value)
    return value


def _in_a_slot(place: tuple[int, int, str], sending: Any, work: Callable, arguments: tuple) -> None:
    """In a new process: take the slot's device, and work."""
    slot, slots, platform = place
    end_with_parent()
    if platform == "cpu":
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(available_cores())
            os.sched_setaffinity(0, set(cores[slot % len(cores) :: min(slots, len(cores))]))
    else:
        inherited = visible_devices(VISIBLE[platform])
        # Read when JAX first looks for devices, which is after this.
        os.environ[VISIBLE[platform]] = str(slot) if inherited is None else inherited[slot]
    sending.send(_answer(work, arguments))
