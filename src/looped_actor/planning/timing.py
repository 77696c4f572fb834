"""Things that take turns in one run, so that the noise of a machine hits all alike."""

import time
from collections.abc import Callable
from typing import Any

import jax


def take_turns(
    contestants: dict[str, Callable[[], Any]],
    rounds: int,
    seconds: float,
    progress: Callable[[float, str], None],
) -> tuple[dict[str, float], dict[str, Any]]:
    """The shortest time and the last result of each. They run in turn, so that noise hits all alike."""
    begin = time.perf_counter()
    best = dict.fromkeys(contestants, float("inf"))
    results = {}
    for turn in range(rounds):
        for place, (name, run) in enumerate(contestants.items()):
            progress((turn + place / len(contestants)) / rounds, name)
            start = time.perf_counter()
            results[name] = jax.block_until_ready(run())
            best[name] = min(best[name], time.perf_counter() - start)
        if time.perf_counter() - begin + sum(best.values()) > seconds:
            break
    progress(1.0, "done")
    return best, results
