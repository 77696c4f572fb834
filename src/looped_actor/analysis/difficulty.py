"""Is computation spent where it is needed: loops of a state against how far it is from solved."""

import pathlib
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8

from looped_actor.analysis.tables import Row
from looped_actor.analysis.traces import Trace
from looped_actor.batches import Progress, no_progress
from looped_actor.evaluation.intervals import clustered_mean
from looped_actor.games.catalogue import Game
from looped_actor.levels import make_bank, solve_bank
from looped_actor.solvers import SolveStatus
from looped_actor.solvers.advice import distinct_boards

MEASURES = {"boxoban": "pushes", "rush-hour": "moves"}
LOST, UNKNOWN = -1, -2
"""Instead of a number: there is no solution any more; the search gave up."""


class VisitedStates(NamedTuple):
    """Every decision of a trace, as one long row."""

    level: Int[np.ndarray, " s"]
    loops: Int[np.ndarray, " s"]
    solved: Bool[np.ndarray, " s"]
    """Whether its episode was."""
    remaining: Int[np.ndarray, " s"]
    """Pushes or moves of an optimal solution; or `LOST`, or `UNKNOWN`."""


def remaining_of(
    game: Game,
    boards: UInt8[np.ndarray, "n h w"],
    *,
    workers: int = 1,
    node_limit: int = 300_000,
    parts: pathlib.Path | None = None,
    progress: Progress = no_progress,
) -> Int[np.ndarray, " n"]:
    """Pushes (Boxoban) or moves (Rush Hour) of the solution with the fewest moves, or `LOST` or `UNKNOWN`."""
    distinct, place = distinct_boards(boards)
    bank = make_bank(game, distinct, source="visited states", licence="")
    found = solve_bank(bank, node_limit=node_limit, workers=workers, parts=parts, progress=progress)
    counts = found.push_counts if game.name == "boxoban" else found.move_counts
    remaining = counts.astype(np.int64)
    remaining[found.status == SolveStatus.UNSOLVABLE.value] = LOST
    remaining[found.status == SolveStatus.NOT_WITHIN_LIMIT.value] = UNKNOWN
    return remaining[place]


def visited_states(game: Game, shape: tuple[int, int], trace: Trace, **options: Any) -> VisitedStates:
    """The decisions of a trace, each with its distance from solved; options are those of `remaining_of`."""
    taken = np.asarray(trace.taken)
    step, level = np.nonzero(taken)
    boards = np.asarray(trace.cells)[step, level].reshape(-1, *shape)
    return VisitedStates(
        level,
        np.asarray(trace.loops)[step, level],
        np.asarray(trace.success)[level],
        remaining_of(game, boards, **options),
    )


def difficulty_table(states: VisitedStates, about: Row) -> list[Row]:
    """A row for each outcome and distance: how many states, of how many levels, and their mean loops.

    States of one episode are alike, so the interval is that of levels drawn anew, not of states.
    """
    rows = []
    for outcome, chosen in (("solved", states.solved), ("failed", ~states.solved)):
        for remaining in np.unique(states.remaining[chosen]):
            here = chosen & (states.remaining == remaining)
            mean, (low, high) = clustered_mean(states.loops[here], states.level[here])
            rows.append(
                {
                    **about,
                    "outcome": outcome,
                    "remaining": {LOST: "lost", UNKNOWN: "unknown"}.get(int(remaining), int(remaining)),
                    "states": int(here.sum()),
                    "levels": len(np.unique(states.level[here])),
                    "loops": mean,
                    "low": low,
                    "high": high,
                }
            )
    return rows
