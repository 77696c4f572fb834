"""Evaluation results as JSON."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Integer

from looped_actor.evaluation.intervals import wilson
from looped_actor.evaluation.levels import Played
from looped_actor.loop import StopReason

MAX_BINS = 8


def summarize(played: Played, optimal_moves: Integer[np.ndarray, " n"] | None = None) -> dict[str, Any]:
    """Return the results of episodes; without success if the environment does not report it.

    Args:
      played: an episode for each level.
      optimal_moves: length of each level's shortest solution, if known.
    """
    episodes = played.episodes
    histogram, stops = (np.asarray(counts).sum(axis=0) for counts in (episodes.histogram, episodes.stops))
    everything = np.ones(len(episodes.length), bool)
    new = None if played.decisions is None else played.new_states()
    results = _results_of(played, everything, new)
    if episodes.success is not None:
        results["outcomes"] = outcomes_text(episodes.success)
    results |= loop_results(histogram, stops, int(played.executed.sum()))
    if played.decisions is not None:
        counts = np.bincount(played.decisions.loops[new], minlength=len(histogram) + 1)[1:]
        results["loop_histogram_new_states"] = {str(i + 1): int(n) for i, n in enumerate(counts)}
    if episodes.success is not None and np.any(episodes.success):
        success = np.asarray(episodes.success, bool)
        outcomes = {"solved": success, "failed": ~success}
        results["by_outcome"] = {
            name: _results_of(played, them, new) for name, them in outcomes.items() if them.any()
        }
    if optimal_moves is not None:
        results["by_optimal_moves"] = [
            {
                "moves": [low, high],
                **_results_of(played, (optimal_moves >= low) & (optimal_moves <= high), new),
            }
            for low, high in length_bins(optimal_moves)
        ]
    return results


def outcomes_text(success: Iterable[bool | np.bool_]) -> str:
    """Return a + for each level or episode that was solved and a - for each that was not, in their order."""
    return "".join("+" if solved else "-" for solved in success)


def loop_results(
    histogram: Integer[np.ndarray, " most"], stops: Integer[np.ndarray, " reasons"], executed: int
) -> dict[str, Any]:
    """Return histogram and stop reasons of decisions, and the loops computed for each loop needed."""
    decisions, needed = max(int(stops.sum()), 1), int((histogram * (1 + np.arange(len(histogram)))).sum())
    return {
        "executed_over_asked": executed / max(needed, 1),
        "capped": float(stops[StopReason.CAP] / decisions),
        "non_finite": float(stops[StopReason.NON_FINITE] / decisions),
        "loop_histogram": {str(i + 1): int(n) for i, n in enumerate(histogram)},
    }


def _results_of(played: Played, chosen: np.ndarray, new: np.ndarray | None) -> dict[str, Any]:
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
    """Return mean loops in states that are new in their episode, and the share of decisions in other
    states."""
    if played.decisions is None or new is None:
        return {}
    new = new[chosen]
    loops, decisions = played.decisions.loops[chosen], int(played.episodes.length[chosen].sum())
    return {
        "loops_new_states": float(loops[new].sum() / max(new.sum(), 1)),
        "repeated_share": float(1 - new.sum() / max(decisions, 1)),
    }


def length_bins(lengths: Integer[np.ndarray, " n"]) -> list[tuple[int, int]]:
    """Return at most eight ranges of lengths with about equally many levels each, and no empty one."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, MAX_BINS + 1), method="nearest"))
    lows = [int(edges[0]), *(int(edge) + 1 for edge in edges[1:-1])]
    bins = zip(lows, [int(edge) for edge in edges[1:]] or lows, strict=True)
    return [(low, high) for low, high in bins if ((lengths >= low) & (lengths <= high)).any()]
