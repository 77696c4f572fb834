"""Where a command has its batches done."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looped_actor.batches import Pool


@contextmanager
def chosen_workers(workers: int | None, ray: str | None) -> Iterator["int | Pool"]:
    """So many processes of this machine, or the workers of a Ray cluster."""
    from looped_actor.batches import default_workers

    if ray is None:
        yield workers or default_workers()
        return
    from looped_actor.experiments.fanout import RayTasks

    with RayTasks(ray, workers, reuse=True) as pool:
        yield pool
