"""Every figure by the name of its table; those over seeds and those of the theorem are drawn here."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from looped_actor.analysis.caps import CAPS, FRONTIER
from looped_actor.analysis.compare import COMPARE, while_training
from looped_actor.analysis.difficulty import DIFFICULTY
from looped_actor.analysis.drawing import (
    ABOUT,
    ARMS,
    COLOURS,
    FAINT,
    INK,
    TITLES,
    Drawn,
    FigureKind,
    colour_of,
    draw_table,
    new_axes,
)
from looped_actor.analysis.histogram import HISTOGRAM
from looped_actor.analysis.plan_probes import PROBES
from looped_actor.analysis.tables import Row, distinct, of
from looped_actor.reproduction.seeds import ends_table, percent
from looped_actor.utils.errors import UserError


def draw_folder(folder: pathlib.Path) -> dict[str, str]:
    """Draw every table of a folder again; the sentences by the names of the tables."""
    tables = [folder / f"{name}.csv" for name in FIGURES]
    there = [path for path in tables if path.is_file()]
    if not there:
        names = ", ".join(path.name for path in tables)
        raise UserError(f"{folder} holds none of the tables that are drawn: {names}")
    return {path.stem: draw_table(path, FIGURES[path.stem]) for path in there}


def _curves(rows: Sequence[Row]) -> Drawn:
    """Evaluations against steps, mean and deviation over seeds for each arm; beside them, how they end."""
    tasks, taught = distinct(rows, "task"), any(row["optimal_actions"] is not None for row in rows)
    measures = {"success": "levels solved", "optimal_actions": "optimal actions along solutions"}
    shown = list(measures) if taught else ["success"]
    figure, axes = new_axes(len(shown) + 1, rows=len(tasks), width=4.4)
    said = []
    for panels, task in zip(axes, tasks, strict=True):
        own = of(rows, task=task)
        for axis, measure in zip(panels, shown, strict=False):
            _draw_curves(axis, while_training(own), measure)
            axis.set(xlabel="steps of training", title=f"held-out {measures[measure]}", xlim=(0, None))
            axis.set_ylim(0, None if measure == "success" else 1)
        panels[0].set_ylabel(TITLES[task])
        panels[0].legend(frameon=False, fontsize=8)
        ends = ends_table(own)
        _draw_ends(panels[-1], ends)
        each = ", ".join(f"{ARMS[row['arm']]} {percent(row['success'], row['deviation'])}" for row in ends)
        said.append(f"{TITLES[task]}, {own[0]['learner']}: {each} solved at the end.")
    seeds = len(distinct(rows, "seed"))
    worlds = ", ".join(TITLES[task] for task in tasks)
    figure.suptitle(f"{worlds}, {rows[0]['learner']}, {seeds} seed{'s' * (seeds > 1)}")
    return Drawn(figure, " ".join(said))


def _draw_curves(axis: Any, rows: Sequence[Row], measure: str) -> None:
    """A line for each arm, with its deviation over seeds."""
    for arm in [arm for arm in ARMS if of(rows, arm=arm)]:
        own = of(rows, arm=arm)
        steps = sorted(distinct(own, "steps"))
        values = [np.array([row[measure] for row in of(own, steps=step)], float) for step in steps]
        mean = np.array([value.mean() for value in values])
        # With one seed there is no deviation to draw.
        spread = np.array([value.std(ddof=1) if len(value) > 1 else 0.0 for value in values])
        style = {"color": colour_of(arm), "linewidth": 2.2 if arm == "looped" else 1.4}
        axis.plot(steps, mean, marker="o", markersize=3, label=ARMS[arm], **style)
        axis.fill_between(steps, mean - spread, mean + spread, color=colour_of(arm), alpha=0.15, linewidth=0)
    axis.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
    axis.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axis.tick_params(axis="x", labelsize=8)


def _draw_ends(axis: Any, ends: Sequence[Row]) -> None:
    """Success of each arm: the mean, its two intervals, and the paper's."""
    for place, row in enumerate(ends):
        colour, mean, at = colour_of(row["arm"]), row["success"], -place
        if row["seeds_low"] is not None:
            axis.plot([row["seeds_low"], row["seeds_high"]], [at, at], color=colour, alpha=0.3, linewidth=1.2)
        axis.plot([row["levels_low"], row["levels_high"]], [at, at], color=colour, linewidth=4)
        axis.plot(mean, at, "o", color=colour, markersize=5)
        if row["paper"] is not None:
            axis.plot(row["paper"], at - 0.28, "D", color=FAINT, markersize=4)
        style = {"textcoords": "offset points", "xytext": (0, 6), "fontsize": 8, "ha": "center"}
        axis.annotate(f"{mean:.1%}" + (", still climbing" * row["climbing"]), (mean, at), **style)
    axis.set_yticks([-place for place in range(len(ends))], [ARMS[row["arm"]] for row in ends])
    axis.set(title="at the end", xlim=(-0.02, 1.02), ylim=(-len(ends) + 0.4, 0.6))
    axis.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    seeds = "; line: 95% over seeds" if any(row["seeds_low"] is not None for row in ends) else ""
    axis.set_xlabel(f"bar: 95% over levels{seeds}", fontsize=8)
    axis.grid(axis="y", visible=False)
    if any(row["paper"] is not None for row in ends):
        axis.plot([], [], "D", color=FAINT, markersize=4, label="paper, at its scale")
        axis.legend(frameon=False, fontsize=8, loc="lower right")


def _worlds(rows: Sequence[Row]) -> Drawn:
    """Success by world and arm, mean and deviation over seeds, with the paper's beside it."""
    whole = of(rows, number=0)
    worlds = distinct(whole, "task")
    figure, axes = new_axes(len(worlds), width=2.9, height=3.2)
    for axis, world in zip(axes[0], worlds, strict=True):
        own = of(whole, task=world)
        for place, row in enumerate(own):
            deviation = row["deviation"] or 0.0
            axis.bar(place, row["success"], yerr=deviation, color=colour_of(row["arm"]), capsize=3, width=0.6)
            if row["paper"] is not None:
                axis.errorbar(place, row["paper"], row["paper_deviation"], fmt="D", color=INK, markersize=4)
        axis.set_xticks(range(len(own)), [ARMS[row["arm"]] for row in own], fontsize=8)
        axis.set(title=TITLES[world], ylim=(0, 1))
    axes[0][0].set_ylabel("success; diamonds: the paper, at its scale")
    said = [f"{TITLES[r['task']]} {ARMS[r['arm']]} {percent(r['success'], r['deviation'])}" for r in whole]
    return Drawn(figure, f"OGBench: {', '.join(said)}.")


def _separation(rows: Sequence[Row]) -> Drawn:
    """Expected steps of the theorem's two policies against the length of a state, and their ratio."""
    figure, axes = new_axes(2)
    costs, ratios = axes[0]
    n = [row["n"] for row in rows]

    def line(axis: Any, column: str, label: str, **style: Any) -> None:
        axis.plot(n, [row[column] for row in rows], label=label, markersize=3.5, **style)

    line(costs, "fixed", "fixed: the same on every state", color=COLOURS[1], marker="o")
    line(costs, "hard", "adaptive, hard states", color=COLOURS[0], marker="x", linestyle=":")
    line(costs, "adaptive", "adaptive, expected", color=COLOURS[0], marker="o", linewidth=2.2)
    line(costs, "most", "c n + 1", color=INK, linestyle="--", linewidth=1)
    line(ratios, "ratio", "this fixed policy / adaptive", color=COLOURS[1], marker="o")
    proved = "of any, proved for large n: n$^2$ / (c n + 1)"
    line(ratios, "bound", proved, color=INK, linestyle="--", linewidth=1)
    for axis, title in ((costs, "machine steps of a decision"), (ratios, "how many times cheaper")):
        axis.set(xscale="log", yscale="log", xlabel="n: a state has n + 1 bits", title=title)
        axis.set_xticks(n, [str(each) for each in n])
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=8)
    last = rows[-1]
    sentence = (
        f"At n = {last['n']} a decision takes {last['fixed']:,} steps of the fixed policy and "
        f"{last['adaptive']:.2f} expected steps of the adaptive one, which chooses the same actions: "
        f"{last['ratio']:,.0f} times as many, where the theorem says at least {last['bound']:.1f} of any."
    )
    return Drawn(figure, sentence)


FIGURES = {
    "probes": PROBES,
    "difficulty": DIFFICULTY,
    "histogram": HISTOGRAM,
    "caps": CAPS,
    "frontier": FRONTIER,
    "curves": FigureKind(
        (*ABOUT, "seed", "steps", "played", "solved", "success", "loops", "optimal_actions", "paper"), _curves
    ),
    "worlds": FigureKind(
        ("task", "learner", "arm", "number", "success", "deviation", "paper", "paper_deviation"), _worlds
    ),
    "separation": FigureKind(("n", "fixed", "adaptive", "most", "hard", "ratio", "bound"), _separation),
    "compare": COMPARE,
}
