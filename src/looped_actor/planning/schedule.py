"""Trip counts of a program's loops: the schedules of streaming and packing, replayed.

Loops are named by the scopes in which they are traced: `settle_64_of_128` and `tick_64_of_128` of a stream of
128 slots that has drained to 64, `forward_32` and `backward_32` of microbatches of 32 examples.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from looped_actor.loop.streaming import drain_sizes

EXPECTATION_ERROR = 1.5
"""Standard deviation of the loops of an example in an update, around the loops that it took when acting."""
MAX_CHIPS = 32
"""Chips that are replayed; the slowest of more is hardly slower."""
UPDATES = 20
"""Minibatches that are replayed."""


def count_stream_trips(
    depths: Int[np.ndarray, " n"], rows: int, slots: int, decisions: int, seed: int = 0
) -> dict[str, float]:
    """Return the trips of a stream's loops by name, for each time that the enclosing loop is passed.

    Args:
      depths: loops per decision, to draw from.
      rows: rows of the stream.
      slots: slots of the stream.
      decisions: decisions of each row.
      seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    row, left = np.full(slots, rows), np.zeros(slots, int)  # of each slot; a row that does not exist: free
    waiting, ended, decided = np.ones(rows, bool), np.zeros(rows, bool), np.zeros(rows, int)

    def fill() -> None:
        free, entering = np.flatnonzero(row == rows), np.flatnonzero(waiting)
        count = min(len(free), len(entering))
        row[free[:count]] = entering[:count]
        left[free[:count]] = rng.choice(depths, count)
        waiting[entering[:count]] = False

    trips: dict[str, float] = {}
    for size, few in drain_sizes(slots):
        busy_first = np.argsort(row, kind="stable")[:size]
        row, left = row[busy_first], left[busy_first]
        settles = ticks = 0
        while waiting.sum() + ended.sum() + (row < rows).sum() > few:
            settles += 1
            decided[ended] += 1
            waiting |= ended & (decided < decisions)
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


class PackedLoops(NamedTuple):
    """Cost of packed updates."""

    forward: float
    """Mean loops that a microbatch computes forward."""
    backward: float
    """Mean loops that a microbatch computes backward, sorted anew by the loops that were taken."""
    slowest_over_mean: float
    """Work of the slowest chip over the mean of all chips, which wait for it."""


def count_packed_loops(
    depths: Int[np.ndarray, " n"], batch: int, microbatch: int, together: int, chips: int = 1, seed: int = 0
) -> PackedLoops:
    """Return the cost of packed updates.

    Args:
      depths: loops per decision, to draw from.
      batch: examples of a minibatch on each chip.
      microbatch: examples that loop together.
      together: microbatches that go forward before they go backward.
      chips: chips that wait for each other after every minibatch.
      seed: of the draws.
    """
    rng = np.random.default_rng(seed)

    def update() -> tuple[float, float, float]:
        taken = rng.choice(depths, batch)
        order = np.argsort(taken + rng.normal(0, EXPECTATION_ERROR, batch), kind="stable")
        group = microbatch * together
        groups = np.pad(taken[order], (0, -batch % group), mode="edge").reshape(-1, group)
        forward, backward = (
            rows.reshape(-1, microbatch).max(axis=1) for rows in (groups, np.sort(groups, axis=1))
        )
        return float(forward.mean()), float(backward.mean()), float(forward.sum() + 3 * backward.sum())

    costs = np.array([[update() for _ in range(min(chips, MAX_CHIPS))] for _ in range(UPDATES)])
    work: Float[np.ndarray, "updates chips"] = costs[:, :, 2]
    forward, backward = costs[:, :, :2].mean(axis=(0, 1))
    return PackedLoops(forward, backward, float((work.max(axis=1) / work.mean(axis=1)).mean()))
