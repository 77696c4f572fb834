"""Long work in batches: over processes, in order, and resumable.

What comes out does not depend on the number of workers: batches are fixed beforehand, and results are
taken in their order. Each finished batch is kept in a file of its own, so an interrupted job goes on where
it stopped.
"""

import multiprocessing
import os
import pathlib
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import safetensors
import safetensors.numpy

from looped_actor.files import write_whole

Task = TypeVar("Task")
Arrays = dict[str, np.ndarray]
Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""


@runtime_checkable
class Pool(Protocol):
    """Where work is done: so much at a time, and the rest in turn."""

    workers: int

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future:
        """Have something done."""
        ...


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


def own_cores() -> set[int]:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def default_workers() -> int:
    """One for each core that this process may use."""
    return len(own_cores())


def run_batches(
    work: Callable[[Task], Arrays],
    tasks: Iterable[Task],
    *,
    workers: int | Pool,
    parts: pathlib.Path | None = None,
) -> Generator[Arrays, None, None]:
    """`work` of each task, in order. `parts` is where finished batches are kept, and found again.

    `work` must be importable, its results must depend on the task alone, and `parts` must belong to this
    job alone. Tasks may go on forever: only a few more than asked for are begun. `workers` are so many
    processes of this machine, or a pool, which may be a cluster.
    """
    if isinstance(workers, int) and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if parts is not None:
        parts.mkdir(parents=True, exist_ok=True)
    if workers == 1:
        for number, task in enumerate(tasks):
            yield _kept(parts, number) or _keep(parts, number, work(task))
        return
    with _pool(workers) as (submit, count):
        numbered = enumerate(tasks)
        pending = deque()

        def begin_next() -> None:
            for number, task in numbered:
                pending.append((number, _kept(parts, number) or submit(work, task)))
                return

        try:
            for _ in range(2 * count):
                begin_next()
            while pending:
                number, result = pending.popleft()
                arrays = result if isinstance(result, dict) else _keep(parts, number, result.result())
                begin_next()
                yield arrays
        except BrokenProcessPool:
            raise ChildProcessError(
                "a worker died, perhaps for want of memory; what is finished is kept: run the same command "
                "again to go on, with fewer workers if it happens again"
            ) from None
        finally:
            for _, result in pending:
                if isinstance(result, Future):
                    result.cancel()


@contextmanager
def _pool(workers: int | Pool) -> Iterator[tuple[Callable[..., Future], int]]:
    """What takes work, and how much of it at a time."""
    if not isinstance(workers, int):
        yield workers.submit, workers.workers
        return
    # Not forked: JAX has threads, and a forked thread pool hangs.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=end_with_parent)
    try:
        yield pool.submit, workers
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def forget(parts: pathlib.Path) -> None:
    """Remove the files of a job whose result is safe."""
    shutil.rmtree(parts, ignore_errors=True)


def end_with_parent() -> None:
    """In a worker: leave when the parent is gone. A pool whose parent was killed would wait forever.

    An interruption from the keyboard reaches every process of a terminal; it is for the parent to act on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
