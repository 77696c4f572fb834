"""Fan-out: many pieces of work over the devices of this machine, or over a Ray cluster, by the same call.

A piece of work is a function that can be imported, and arguments. Each gets a process of its own, and with it
a device of its own; one whose process dies is begun again, so work that keeps what it has done, like a run of
training, goes on from there. `fan_out` watches a list of them and says how they stand.
"""

import multiprocessing
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from looped_actor.batches import Pool, default_workers, end_with_parent, own_cores

Platform = Literal["cpu", "gpu", "tpu"]
SECONDS_TO_SAVE = 120
"""What a process that is asked to end may take to save its work."""


class WorkError(ValueError):
    """What a piece of work raised, with where; it is not begun again."""


class Devices(NamedTuple):
    """What this machine computes with."""

    platform: str
    number: int


def devices_here() -> Devices:
    """Asked in a process of its own: one that has looked holds an accelerator's memory until it ends."""
    code = "import jax; print(jax.default_backend(), jax.local_device_count())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if found.returncode:
        raise ChildProcessError(f"JAX does not start here: {found.stderr.strip().splitlines()[-1]}")
    platform, count = found.stdout.split()
    return Devices(platform, default_workers() if platform == "cpu" else int(count))


class Processes:
    """A pool of this machine: for every piece of work a new process, on a device that no other one uses.

    On a CPU a device is a share of the cores.

    Args:
      workers: how many at a time. Default: one for each device.
      retries: how often a process that dies is begun again.
    """

    def __init__(self, workers: int | None = None, retries: int = 3):
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        devices = devices_here()
        self.workers = workers or devices.number
        self.retries = retries
        self._platform = devices.platform
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(self.workers):
            self._slots.put(slot)
        self._threads = ThreadPoolExecutor(self.workers)
        self._alive: set[Any] = set()
        self._closing = False
        self._lock = threading.Lock()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future:
        """Have something done. It raises a `WorkError`, or a `ChildProcessError` if it died too often."""
        return self._threads.submit(self._persist, work, arguments)

    def _persist(self, work: Callable[..., Any], arguments: tuple) -> Any:
        slot = self._slots.get()
        try:
            for _ in range(self.retries + 1):
                with suppress(EOFError):
                    return _opened(self._once(slot, work, arguments))
                if self._closing:
                    break
        finally:
            self._slots.put(slot)
        raise ChildProcessError(f"its process died {self.retries + 1} times, perhaps for want of memory")

    def _once(self, slot: int, work: Callable[..., Any], arguments: tuple) -> Any:
        # Not forked: JAX has threads, and a forked thread pool hangs.
        spawn = multiprocessing.get_context("spawn")
        receiving, sending = spawn.Pipe(duplex=False)
        place = (slot, self.workers, self._platform)
        process = spawn.Process(target=_in_a_slot, args=(place, sending, work, arguments))
        with self._lock:
            if self._closing:
                raise EOFError
            process.start()
            self._alive.add(process)
        sending.close()
        try:
            return receiving.recv()
        finally:
            process.join()
            with self._lock:
                self._alive.discard(process)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: Any) -> None:
        """Ask what is under way to save and end, and begin nothing more."""
        with self._lock:
            self._closing = True
            alive = list(self._alive)
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + SECONDS_TO_SAVE
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)


class RayTasks:
    """A pool on a Ray cluster, with the extra `ray`. Folders must be on a file system that all nodes share.

    Args:
      address: of the cluster, "auto" for the one that this machine belongs to, or "local" to start one here.
      workers: of a local cluster, how many at a time. Default: one for each core.
      retries: how often a task whose worker dies is begun again, by Ray.
      accelerators: of each task: 1 for a run on a GPU.
      reuse: let one process do many pieces of work, such as batches of levels: they hold no device.
    """

    def __init__(
        self,
        address: str = "local",
        workers: int | None = None,
        retries: int = 3,
        accelerators: int = 0,
        reuse: bool = False,
    ):
        try:
            import ray
        except ImportError:
            raise ValueError("Ray is not installed: pip install 'looped-actor[ray]'") from None
        self._ray = ray
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address == "local":
            # Of this machine and for this command only.
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
            options |= {"num_cpus": workers or default_workers(), "include_dashboard": False}
            options["_node_ip_address"] = "127.0.0.1"
        elif workers is not None:
            raise ValueError("workers of a Ray cluster are its own: leave them out, or start one with local")
        else:
            options["address"] = address
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError) as error:
            raise ValueError(f"no Ray cluster at {address}: {error}") from None
        # JAX keeps its device until the process ends.
        uses = 0 if reuse else 1
        self._run = ray.remote(num_gpus=accelerators, max_retries=retries, max_calls=uses)(_answer)
        self.workers = max(1, int(ray.cluster_resources().get("GPU" if accelerators else "CPU", 1)))

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future:
        """Have something done. It raises a `WorkError`, or a `ChildProcessError` if it died too often."""
        told: Future = Future()

        def tell(answer: Future) -> None:
            try:
                told.set_result(_opened(answer.result()))
            except WorkError as error:
                told.set_exception(error)
            except Exception as error:
                told.set_exception(ChildProcessError(f"its worker died: {str(error).splitlines()[0]}"))

        self._run.remote(work, arguments).future().add_done_callback(tell)
        return told

    def __enter__(self) -> "RayTasks":
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave the cluster, or end the one that was started here."""
        self._ray.shutdown()


class Standing(NamedTuple):
    """How far a piece of work is, as its files say."""

    done: float
    """From 0 to 1."""
    note: str = ""


@dataclass(frozen=True)
class Job:
    """A piece of work that people know by a name."""

    name: str
    work: Callable[..., Any]
    arguments: tuple = ()
    standing: Callable[[], Standing] = field(default=lambda: Standing(0.0))
    """Asked while it is under way, in this process."""


class Status(NamedTuple):
    """A row of the table."""

    name: str
    state: Literal["waiting", "running", "finished", "failed"]
    standing: Standing


def fan_out(
    jobs: Sequence[Job],
    pool: Pool,
    show: Callable[[Sequence[Status]], None] = lambda statuses: None,
    seconds: float = 1.0,
) -> None:
    """Do all jobs, telling `show` how they stand; then raise an error if some failed. The others are done."""
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError("two jobs have the same name")
    futures = {job.name: pool.submit(job.work, *job.arguments) for job in jobs}
    while True:
        ended = all(future.done() for future in futures.values())
        show([_status(job, futures[job.name]) for job in jobs])
        if ended:
            break
        time.sleep(seconds)
    failed = {name: future.exception() for name, future in futures.items() if future.exception()}
    if failed:
        told = "\n".join(f"  {name}: {error}" for name, error in failed.items())
        raise ChildProcessError(
            f"{len(failed)} of {len(jobs)} failed; the same command goes on with them:\n{told}"
        )


def _status(job: Job, future: Future) -> Status:
    standing = job.standing()
    if future.done():
        return Status(job.name, "failed" if future.exception() else "finished", standing)
    under_way = future.running() or standing.done > 0
    return Status(job.name, "running" if under_way else "waiting", standing)


def _answer(work: Callable[..., Any], arguments: tuple) -> tuple[bool, Any]:
    """What came of some work, or what it raised, in words: exceptions do not always travel."""
    try:
        return True, work(*arguments)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{pathlib.Path(place.filename).name}:{place.lineno}"
        return False, f"{error} ({type(error).__name__} at {where})"


def _opened(answer: tuple[bool, Any]) -> Any:
    worked, value = answer
    if not worked:
        raise WorkError(value)
    return value


def _in_a_slot(place: tuple[int, int, Platform], sending: Any, work: Callable, arguments: tuple) -> None:
    """In a new process: take the slot's device, and work."""
    slot, slots, platform = place
    end_with_parent()
    if platform == "cpu":
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(own_cores())
            os.sched_setaffinity(0, set(cores[slot % len(cores) :: min(slots, len(cores))]))
    else:
        # Read when JAX first looks for devices, which is after this.
        os.environ["CUDA_VISIBLE_DEVICES" if platform == "gpu" else "TPU_VISIBLE_CHIPS"] = str(slot)
    sending.send(_answer(work, arguments))
