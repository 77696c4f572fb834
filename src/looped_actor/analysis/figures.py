"""Figures from tables: each draws one table and says in a sentence what it shows. No policy is needed.

A figure is a function from rows to a `Drawn`; `FIGURES` knows them by the name of their table.
"""

import pathlib
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from looped_actor.analysis.drawing import (
    ARMS,
    COLOURS,
    FAINT,
    INK,
    TITLES,
    colour_of,
    label_of,
    new_axes,
    save_figure,
    shades,
)
from looped_actor.analysis.seeds import ends_table, percent
from looped_actor.analysis.tables import Row, distinct, of, read_table

FEWEST_LEVELS = 5
"""Means of difficulty over fewer levels are in the table and not in the figure."""


class Drawn(NamedTuple):
    """A figure and what it shows."""

    figure: Any
    sentence: str


class FigureKind(NamedTuple):
    """How a table is drawn."""

    columns: tuple[str, ...]
    """That it must have."""
    draw: Callable[[Sequence[Row]], Drawn]


def draw_table(path: pathlib.Path) -> str:
    """Draw a table as PNG and SVG beside it, and return the sentence."""
    kind = FIGURES[path.stem]
    figure, sentence = kind.draw(read_table(path, kind.columns))
    save_figure(figure, path)
    return sentence


def draw_folder(folder: pathlib.Path) -> dict[str, str]:
    """Draw every table of a folder again; the sentences by the names of the tables."""
    tables = [folder / f"{name}.csv" for name in FIGURES]
    there = [path for path in tables if path.is_file()]
    if not there:
        names = ", ".join(path.name for path in tables)
        raise ValueError(f"{folder} holds none of the tables that are drawn: {names}")
    return {path.stem: draw_table(path) for path in there}


def _probes(rows: Sequence[Row]) -> Drawn:
    """Accuracy against the push, a line for each loop; beside it against the loop, a line for each push."""
    probed, guesses = [row for row in rows if row["place"] != "guess"], of(rows, place="guess")
    places, pushes = distinct(probed, "place"), distinct(probed, "push")
    loops = [place for place in places if place != "input"]
    figure, axes = new_axes(2)
    by_push, by_loop = axes[0]

    def line(axis: Any, cells: Sequence[tuple[Any, int]], **style: Any) -> None:
        means, deviations = zip(*(_accuracy(probed, *cell) for cell in cells), strict=True)
        axis.errorbar(range(len(cells)), means, deviations, marker="o", markersize=3, capsize=2, **style)

    for loop, colour in zip(loops, shades(len(loops)), strict=True):
        line(by_push, [(loop, push) for push in pushes], color=colour, label=f"loop {loop}")
    if "input" in places:
        style = {"color": "#8a8f99", "linestyle": "--", "label": "input embedding"}
        line(by_push, [("input", push) for push in pushes], **style)
    for push, colour in zip(pushes, shades(len(pushes))[::-1], strict=True):
        line(by_loop, [(loop, push) for loop in loops], color=colour, label=f"push {push}")
    by_push.axhline(1 / rows[0]["classes"], color=FAINT, linewidth=1, label="chance")
    said = ""
    if guesses:
        guess = np.mean([row["accuracy"] for row in guesses])
        by_push.plot(pushes.index(1), guess, "x", color=INK, label="guess a possible push")
        said = f"; a guess among the pushes that are possible scores {guess:.2f}"
    by_push.set_xticks(range(len(pushes)), [str(push) for push in pushes])
    by_push.set(xlabel="push ahead", ylabel="accuracy of the probe, test levels", ylim=(0, 1))
    by_loop.set_xticks(range(len(loops)), [str(loop) for loop in loops])
    by_loop.set(xlabel="loop", ylim=(0, 1))
    for axis in (by_push, by_loop):
        axis.legend(frameon=False, fontsize=8, ncols=2)
    runs = len(distinct(probed, "run"))
    figure.suptitle(f"Is the plan in the latent? {label_of(rows[0])}, {runs} checkpoint{'s' * (runs > 1)}")
    push, first, last = pushes[0], loops[0], loops[-1]
    accuracies = [f"{_accuracy(probed, place, push)[0]:.2f}" for place in (first, last, "input")]
    tested = of(probed, push=push)[0]["tested"]
    sentence = (
        f"{label_of(rows[0])}: push {push} can be read from the latent with accuracy {accuracies[0]} after "
        f"loop {first} and {accuracies[1]} after loop {last}, and from the input embedding with "
        f"{accuracies[2]} ({tested:,} test levels{said})."
    )
    return Drawn(figure, sentence)


def _accuracy(rows: Sequence[Row], place: Any, push: int) -> tuple[float, float]:
    """Mean and deviation over checkpoints, each averaged over its seeds; NaN where nothing was tested."""
    tested = [row for row in of(rows, place=place, push=push) if row["tested"]]
    if not tested:
        return np.nan, np.nan
    means = [np.mean([row["accuracy"] for row in of(tested, run=run)]) for run in distinct(tested, "run")]
    return float(np.mean(means)), float(np.std(means))


def _difficulty(rows: Sequence[Row]) -> Drawn:
    """Mean loops against remaining pushes or moves, of solved and failed episodes; below, how many states."""
    runs = distinct(rows, "run")
    figure, axes = new_axes(len(runs), rows=2, height=2.6)
    panels = zip(*axes, runs, strict=True)
    said = [_difficulty_panel(top, below, of(rows, run=run)) for top, below, run in panels]
    return Drawn(figure, " ".join(said))


def _difficulty_panel(top: Any, below: Any, rows: Sequence[Row]) -> str:
    task, one = rows[0]["task"], {"pushes": "push", "moves": "move"}[rows[0]["measure"]]
    said = []
    for outcome, colour, aside in (("solved", COLOURS[1], -0.2), ("failed", COLOURS[0], 0.2)):
        known = [row for row in of(rows, outcome=outcome) if isinstance(row["remaining"], int)]
        if not known:
            continue
        x, loops, low, high, states = (
            np.array([row[name] for row in known], float)
            for name in ("remaining", "loops", "low", "high", "states")
        )
        seen = np.array([row["levels"] >= FEWEST_LEVELS for row in known])
        top.plot(x[seen], loops[seen], color=colour, marker="o", markersize=3, label=f"{outcome} episodes")
        top.fill_between(x[seen], low[seen], high[seen], color=colour, alpha=0.18, linewidth=0)
        below.bar(x + aside, states, 0.4, color=colour)
        if len(x) > 1:
            slope = np.polyfit(x, loops, 1, w=np.sqrt(states))[0]
            said.append(f"{slope:+.3f} loops per remaining {one} in {outcome} episodes")
    lost = of(rows, remaining="lost")
    for row in lost:
        top.axhline(row["loops"], color=COLOURS[0], linestyle=":", linewidth=1, label="beyond rescue")
    top.set(title=f"{TITLES[task]}: {label_of(rows[0])}", ylabel="mean loops (95% interval)")
    below.set(xlabel=f"remaining optimal {rows[0]['measure']}", ylabel="states", yscale="log")
    top.legend(frameon=False, fontsize=8)
    states, beyond = (sum(row["states"] for row in some) for some in (rows, lost))
    return (
        f"{TITLES[task]}, {label_of(rows[0])}: {' and '.join(said) or 'too few states to fit a line'} "
        f"({states:,} states, {beyond:,} of them beyond rescue)."
    )


def _histogram(rows: Sequence[Row]) -> Drawn:
    """How many loops decisions take: a panel for each environment, a line for each run."""
    tasks = [task for task in TITLES if of(rows, task=task)]
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
            axis.stairs(share, edges, color=colour, label=f"{label_of(some[0])}, {run}: {mean:.1f}")
            name, cap = f"{TITLES[task]} {run}, {label_of(some[0])}", int(x[-1])
            sentences.append(f"{name}: {mean:.1f}, {share[-1]:.0%} at the cap of {cap}")
        axis.set(title=TITLES[task], xlabel="loops of a decision", ylabel="share of decisions")
        axis.set_ylim(0, 1.3 * axis.get_ylim()[1])  # room for the legend
        axis.legend(frameon=False, fontsize=7, loc="upper left")
    return Drawn(figure, "Mean loops of a decision: " + "; ".join(sentences) + ".")


def _caps(rows: Sequence[Row]) -> Drawn:
    """Success against the cap at test time, and against the FLOPs of a decision."""
    figure, axes = new_axes(2)
    by_cap, by_flops = axes[0]
    colours, sentences = cycle(COLOURS), []
    for run in distinct(rows, "run"):
        own = of(rows, run=run)
        for rule, threshold in distinct(own, "rule", "threshold"):
            some = sorted(of(own, rule=rule, threshold=threshold), key=lambda row: row["max_loops"])
            fixed = rule == "fixed"
            style = {"linestyle": "--" if fixed else "-", "marker": "s" if fixed else "o", "markersize": 4}
            style |= {"color": next(colours), "capsize": 2, "linewidth": 1.2}
            success, low, high = (
                np.array([row[name] for row in some]) for name in ("success", "low", "high")
            )
            error = np.maximum([success - low, high - success], 0)
            name = f"{run}: {rule}" + ("" if fixed else f", threshold {threshold:g}")
            by_cap.errorbar([row["max_loops"] for row in some], success, error, label=name, **style)
            by_flops.errorbar([row["flops"] / 1e6 for row in some], success, error, **style)
        sentences.append(_best_settings(own))
    caps = sorted(distinct(rows, "max_loops"))
    by_cap.set(xlabel="cap, or fixed loops, at test time", ylabel="success (95% interval)", xscale="log")
    by_cap.set_xticks(caps, [str(cap) for cap in caps])
    by_cap.minorticks_off()
    by_flops.set(xlabel="MFLOPs of a decision, mean")
    for axis in (by_cap, by_flops):
        axis.set_ylim(0, None)
    handles, names = by_cap.get_legend_handles_labels()
    by_flops.legend(handles, names, frameon=False, fontsize=8, loc="lower right")
    kinds = dict.fromkeys(f"{TITLES[row['task']]}, {label_of(row)}" for row in rows)
    figure.suptitle(f"Thinking less or more than in training: {'; '.join(kinds)}")
    return Drawn(figure, " ".join(sentences))


def _best_settings(rows: Sequence[Row]) -> str:
    """The best adaptive and the best fixed setting of a run; of equals the cheapest."""

    def best(rule: str) -> Row | None:
        return max(of(rows, rule=rule), key=lambda row: (row["success"], -row["flops"]), default=None)

    said = []
    for name, row in (("adaptive", best("adaptive")), ("fixed", best("fixed"))):
        if row is not None:
            rule = (
                f"cap {row['max_loops']}, threshold {row['threshold']:g}"
                if name == "adaptive"
                else (f"{row['max_loops']} loops")
            )
            cost = f"{row['loops']:.1f} loops and {row['flops'] / 1e6:.3g} MFLOPs a decision"
            said.append(f"the best {name} setting ({rule}) solves {row['success']:.1%} with {cost}")
    return f"{TITLES[rows[0]['task']]}, {label_of(rows[0])}: {', and '.join(said)}."


def _compare(rows: Sequence[Row]) -> Drawn:
    """Success of evaluations against steps, and the last of each run; runs of one kind share a colour."""
    runs, kinds = distinct(rows, "run"), distinct(rows, "task", "arm", "learner")
    figure, axes = new_axes(2, width=5.0, height=max(3.6, 0.3 * len(runs)))
    curves, ends = axes[0]
    sentences = []
    for colour, kind in zip(cycle(COLOURS), kinds, strict=False):
        own = of(rows, task=kind[0], arm=kind[1], learner=kind[2])
        label = (
            f"{TITLES[kind[0]]}: {label_of(own[0])}" if len(distinct(rows, "task")) > 1 else label_of(own[0])
        )
        lasts = []
        for number, run in enumerate(distinct(own, "run")):
            course = sorted(of(own, run=run), key=lambda row: row["steps"])
            x, y = ([row[name] for row in course] for name in ("steps", "success"))
            curves.plot(x, y, color=colour, marker="o", markersize=3, label=None if number else label)
            lasts.append(course[-1])
        for last in lasts:
            place, success = -runs.index(last["run"]), last["success"]
            error = [[max(success - last["low"], 0)], [max(last["high"] - success, 0)]]
            ends.errorbar(success, place, xerr=error, color=colour, marker="o", capsize=3)
            style = {"textcoords": "offset points", "xytext": (6, -3), "fontsize": 8}
            ends.annotate(f"{success:.1%}", (last["high"], place), **style)
        sentences.append(f"{label} {_said(lasts)}")
    curves.set(xlabel="steps of training", ylabel="success on held-out levels or tasks", ylim=(0, 1))
    curves.set_xlim(0, None)
    curves.legend(frameon=False, fontsize=8)
    ends.set_yticks([-place for place in range(len(runs))], runs)
    ends.set(xlabel="last evaluation (95% interval)", xlim=(0, 1.08), ylim=(-len(runs) + 0.5, 0.5))
    ends.grid(axis="y", visible=False)
    figure.suptitle(" and ".join(TITLES[task] for task in distinct(rows, "task")))
    return Drawn(figure, "Success at the last evaluation: " + "; ".join(sentences) + ".")


def _said(lasts: Sequence[Row]) -> str:
    """The last evaluations of runs of one kind, in words."""
    successes = [row["success"] for row in lasts]
    words = f"{np.mean(successes):.1%}"
    if len(lasts) > 1:
        words += f" (from {min(successes):.1%} to {max(successes):.1%} over {len(lasts)} runs)"
    optimal = [row["optimal_actions"] for row in lasts if row["optimal_actions"] is not None]
    return words + (f", {np.mean(optimal):.1%} of actions optimal" if optimal else "")


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
            _draw_curves(axis, own, measure)
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
        axis.annotate(f"{mean:.1%}", (mean, at), **style)
    axis.set_yticks([-place for place in range(len(ends))], [ARMS[row["arm"]] for row in ends])
    axis.set(title="last evaluation", xlim=(-0.02, 1.02), ylim=(-len(ends) + 0.4, 0.6))
    axis.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axis.set_xlabel("bar: 95% over levels; line: 95% over seeds", fontsize=8)
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


ABOUT = ("run", "task", "arm", "learner")
"""What every table says of the run in a row."""
FIGURES = {
    "probes": FigureKind(
        (*ABOUT, "place", "push", "seed", "correct", "tested", "accuracy", "classes"), _probes
    ),
    "difficulty": FigureKind(
        (*ABOUT, "measure", "outcome", "remaining", "states", "levels", "loops", "low", "high"), _difficulty
    ),
    "histogram": FigureKind((*ABOUT, "loops", "decisions"), _histogram),
    "caps": FigureKind(
        (*ABOUT, "rule", "max_loops", "threshold", "success", "low", "high", "loops", "flops"), _caps
    ),
    "curves": FigureKind(
        (*ABOUT, "seed", "steps", "played", "solved", "success", "loops", "optimal_actions", "paper"), _curves
    ),
    "worlds": FigureKind(
        ("task", "learner", "arm", "number", "success", "deviation", "paper", "paper_deviation"), _worlds
    ),
    "separation": FigureKind(("n", "fixed", "adaptive", "most", "hard", "ratio", "bound"), _separation),
    "compare": FigureKind((*ABOUT, "steps", "success", "low", "high", "loops", "optimal_actions"), _compare),
}
