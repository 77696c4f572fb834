"""Histograms of the number of loops that decisions take."""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from jax.sharding import Mesh

from looped_actor.analysis.drawing import (
    COLOURS,
    RUN_COLUMNS,
    TITLES,
    CaptionedFigure,
    FigureKind,
    full_label,
    label_of,
    new_axes,
)
from looped_actor.analysis.options import HistogramOptions
from looped_actor.analysis.study import Analysis, ProgressFactory, name_policies, run_columns, silent
from looped_actor.analysis.tables import Row, distinct, rows_where
from looped_actor.evaluation.options import EvaluationOptions
from looped_actor.names import PUZZLES
from looped_actor.policy.policy import Policy
from looped_actor.utils.errors import UserError


def analyze_histogram(
    policies: Sequence[Policy], options: HistogramOptions, mesh: Mesh, progress: ProgressFactory = silent
) -> str:
    """Count the loops of decisions, on levels of puzzles and in episodes of other environments."""
    puzzles = [policy.config.task in PUZZLES for policy in policies]
    for option in ("count", "levels") if not any(puzzles) else ():
        if getattr(options, option) is not None:
            raise UserError(f"none of these policies plays a puzzle: leave --{option} out")
    if all(puzzles) and options.episodes is not None:
        raise UserError("all of these policies play puzzles: give --count, and leave --episodes out")
    analysis = Analysis(HISTOGRAM, options.out, mesh, progress)
    rows: list[Row] = []
    for name, policy in name_policies(policies).items():
        if policy.config.task in PUZZLES:
            played = EvaluationOptions(levels=options.levels, count=options.count)
        else:
            played = EvaluationOptions(count=options.episodes)
        results = analysis.evaluate(name, policy, played)
        new = results.get("loop_histogram_new_states", {})  # missing for robots, whose states never repeat
        rows += [
            {
                **run_columns(name, policy.config),
                "loops": int(loops),
                "decisions": decisions,
                "new_states": new.get(loops),
            }
            for loops, decisions in results["loop_histogram"].items()
        ]
    return analysis.finish(rows)


def _draw_histogram(rows: Sequence[Row]) -> CaptionedFigure:
    """Draw the share of decisions by loops: a panel for each environment, a line for each run."""
    order = list(TITLES)
    tasks = sorted(distinct(rows, "task"), key=lambda t: order.index(t) if t in TITLES else len(order))
    columns = min(3, len(tasks))
    figure, axes = new_axes(columns, rows=-(-len(tasks) // columns), width=4.0, height=3.0)
    for axis in list(axes.flat)[len(tasks) :]:
        axis.set_visible(False)
    sentences = []
    for axis, task in zip(axes.flat, tasks, strict=False):
        of_task = rows_where(rows, task=task)
        for colour, run in zip(cycle(COLOURS), distinct(of_task, "run"), strict=False):
            own = rows_where(of_task, run=run)
            x, counts = (np.array([row[name] for row in own], float) for name in ("loops", "decisions"))
            share, mean = counts / counts.sum(), (x * counts).sum() / counts.sum()
            edges = np.append(x - 0.5, x[-1] + 0.5)
            axis.stairs(share, edges, color=colour, fill=True, alpha=0.18)
            label, words = f"{label_of(own[0])}, {run}: {mean:.1f}", f"{mean:.1f}"
            if own[0].get("new_states") is not None:  # missing in tables of older versions
                new = np.array([row["new_states"] for row in own], float)
                new_mean = (x * new).sum() / max(new.sum(), 1)
                axis.stairs(new / max(new.sum(), 1), edges, color=colour, linestyle="--")
                label, words = (
                    f"{label}, new states {new_mean:.1f}",
                    f"{words} ({new_mean:.1f} in new states)",
                )
            axis.stairs(share, edges, color=colour, label=label)
            sentences.append(
                f"{full_label(own[0])} {words}, {share[-1]:.0%} of decisions take all {x[-1]:.0f}"
            )
        axis.set(title=TITLES[task], xlabel="loops per decision", ylabel="share of decisions")
        axis.set_ylim(0, 1.3 * axis.get_ylim()[1])  # room for the legend
        axis.legend(frameon=False, fontsize=7, loc="upper left")
    return CaptionedFigure(figure, f"Mean loops per decision: {'; '.join(sentences)}.")


HISTOGRAM = FigureKind("histogram", (*RUN_COLUMNS, "loops", "decisions"), _draw_histogram)
