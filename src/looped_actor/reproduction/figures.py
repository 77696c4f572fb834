"""All figures by name. Those over seeds, of robots and of the theorem are drawn here."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from looped_actor.analysis.caps import CAPS, FRONTIER
from looped_actor.analysis.compare import COMPARE, during_training
from looped_actor.analysis.difficulty import DIFFICULTY
from looped_actor.analysis.drawing import (
    ARMS,
    COLOURS,
    FAINT,
    INK,
    RUN_COLUMNS,
    TITLES,
    CaptionedFigure,
    FigureKind,
    colour_of,
    draw_table,
    new_axes,
)
from looped_actor.analysis.histogram import HISTOGRAM
from looped_actor.analysis.probes import PROBES
from looped_actor.analysis.tables import Row, distinct, rows_where
from looped_actor.reproduction.seeds import ends_table, format_percent
from looped_actor.utils.errors import UserError


def draw_folder(folder: pathlib.Path) -> dict[str, str]:
    """Draw all tables of a folder, and return the captions by the names of the tables."""
    tables = [folder / f"{name}.csv" for name in FIGURES]
    existing = [path for path in tables if path.is_file()]
    if not existing:
        names = ", ".join(path.name for path in tables)
        raise UserError(f"{folder} holds none of the tables that are drawn: {names}")
    return {path.stem: draw_table(path, FIGURES[path.stem]) for path in existing}


def _draw_curves_and_ends(rows: Sequence[Row]) -> CaptionedFigure:
    """Draw evaluations against steps, with mean and deviation over seeds of each arm, and the last ones."""
    tasks, imitates = distinct(rows, "task"), any(row["optimal_actions"] is not None for row in rows)
    measures = {"success": "levels solved", "optimal_actions": "optimal actions along solutions"}
    shown = list(measures) if imitates else ["success"]
    figure, axes = new_axes(len(shown) + 1, rows=len(tasks), width=4.4)
    captions = []
    for panels, task in zip(axes, tasks, strict=True):
        own = rows_where(rows, task=task)
        for axis, measure in zip(panels, shown, strict=False):
            _draw_curves(axis, during_training(own), measure)
            axis.set(xlabel="steps of training", title=f"validation: {measures[measure]}", xlim=(0, None))
            axis.set_ylim(0, None if measure == "success" else 1)
        panels[0].set_ylabel(TITLES[task])
        panels[0].legend(frameon=False, fontsize=8)
        ends = ends_table(own)
        _draw_ends(panels[-1], ends)
        each = ", ".join(
            f"{ARMS[row['arm']]} {format_percent(row['success'], row['deviation'])}" for row in ends
        )
        captions.append(f"{TITLES[task]}, {own[0]['learner']}: {each} solved at the end.")
    seeds = len(distinct(rows, "seed"))
    titles = ", ".join(TITLES[task] for task in tasks)
    figure.suptitle(f"{titles}, {rows[0]['learner']}, {seeds} seed{'s' * (seeds > 1)}")
    return CaptionedFigure(figure, " ".join(captions))


def _draw_curves(axis: Any, rows: Sequence[Row], measure: str) -> None:
    """Draw a line for each arm, with its deviation over seeds."""
    for arm in [arm for arm in ARMS if rows_where(rows, arm=arm)]:
        own = rows_where(rows, arm=arm)
        steps = sorted(distinct(own, "steps"))
        values = [np.array([row[measure] for row in rows_where(own, steps=step)], float) for step in steps]
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
    """Draw the success of each arm: the mean, its two intervals, and the result of the paper."""
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


def _draw_robots(rows: Sequence[Row]) -> CaptionedFigure:
    """Draw success by environment and arm, with mean and deviation over seeds, and the paper's results."""
    overall = rows_where(rows, number=0)
    tasks = distinct(overall, "task")
    figure, axes = new_axes(len(tasks), width=2.9, height=3.2)
    for axis, task in zip(axes[0], tasks, strict=True):
        own = rows_where(overall, task=task)
        for place, row in enumerate(own):
            deviation = row["deviation"] or 0.0
            axis.bar(place, row["success"], yerr=deviation, color=colour_of(row["arm"]), capsize=3, width=0.6)
            if row["paper"] is not None:
                axis.errorbar(place, row["paper"], row["paper_deviation"], fmt="D", color=INK, markersize=4)
        axis.set_xticks(range(len(own)), [ARMS[row["arm"]] for row in own], fontsize=8)
        axis.set(title=TITLES[task], ylim=(0, 1))
    axes[0][0].set_ylabel("success; diamonds: the paper, at its scale")
    results = [
        f"{TITLES[row['task']]} {ARMS[row['arm']]} {format_percent(row['success'], row['deviation'])}"
        for row in overall
    ]
    return CaptionedFigure(figure, f"OGBench: {', '.join(results)}.")


def _draw_separation(rows: Sequence[Row]) -> CaptionedFigure:
    """Draw the expected steps of the theorem's two policies, and their ratio, by the length of a state."""
    figure, axes = new_axes(2)
    costs, ratios = axes[0]
    n = [row["n"] for row in rows]

    def line(axis: Any, column: str, label: str, **style: Any) -> None:
        axis.plot(n, [row[column] for row in rows], label=label, markersize=3.5, **style)

    line(costs, "fixed", "fixed, all states", color=COLOURS[1], marker="o")
    line(costs, "hard", "adaptive, hard states", color=COLOURS[0], marker="x", linestyle=":")
    line(costs, "adaptive", "adaptive, expected", color=COLOURS[0], marker="o", linewidth=2.2)
    line(costs, "most", "c n + 1", color=INK, linestyle="--", linewidth=1)
    line(ratios, "ratio", "this fixed policy / adaptive policy", color=COLOURS[1], marker="o")
    bound = "bound for every fixed policy, for large n: n$^2$ / (c n + 1)"
    line(ratios, "bound", bound, color=INK, linestyle="--", linewidth=1)
    for axis, title in ((costs, "machine steps per decision"), (ratios, "ratio of machine steps")):
        axis.set(xscale="log", yscale="log", xlabel="n: a state has n + 1 bits", title=title)
        axis.set_xticks(n, [str(each) for each in n])
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=8)
    last = rows[-1]
    caption = (
        f"At n = {last['n']} a decision takes {last['fixed']:,} steps with the fixed policy and "
        f"{last['adaptive']:.2f} expected steps with the adaptive one, which chooses the same actions: a "
        f"ratio of {last['ratio']:,.0f}. The theorem's bound for every fixed policy is {last['bound']:.1f}."
    )
    return CaptionedFigure(figure, caption)


FIGURES = {
    kind.name: kind
    for kind in (
        PROBES,
        DIFFICULTY,
        HISTOGRAM,
        CAPS,
        FRONTIER,
        FigureKind(
            "curves",
            (
                *RUN_COLUMNS,
                "seed",
                "steps",
                "played",
                "solved",
                "success",
                "loops",
                "optimal_actions",
                "paper",
            ),
            _draw_curves_and_ends,
        ),
        FigureKind(
            "worlds",
            ("task", "learner", "arm", "number", "success", "deviation", "paper", "paper_deviation"),
            _draw_robots,
        ),
        FigureKind(
            "separation", ("n", "fixed", "adaptive", "most", "hard", "ratio", "bound"), _draw_separation
        ),
        COMPARE,
    )
}
"""Figures by the names of their tables."""
