"""How many loops decisions take."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np
from jax.sharding import Mesh

from looped_actor.analysis.drawing import ABOUT, COLOURS, TITLES, Drawn, FigureKind, label_of, new_axes
from looped_actor.analysis.requests import HistogramRequest
from looped_actor.analysis.study import Stage, evaluated, finish, parts_of, quietly, subjects
from looped_actor.analysis.tables import Row, distinct, of
from looped_actor.evaluation.requests import EvaluationRequest
from looped_actor.names import PUZZLES
from looped_actor.policy.policy import Policy
from looped_actor.utils.errors import UserError


def analyse_histogram(
    policies: Sequence[Policy], request: HistogramRequest, mesh: Mesh, stage: Stage = quietly
) -> str:
    """How many loops the decisions of some runs take, on levels of puzzles and in episodes of worlds."""
    puzzles = [policy.config.task in PUZZLES for policy in policies]
    for_puzzles = {"count": request.count, "levels": request.levels}
    for option, value in (for_puzzles if not any(puzzles) else {}).items():
        if value is not None:
            raise UserError(f"none of these policies plays a puzzle: leave --{option} out")
    if all(puzzles) and request.episodes is not None:
        raise UserError("all of these policies play puzzles: give --count, and leave --episodes out")
    rows: list[Row] = []
    for subject in subjects(policies, mesh):
        asked = EvaluationRequest(levels=request.levels, count=request.count)
        if subject.policy.config.task not in PUZZLES:  # `levels` and `count` are of puzzles
            asked = replace(asked, levels=None, count=request.episodes)
        facts = evaluated(subject, asked, mesh, parts_of(request.out, "histogram"), stage)
        new = facts.get("loop_histogram_new_states", {})  # not of robots: their states do not repeat
        rows += [
            {**subject.about, "loops": int(loops), "decisions": decisions, "new_states": new.get(loops)}
            for loops, decisions in facts["loop_histogram"].items()
        ]
    return finish(request.out, "histogram", rows, HISTOGRAM)


def _draw(rows: Sequence[Row]) -> Drawn:
    """How many loops decisions take: a panel for each environment, a line for each run."""
    order = list(TITLES)
    tasks = sorted(distinct(rows, "task"), key=lambda t: order.index(t) if t in TITLES else len(order))
    columns = min(3, len(tasks))
    figure, axes = new_axes(columns, rows=-(-len(tasks) // columns), width=4.0, height=3.0)
    for axis in list(axes.flat)[len(tasks) :]:
        axis.set_visible(False)
    sentences = []
    for axis, task in zip(axes.flat, tasks, strict=False):
        for colour, run in zip(cycle(COLOURS), distinct(of(rows, task=task), "run"), strict=False):
            some = of(rows, task=task, run=run)
            x, counts = (np.array([row[name] for row in some], float) for name in ("loops", "decisions"))
            share, mean = counts / counts.sum(), (x * counts).sum() / counts.sum()
            edges = np.append(x - 0.5, x[-1] + 0.5)
            axis.stairs(share, edges, color=colour, fill=True, alpha=0.18)
            label, told = f"{label_of(some[0])}, {run}: {mean:.1f}", f"{mean:.1f}"
            if some[0].get("new_states") is not None:  # not in tables of older versions
                new = np.array([row["new_states"] for row in some], float)
                on_new = (x * new).sum() / max(new.sum(), 1)
                axis.stairs(new / max(new.sum(), 1), edges, color=colour, linestyle="--")
                label, told = f"{label}, new states {on_new:.1f}", f"{told} ({on_new:.1f} on new states)"
            axis.stairs(share, edges, color=colour, label=label)
            name, cap = f"{TITLES[task]} {run}, {label_of(some[0])}", int(x[-1])
            sentences.append(f"{name}: {told}, {share[-1]:.0%} at the cap of {cap}")
        axis.set(title=TITLES[task], xlabel="loops of a decision", ylabel="share of decisions")
        axis.set_ylim(0, 1.3 * axis.get_ylim()[1])  # room for the legend
        axis.legend(frameon=False, fontsize=7, loc="upper left")
    return Drawn(figure, "Mean loops of a decision: " + "; ".join(sentences) + ".")


HISTOGRAM = FigureKind((*ABOUT, "loops", "decisions"), _draw)
