"""Helpers of the teachers: observations as boards, distinct boards, and threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from jaxtyping import Int, UInt8

from looped_actor.utils.processes import default_workers

Part = TypeVar("Part")
Result = TypeVar("Result")


def cells_of(observation: UInt8[np.ndarray, "*n h w k"]) -> UInt8[np.ndarray, "*n h w"]:
    """Return the cell sums of observation planes."""
    return (observation << np.arange(observation.shape[-1], dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)


def planes_of(cells: UInt8[np.ndarray, "*n h w"], kinds: int) -> UInt8[np.ndarray, "*n h w k"]:
    """Return the observation planes of cell sums."""
    return cells[..., None] >> np.arange(kinds, dtype=np.uint8) & 1


def distinct_boards(
    cells: UInt8[np.ndarray, "n h w"],
) -> tuple[UInt8[np.ndarray, "m h w"], Int[np.ndarray, " n"]]:
    """Return the boards without repetition, and the index of each of the given boards among them."""
    distinct, place = np.unique(cells.reshape(len(cells), -1), axis=0, return_inverse=True)
    return distinct.reshape(-1, *cells.shape[1:]), place.reshape(-1)


def map_in_threads(work: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """Return `work(part)` of each part, in order, computed by one thread for each core."""
    with ThreadPoolExecutor(default_workers()) as threads:
        return list(threads.map(work, parts))
