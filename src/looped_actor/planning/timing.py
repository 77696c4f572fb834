"""Timing of functions that take turns, so that the noise of a machine affects all of them alike."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

Report = Callable[[float, str], None]
"""Called with the fraction that is done, and a description of the next step."""


def no_report(fraction: float, step: str) -> None:
    """Report nothing."""


class Turns(NamedTuple):
    """Measurements of functions that took turns."""

    seconds: dict[str, float]
    """Shortest time of each."""
    results: dict[str, Any]
    """Last result of each."""


def take_turns(
    functions: Mapping[str, Callable[[], Any]],
    rounds: int,
    seconds: float = math.inf,
    report: Report = no_report,
) -> Turns:
    """Call each function in turn, `rounds` times or until about `seconds` have passed.

    No round but the first begins if it would not end in time. Compile the functions before.
    """
    begin = time.perf_counter()
    best, results = dict.fromkeys(functions, math.inf), {}
    for number in range(rounds):
        for place, (name, function) in enumerate(functions.items()):
            report((number + place / len(functions)) / rounds, name)
            start = time.perf_counter()
            results[name] = jax.block_until_ready(function())
            best[name] = min(best[name], time.perf_counter() - start)
        if time.perf_counter() - begin + sum(best.values()) > seconds:
            break
    report(1.0, "done")
    return Turns(best, results)


def fastest(function: Callable[[], Any], rounds: int = 3) -> float:
    """Return the seconds of the fastest of a few calls, after one that compiles."""
    jax.block_until_ready(function())
    return take_turns({"": function}, rounds).seconds[""]
