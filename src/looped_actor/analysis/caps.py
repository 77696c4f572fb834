"""Success when a policy is made to think less or more than in training, or from elsewhere, and its cost."""

from collections.abc import Sequence
from itertools import cycle, product
from typing import Any

import numpy as np
from jax.sharding import Mesh

from looped_actor.analysis.drawing import ABOUT, COLOURS, TITLES, Drawn, FigureKind, label_of, new_axes
from looped_actor.analysis.requests import CapsRequest, FrontierRequest
from looped_actor.analysis.study import (
    Stage,
    Subject,
    evaluated,
    finish,
    parts_of,
    quietly,
    repeats,
    shares,
    subjects,
)
from looped_actor.analysis.tables import Row, distinct, measure_of, of
from looped_actor.evaluation.requests import EvaluationRequest
from looped_actor.policy.policy import Policy


def analyse_caps(policies: Sequence[Policy], request: CapsRequest, mesh: Mesh, stage: Stage = quietly) -> str:
    """Success of some runs at caps, thresholds and fixed numbers of loops, and its FLOPs."""
    # Adaptive decisions keep the minimum number of loops that the policy was trained with.
    settings: list[Any] = [
        ("adaptive", cap, threshold, None) for threshold in request.thresholds for cap in request.caps
    ]
    settings += [("fixed", loops, None, loops) for loops in request.fixed]
    rows: list[Row] = []
    for subject in subjects(policies, mesh):
        _ = subject.halting  # or it says that there is nothing to look at
        for rule, cap, threshold, least in settings:
            asked = EvaluationRequest(
                levels=request.levels,
                count=request.count,
                max_loops=cap,
                min_loops=least,
                threshold=threshold,
            )
            parts, what = parts_of(request.out, "caps"), f"{rule}, {cap} loops"
            facts = evaluated(subject, asked, mesh, parts, stage, what)
            rows.append(
                {
                    **subject.about,
                    "rule": rule,
                    "max_loops": cap,
                    "threshold": threshold,
                    **_achieved(subject, facts),
                }
            )
    return finish(request.out, "caps", rows, CAPS)


def _achieved(subject: Subject, facts: dict[str, Any]) -> Row:
    """What every row says of what was played."""
    flops = subject.run.count(facts["loops"]).flops_per_decision
    return {
        **shares(facts),
        "returns": facts.get("returns"),
        "loops": facts["loops"],
        **repeats(facts),
        "flops": flops,
    }


def _draw(rows: Sequence[Row]) -> Drawn:
    """Success, or the return, against the cap at test time, and against the FLOPs of a decision."""
    measure = measure_of(rows)
    told = measure == "success"
    label = "success (95% interval)" if told else "mean return"
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
            value, low, high = (np.array([row[name] for row in some]) for name in (measure, "low", "high"))
            error = np.maximum([value - low, high - value], 0) if told else None
            name = f"{run}: {rule}" + ("" if fixed else f", threshold {threshold:g}")
            by_cap.errorbar([row["max_loops"] for row in some], value, error, label=name, **style)
            by_flops.errorbar([row["flops"] / 1e6 for row in some], value, error, **style)
        sentences.append(_best_settings(own, measure))
    caps = sorted(distinct(rows, "max_loops"))
    by_cap.set(xlabel="cap, or fixed loops, at test time", ylabel=label, xscale="log")
    by_cap.set_xticks(caps, [str(cap) for cap in caps])
    by_cap.minorticks_off()
    by_flops.set(xlabel="MFLOPs of a decision, mean")
    for axis in (by_cap, by_flops) if told else ():
        axis.set_ylim(0, None)
    handles, names = by_cap.get_legend_handles_labels()
    by_flops.legend(handles, names, frameon=False, fontsize=8, loc="lower right")
    kinds = dict.fromkeys(f"{TITLES[row['task']]}, {label_of(row)}" for row in rows)
    figure.suptitle(f"Thinking less or more than in training: {'; '.join(kinds)}")
    return Drawn(figure, " ".join(sentences))


def _best_settings(rows: Sequence[Row], measure: str) -> str:
    """The best adaptive and the best fixed setting of a run; of equals the cheapest."""

    def best(rule: str) -> Row | None:
        return max(of(rows, rule=rule), key=lambda row: (row[measure], -row["flops"]), default=None)

    said = []
    for name, row in (("adaptive", best("adaptive")), ("fixed", best("fixed"))):
        if row is not None:
            rule = (
                f"cap {row['max_loops']}, threshold {row['threshold']:g}"
                if name == "adaptive"
                else (f"{row['max_loops']} loops")
            )
            cost = f"{row['loops']:.1f} loops and {row['flops'] / 1e6:.3g} MFLOPs a decision"
            does = f"solves {row['success']:.1%}" if measure == "success" else f"returns {row['returns']:.3g}"
            said.append(f"the best {name} setting ({rule}) {does} with {cost}")
    return f"{TITLES[rows[0]['task']]}, {label_of(rows[0])}: {', and '.join(said)}."


CAPS = FigureKind(
    (*ABOUT, "rule", "max_loops", "threshold", "success", "low", "high", "loops", "flops"), _draw
)


def analyse_frontier(
    policies: Sequence[Policy], request: FrontierRequest, mesh: Mesh, stage: Stage = quietly
) -> str:
    """What success some runs have for how many loops: over starts, minimum loops and thresholds."""
    rows: list[Row] = []
    for subject in subjects(policies, mesh):
        cap = subject.halting.max_loops
        for start, least, threshold in product(request.starts, request.min_loops, request.thresholds):
            how: Any = {"start": start, "min_loops": min(least, cap), "threshold": threshold}
            asked = EvaluationRequest(levels=request.levels, count=request.count, **how)
            what = f"{start} start, from {least} loops, threshold {threshold:g}"
            facts = evaluated(subject, asked, mesh, parts_of(request.out, "frontier"), stage, what)
            trained = {"trained_start": str(subject.policy.starting)}
            rows.append({**subject.about, **trained, **how, **_achieved(subject, facts)})
    return finish(request.out, "frontier", rows, FRONTIER)


def _draw_frontier(rows: Sequence[Row]) -> Drawn:
    """Draw success, or the return, against mean loops: a line for each run, start and minimum.

    For each environment a panel over all decisions, and one over states that are new in their episode, if
    the table tells them apart.
    """
    tasks, measure = distinct(rows, "task"), measure_of(rows)
    told = measure == "success"
    costs = {"loops": "mean loops of a decision"}
    if all(row.get("loops_new_states") is not None for row in rows):
        costs["loops_new_states"] = "mean loops where the state is new in its episode"
    panels = list(product(tasks, costs))
    figure, axes = new_axes(len(panels), width=6.2 if len(costs) == 1 else 5.4, height=4.4)
    colours = dict(zip(distinct(rows, "run"), cycle(COLOURS), strict=False))
    for axis, (task, cost) in zip(axes[0], panels, strict=True):
        here = of(rows, task=task)
        for run, start, least in distinct(here, "run", "start", "min_loops"):
            some = sorted(of(here, run=run, start=start, min_loops=least), key=lambda row: row[cost])
            value, low, high = (np.array([row[name] for row in some]) for name in (measure, "low", "high"))
            axis.errorbar(
                [row[cost] for row in some],
                value,
                np.maximum([value - low, high - value], 0) if told else None,
                label=f"{run}: {start}, from {least}",
                color=colours[run],
                linestyle=":" if start == "fixed" else "-",
                marker="o" if least > 1 else "^",
                markersize=4,
                linewidth=1.1,
                elinewidth=0.6,
            )
        label = "success (95% interval)" if told else "mean return"
        axis.set(title=TITLES[task], xlabel=costs[cost], ylabel=label)
        axis.set_xlim(0, None)
        axis.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    figure.suptitle("What loops buy: each point is a threshold")
    said = (_cheapest(of(rows, run=run), measure) for run in distinct(rows, "run"))
    return Drawn(figure, " ".join(said))


def _cheapest(rows: Sequence[Row], measure: str) -> str:
    """The best setting of a run for each start, and the cheapest that is not clearly behind the best."""

    def value(row: Row) -> str:
        return f"{row['success']:.1%}" if measure == "success" else f"a return of {row['returns']:.3g}"

    said = []
    for start in distinct(rows, "start"):
        best = max(of(rows, start=start), key=lambda row: (row[measure], -row["loops"]))
        said.append(f"{start} start at best {value(best)} with {_loops_of(best)}")
    which = f"{rows[0]['run']} ({TITLES[rows[0]['task']]}, {label_of(rows[0])})"
    if measure != "success":  # returns have no interval that could tell which is clearly behind
        return f"{which}: {', '.join(said)}."
    floor = max(row["low"] for row in rows)
    least = min((row for row in rows if row["high"] >= floor), key=lambda row: row["loops"])
    how = f"{least['start']} start, from {least['min_loops']}, threshold {least['threshold']:g}"
    cheapest = f"the fewest loops not clearly behind: {_loops_of(least)} with {value(least)} ({how})"
    return f"{which}: {', '.join(said)}; {cheapest}."


def _loops_of(row: Row) -> str:
    """Return the mean loops of a row in words."""
    on_new = row.get("loops_new_states")
    return f"{row['loops']:.2f} loops" + ("" if on_new is None else f" ({on_new:.2f} on new states)")


FRONTIER = FigureKind(
    (*ABOUT, "start", "min_loops", "threshold", "success", "low", "high", "loops", "flops"), _draw_frontier
)
