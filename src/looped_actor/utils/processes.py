"""Process pools on this machine or on a Ray cluster, with one interface.

`run_batches` maps a function over tasks, in order and resumable: batches are fixed beforehand, so the result
does not depend on the number of workers. `fan_out` runs named jobs, each in a process with its own device; a
process that dies is restarted, so a job that saves its progress, such as a training run, continues.
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
"""Called with the amount done and the total."""
SECONDS_TO_SAVE = 120
"""Time that a process may take to save its work when it is asked to end."""
# Not forked: JAX has threads, and a forked thread pool hangs.
_SPAWN = multiprocessing.get_context("spawn")


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


def available_cores() -> set[int]:
    """Return the cores that this process may use."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else set(range(os.cpu_count() or 1))


def default_workers() -> int:
    """Return one worker per core that this process may use."""
    return len(available_cores())


@runtime_checkable
class Pool(Protocol):
    """A pool that runs at most `workers` calls at a time."""

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
    """Yield `work(task)` for each task, in order. Finished batches are saved in `parts` and reused from
    there.

    `work` must be importable, its results must depend on the task alone, and `parts` must belong to this
    job alone. Tasks may be endless: only a few more than requested are started. `workers` is a number of
    local processes, or a pool.
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
    """Yield a function that submits work, and the number of workers."""
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
                process.terminate()  # their results are not needed any more, and may take minutes


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which a terminal sends to all processes of a command.

    Once they run, `end_with_parent` ignores it; until then Python would print a traceback. An interruption
    during the start is raised afterwards.
    """
    resource_tracker.ensure_running()  # started later, it would unblock the signal
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


def remove_parts(parts: pathlib.Path) -> None:
    """Remove the saved batches of a job whose result is written."""
    shutil.rmtree(parts, ignore_errors=True)


def _kept(parts: pathlib.Path | None, number: int) -> Arrays | None:
    if parts is None:
        return None
    try:
        return safetensors.numpy.load_file(parts / f"{number:06d}.part")
    except (OSError, safetensors.SafetensorError):
        return None  # missing or truncated


def _keep(parts: pathlib.Path | None, number: int, arrays: Arrays) -> Arrays:
    if parts is not None:
        write_whole(parts / f"{number:06d}.part", safetensors.numpy.save(arrays))
    return arrays


def end_with_parent() -> None:
    """Exit when the parent process is gone, and ignore Ctrl-C; called in a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class WorkError(UserError):
    """An error that a call raised, with its place; the call is not retried."""


def devices_here() -> tuple[str, int]:
    """Return the platform and the number of devices of this machine.

    JAX holds the memory of an accelerator until its process ends, hence a subprocess.
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
    """Return the devices that an environment variable names, by number or UUID; None if it is not set.

    An empty name or -1 ends the list, as in CUDA.
    """
    if variable not in os.environ:
        return None
    names = [name.strip() for name in os.environ[variable].split(",")]
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), names))


class Processes:
    """A local pool: a new process for every call, each on its own device (on a CPU: its own cores).

    Uses the accelerators that `CUDA_VISIBLE_DEVICES` or `TPU_VISIBLE_CHIPS` names, if it is set. More workers
    than accelerators are refused, since JAX takes most of the memory of a device; CPU cores are shared.

    Args:
      workers: maximum number of processes. Default: one per device.
      retries: number of times that a process that dies is restarted.
    """

    def __init__(self, workers: int | None = None, retries: int = 3):
        if workers is not None and workers < 1:
            raise UserError(f"workers must be at least 1, not {workers}")
        self._platform, number = devices_here()
        self.workers, self.retries = workers or number, retries
        if self._platform != "cpu" and self.workers > number:
            raise UserError(
                f"{self.workers} workers were requested, and each needs its own device: there are "
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
        """Ask running processes to save and end; start no others."""
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
    """Connect to a Ray cluster, and return the module `ray`; see `RayTasks`."""
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: pip install 'looped-actor[ray]'") from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "address": address}
    if address == "local":
        if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60):  # the first that asks for a token
            raise UserError(f"Ray {ray.__version__} lets anyone on the network in: install ray>=2.60")
        if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:  # it listens everywhere
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        options |= {"num_cpus": workers or default_workers(), "include_dashboard": False}
    elif workers is not None:
        raise UserError(
            "a running Ray cluster decides its workers: leave them out, or start a cluster with local"
        )
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError) as error:
        raise UserError(f"no Ray cluster at {address}: {error}") from None
    return ray


class RayTasks:
    """A pool on a Ray cluster, with the extra `ray`. Folders must be on a file system that all nodes share.

    Args:
      address: address of the cluster, "auto" for the one of this machine, or "local" to start one.
      workers: of a local cluster: maximum number of tasks at a time. Default: one per core.
      retries: number of times that Ray restarts a task whose worker dies.
      accelerators: accelerators per task: 1 for a run on a GPU.
      reuse: run many calls in one process, such as batches of levels, which hold no device.
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
        result: Future = Future()

        def forward(answer: Future) -> None:
            try:
                result.set_result(_result(answer.result()))
            except Exception as error:
                died = ChildProcessError(f"its worker died ({brief(getattr(error, 'cause', None) or error)})")
                result.set_exception(error if isinstance(error, WorkError) else died)

        self._run.remote(work, arguments).future().add_done_callback(forward)
        return result

    def __enter__(self) -> "RayTasks":
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave the cluster, or end it if it was started here."""
        self._ray.shutdown()


class JobProgress(NamedTuple):
    """Progress of a job, read from its files."""

    done: float
    """Fraction, from 0 to 1."""
    note: str = ""


@dataclass(frozen=True)
class Job:
    """A call with a name."""

    name: str
    work: Callable[..., Any]
    arguments: tuple = ()
    progress: Callable[[], JobProgress] = field(default=lambda: JobProgress(0.0))
    """Called while the job runs, in this process."""


class Status(NamedTuple):
    """A row of the table of jobs."""

    name: str
    state: Literal["waiting", "running", "finished", "failed"]
    progress: JobProgress


def fan_out(
    jobs: Sequence[Job],
    pool: Pool,
    show: Callable[[Sequence[Status]], None] = lambda statuses: None,
    seconds: float = 1.0,
) -> None:
    """Run all jobs, and call `show` with their status every few seconds. Raise an error if some failed."""
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
        errors = "\n".join(f"  {name}: {error}" for name, error in failed.items())
        raise ChildProcessError(
            f"{len(failed)} of {len(jobs)} failed; the same command retries them:\n{errors}"
        )


def _status(job: Job, future: Future) -> Status:
    progress = job.progress()
    if future.done():
        return Status(job.name, "failed" if future.exception() else "finished", progress)
    return Status(job.name, "running" if future.running() or progress.done else "waiting", progress)


def _answer(work: Callable[..., Any], arguments: tuple) -> tuple[bool, Any]:
    """Return the result of a call, or its error as text: not every exception can be pickled."""
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


def select_device(slot: int, platform: str) -> None:
    """Let this process see one accelerator only. JAX must not have looked for devices before."""
    if platform != "cpu":
        inherited = visible_devices(VISIBLE[platform])
        os.environ[VISIBLE[platform]] = str(slot) if inherited is None else inherited[slot]


def _in_a_slot(place: tuple[int, int, str], sending: Any, work: Callable, arguments: tuple) -> None:
    """Use the device of a slot, and do the work; called in a new process."""
    slot, slots, platform = place
    end_with_parent()
    if platform == "cpu":
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(available_cores())
            os.sched_setaffinity(0, set(cores[slot % len(cores) :: min(slots, len(cores))]))
    else:
        select_device(slot, platform)
    sending.send(_answer(work, arguments))
