"""The bar that shows how training goes: steps, rate, success, loops, and time left."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from looped_actor.training.fit import Report
from looped_actor.utils.progress import Bar


@contextmanager
def training_bar(
    name: str, best_by: str = "success", shown: bool = True
) -> Iterator[Callable[[Report], None]]:
    """A bar on the terminal, or lines in a log; yields the callback that `fit` reports to.

    Args:
      name: of the run.
      best_by: the fact of an evaluation that is shown.
      shown: or nothing is.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    played = {"success": "success", "returns": "episode_return"}.get(best_by, "")
    with Bar(*columns, disable=not shown, speed_estimate_period=600) as bar:
        task = bar.add_task(name, total=None, numbers="compiling")
        begun = False

        def show(report: Report) -> None:
            nonlocal begun
            now = report.metrics
            numbers = [f"{now['steps_per_second']:,.0f} steps/s"]
            if "loops" in now:  # not of critics alone
                numbers.append(f"{now['loops']:.1f} loops, {now['utilisation']:.0%} of those computed")
            if math.isfinite(now.get(played, math.nan)):  # no episode may have ended
                numbers.append(_score(played, now[played]))
            if report.evaluation is not None:
                numbers.append(f"validation {_score(best_by, report.evaluation[best_by])}")
            # What was done before a resumption, and what compiling took, say nothing of the time left.
            put = bar.update if begun else bar.reset
            put(task, completed=report.steps, total=report.total_steps, numbers=", ".join(numbers))
            begun = True

        yield show


def _score(name: str, value: float) -> str:
    shares = {"success": "success", "prefers": "Q prefers what was done in"}
    return f"{shares[name]} {value:.0%}" if name in shares else f"return {value:.3g}"
