"""Episodes in numbers that JSON can hold."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Integer

from looped_actor.evaluation.intervals import wilson
from looped_actor.evaluation.levels import Played
from looped_actor.loop import StopReason

MOST_BINS = 8


def summary(played: Played, optimal_moves: Integer[np.ndarray, " n"] | None = None) -> dict[str, Any]:
    """Facts about episodes that JSON can hold; no success where the environment reports none.

    Args:
      played: an episode for each level.
      optimal_moves: the length of each level's shortest solution, where it is known.
    """
    episodes = played.episodes
    histogram, stops = (np.asarray(counts).sum(axis=0) for counts in (episodes.histogram, episodes.stops))
    everything = np.ones(len(episodes.length), bool)
    new = None if played.decisions is None else played.new_states()
    facts = _facts(played, everything, new)
    if episodes.success is not None:
        facts["outcomes"] = outcomes_text(episodes.success)
    facts |= loop_facts(histogram, stops, int(played.executed.sum()))
    if played.decisions is not None:
        counts = np.bincount(played.decisions.loops[new], minlength=len(histogram) + 1)[1:]
        facts["loop_histogram_new_states"] = {str(i + 1): int(n) for i, n in enumerate(counts)}
    if episodes.success is not None and np.any(episodes.success):
        success = np.asarray(episodes.success, bool)
        outcomes = {"solved": success, "failed": ~success}
        facts["by_outcome"] = {
            name: _facts(played, them, new) for name, them in outcomes.items() if them.any()
        }
    if optimal_moves is not None:
        facts["by_optimal_moves"] = [
            {"moves": [low, high], **_facts(played, (optimal_moves >= low) & (optimal_moves <= high), new)}
            for low, high in length_bins(optimal_moves)
        ]
    return facts


def outcomes_text(success: Iterable[bool | np.bool_]) -> str:
    """Return a + for each level or episode that was solved and a - for each that was not, in their order."""
    return "".join("+" if solved else "-" for solved in success)


def loop_facts(
    histogram: Integer[np.ndarray, " most"], stops: Integer[np.ndarray, " reasons"], executed: int
) -> dict[str, Any]:
    """How long decisions took, why they stopped, and what the hardware computed for them."""
    decisions, asked = max(int(stops.sum()), 1), int((histogram * (1 + np.arange(len(histogram)))).sum())
    return {
        "executed_over_asked": executed / max(asked, 1),
        "capped": float(stops[StopReason.CAP] / decisions),
        "non_finite": float(stops[StopReason.NON_FINITE] / decisions),
        "loop_histogram": {str(i + 1): int(n) for i, n in enumerate(histogram)},
    }


def _facts(played: Played, chosen: np.ndarray, new: np.ndarray | None) -> dict[str, Any]:
    episodes, levels = played.episodes, int(chosen.sum())
    decisions = max(int(episodes.length[chosen].sum()), 1)
    success: dict[str, Any] = {}
    if episodes.success is not None:
        solved = int(episodes.success[chosen].sum())
        success = {"solved": solved, "success": solved / levels}
        success["interval_95"] = list(wilson(solved, levels))
    return {
        "levels": levels,
        **success,
        "loops": float(episodes.loops[chosen].sum() / decisions),
        **_repeats(played, chosen, new),
        "mean_steps": float(episodes.length[chosen].mean()),
        "returns": float(episodes.returns[chosen].mean(dtype=np.float64)),
    }


def _repeats(played: Played, chosen: np.ndarray, new: np.ndarray | None) -> dict[str, float]:
    """Return mean loops where the state is new in its episode, and the share of decisions where it is not."""
    if played.decisions is None or new is None:
        return {}
    new = new[chosen]
    loops, decisions = played.decisions.loops[chosen], int(played.episodes.length[chosen].sum())
    return {
        "loops_new_states": float(loops[new].sum() / max(new.sum(), 1)),
        "repeated_share": float(1 - new.sum() / max(decisions, 1)),
    }


def length_bins(lengths: Integer[np.ndarray, " n"]) -> list[tuple[int, int]]:
    """At most eight ranges of lengths that hold about equally many levels each, and none that is empty."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, MOST_BINS + 1), method="nearest"))
    lows = [int(edges[0]), *(int(edge) + 1 for edge in edges[1:-1])]
    bins = zip(lows, [int(edge) for edge in edges[1:]] or lows, strict=True)
    return [(low, high) for low, high in bins if ((lengths >= low) & (lengths <= high)).any()]
