"""How often the loops of a program run, from the depths of thoughts: the schedules of the engine, replayed.

The names are the scopes under which the loops are traced: `settle_64_of_128` and `tick_64_of_128` of a
stream of 128 slots that has drained to 64, `forward_32` and `backward_32` of chunks of 32 examples.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from looped_actor.loop.streaming import shrinking

EXPECTATION_ERROR = 1.5
"""Deviation of the loops that a minibatch takes from those that its examples took when acting."""
MOST_CHIPS = 32
"""Chips that are replayed; the slowest of more is hardly slower."""
UPDATES = 20
"""Minibatches that are replayed."""


def streamed(
    depths: Int[np.ndarray, " n"], rows: int, slots: int, thoughts: int, seed: int = 0
) -> dict[str, float]:
    """Trips of a stream's loops, each within the loop that holds it.

    Args:
      depths: to draw from.
      rows: that think.
      slots: at most, in which they do.
      thoughts: of each row.
      seed: of the draws.
    """
    draw = np.random.default_rng(seed)
    row, left = np.full(slots, rows), np.zeros(slots, int)  # whose thought each slot holds, and its rest
    waiting, ended, had = np.ones(rows, bool), np.zeros(rows, bool), np.zeros(rows, int)

    def fill() -> None:
        free, wants = np.flatnonzero(row == rows), np.flatnonzero(waiting)
        count = min(len(free), len(wants))
        row[free[:count]] = wants[:count]
        left[free[:count]] = draw.choice(depths, count)
        waiting[wants[:count]] = False

    trips: dict[str, float] = {}
    for size, few in shrinking(slots):
        busy_first = np.argsort(row, kind="stable")[:size]
        row, left = row[busy_first], left[busy_first]
        settles = ticks = 0
        while waiting.sum() + ended.sum() + (row < rows).sum() > few:
            settles += 1
            had[ended] += 1
            waiting |= ended & (had < thoughts)
            ended[:] = False
            fill()
            while (busy := row < rows).any() and (busy.all() or not ended.any()):
                ticks += 1
                left[busy] -= 1
                halted = busy & (left <= 0)
                ended[row[halted]] = True
                row[halted] = rows
                fill()
        trips[f"settle_{size}_of_{slots}"] = settles
        trips[f"tick_{size}_of_{slots}"] = ticks / max(settles, 1)
    return trips


def packed(
    depths: Int[np.ndarray, " n"], batch: int, chunk: int, at_once: int, chips: int = 1, seed: int = 0
) -> tuple[float, float, float]:
    """Mean loops of a chunk, forward and backward, and how much longer the slowest chip takes than the mean.

    Args:
      depths: to draw from.
      batch: examples of a minibatch on each chip.
      chunk: examples that loop together.
      at_once: chunks that go forward before they go back.
      chips: that wait for each other after every minibatch.
      seed: of the draws.
    """
    draw = np.random.default_rng(seed)

    def chip() -> tuple[float, float, float]:
        took = draw.choice(depths, batch)
        order = np.argsort(took + draw.normal(0, EXPECTATION_ERROR, batch), kind="stable")
        parts = list(_parts(took[order], chunk * at_once))
        ahead = np.concatenate([part.reshape(-1, chunk).max(1) for part in parts])
        back = np.concatenate([np.sort(part).reshape(-1, chunk).max(1) for part in parts])
        return float(ahead.mean()), float(back.mean()), float(ahead.sum() + 3 * back.sum())

    replayed = min(chips, MOST_CHIPS)
    runs = np.array([[chip() for _ in range(replayed)] for _ in range(UPDATES)])
    work: Float[np.ndarray, "updates chips"] = runs[:, :, 2]
    forward, backward = runs[:, :, :2].mean(axis=(0, 1))
    return forward, backward, float((work.max(axis=1) / work.mean(axis=1)).mean())


def _parts(took: Int[np.ndarray, " n"], size: int) -> Iterator[Int[np.ndarray, " m"]]:
    padded = np.pad(took, (0, -len(took) % size), mode="edge")
    yield from padded.reshape(-1, size)
