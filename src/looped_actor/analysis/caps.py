"""Success of policies with a changed loop: other caps, thresholds, minimum loops and initial latents."""

from collections.abc import Sequence
from itertools import cycle, product
from typing import Any

from jax.sharding import Mesh

from looped_actor.analysis.drawing import (
    COLOURS,
    RUN_COLUMNS,
    TITLES,
    CaptionedFigure,
    FigureKind,
    Measure,
    choose_measure,
    full_label,
    label_of,
    new_axes,
)
from looped_actor.analysis.options import CapsOptions, FrontierOptions
from looped_actor.analysis.study import (
    Analysis,
    ProgressFactory,
    name_policies,
    repeat_columns,
    require_loops,
    run_columns,
    silent,
    success_columns,
)
from looped_actor.analysis.tables import Row, distinct, rows_where
from looped_actor.evaluation.options import EvaluationOptions
from looped_actor.policy.policy import Policy

START_NAMES = {False: "fixed", True: "carried"}
"""Latents that decisions start from, by `carry_latent`, in tables."""


def analyze_caps(
    policies: Sequence[Policy], options: CapsOptions, mesh: Mesh, progress: ProgressFactory = silent
) -> str:
    """Evaluate policies at other caps and thresholds, and with fixed numbers of loops."""
    analysis = Analysis(CAPS, options.out, mesh, progress)
    settings: list[dict[str, Any]] = [
        {"rule": "adaptive", "max_loops": cap, "threshold": threshold}
        for threshold, cap in product(options.thresholds, options.caps)
    ]
    settings += [{"rule": "fixed", "max_loops": loops, "threshold": None} for loops in options.fixed]
    rows: list[Row] = []
    for name, policy in name_policies(policies).items():
        require_loops(policy)
        for setting in settings:
            rule, cap = setting["rule"], setting["max_loops"]
            changed = EvaluationOptions(
                levels=options.levels,
                count=options.count,
                max_loops=cap,
                min_loops=cap if rule == "fixed" else None,  # None: as in training
                threshold=setting["threshold"],
            )
            results = analysis.evaluate(name, policy, changed, f"{rule}, {cap} loops")
            rows.append({**run_columns(name, policy.config), **setting, **_result_columns(policy, results)})
    return analysis.finish(rows)


def _result_columns(policy: Policy, results: dict[str, Any]) -> Row:
    return {
        **success_columns(results),
        "returns": results.get("returns"),
        "loops": results["loops"],
        **repeat_columns(results),
        "flops": policy.spec.net.flops(policy.spec.observations(1), results["loops"]),
    }


def _draw_caps(rows: Sequence[Row]) -> CaptionedFigure:
    """Draw success, or the return, against the cap, and against FLOPs."""
    measure = choose_measure(rows)
    figure, axes = new_axes(2)
    by_cap, by_flops = axes[0]
    colours, sentences = cycle(COLOURS), []
    for run in distinct(rows, "run"):
        own = rows_where(rows, run=run)
        for rule, threshold in distinct(own, "rule", "threshold"):
            line = sorted(rows_where(own, rule=rule, threshold=threshold), key=lambda row: row["max_loops"])
            fixed = rule == "fixed"
            style = {"linestyle": "--" if fixed else "-", "marker": "s" if fixed else "o", "markersize": 4}
            style |= {"color": next(colours), "capsize": 2, "linewidth": 1.2}
            values, errors = measure.values(line)
            label = f"{run}: {rule}" + ("" if fixed else f", threshold {threshold:g}")
            by_cap.errorbar([row["max_loops"] for row in line], values, errors, label=label, **style)
            by_flops.errorbar([row["flops"] / 1e6 for row in line], values, errors, **style)
        best = (_best_setting(own, rule, measure) for rule in distinct(own, "rule"))
        sentences.append(f"{full_label(own[0])}: {', and '.join(best)}.")
    caps = sorted(distinct(rows, "max_loops"))
    by_cap.set(xlabel="cap, or fixed number of loops", ylabel=measure.axis, xscale="log")
    by_cap.set_xticks(caps, [str(cap) for cap in caps])
    by_cap.minorticks_off()
    by_flops.set(xlabel="mean MFLOPs per decision")
    for axis in (by_cap, by_flops) if measure.has_interval else ():
        axis.set_ylim(0, None)
    handles, names = by_cap.get_legend_handles_labels()
    by_flops.legend(handles, names, frameon=False, fontsize=8, loc="lower right")
    kinds = dict.fromkeys(f"{TITLES[row['task']]}, {label_of(row)}" for row in rows)
    figure.suptitle(f"Fewer or more loops than in training: {'; '.join(kinds)}")
    return CaptionedFigure(figure, " ".join(sentences))


def _best_setting(rows: Sequence[Row], rule: str, measure: Measure) -> str:
    """Return the best setting of one rule, in words; of several equally good ones, the cheapest."""
    best = max(rows_where(rows, rule=rule), key=lambda row: (row[measure.column], -row["flops"]))
    loops = f"{best['max_loops']} loops"
    setting = loops if rule == "fixed" else f"cap {best['max_loops']}, threshold {best['threshold']:g}"
    cost = f"{best['loops']:.1f} loops and {best['flops'] / 1e6:.3g} MFLOPs per decision"
    return f"the best {rule} setting ({setting}) {measure.phrase(best)} with {cost}"


CAPS = FigureKind(
    "caps",
    (*RUN_COLUMNS, "rule", "max_loops", "threshold", "success", "low", "high", "loops", "flops"),
    _draw_caps,
)


def analyze_frontier(
    policies: Sequence[Policy], options: FrontierOptions, mesh: Mesh, progress: ProgressFactory = silent
) -> str:
    """Evaluate policies with fresh and carried latents, at several minimum loops and thresholds."""
    analysis = Analysis(FRONTIER, options.out, mesh, progress)
    rows: list[Row] = []
    for name, policy in name_policies(policies).items():
        cap = require_loops(policy).max_loops
        for carry_latent, least, threshold in product(
            options.carry_latent, options.min_loops, options.thresholds
        ):
            start, min_loops = START_NAMES[carry_latent], min(least, cap)
            changed = EvaluationOptions(
                levels=options.levels,
                count=options.count,
                carry_latent=carry_latent,
                min_loops=min_loops,
                threshold=threshold,
            )
            step = f"{start} latent, min_loops {min_loops}, threshold {threshold:g}"
            results = analysis.evaluate(name, policy, changed, step)
            rows.append(
                {
                    **run_columns(name, policy.config),
                    "trained_start": START_NAMES[policy.carry_latent],
                    "start": start,
                    "min_loops": min_loops,
                    "threshold": threshold,
                    **_result_columns(policy, results),
                }
            )
    return analysis.finish(rows)


def _draw_frontier(rows: Sequence[Row]) -> CaptionedFigure:
    """Draw success, or the return, against mean loops: a line for each run, start and minimum.

    Each environment has a panel over all decisions, and one over new states if the table has them.
    """
    tasks, measure = distinct(rows, "task"), choose_measure(rows)
    costs = {"loops": "mean loops per decision"}
    if all(row.get("loops_new_states") is not None for row in rows):
        costs["loops_new_states"] = "mean loops in states that are new in their episode"
    panels = list(product(tasks, costs))
    figure, axes = new_axes(len(panels), width=6.2 if len(costs) == 1 else 5.4, height=4.4)
    colours = dict(zip(distinct(rows, "run"), cycle(COLOURS), strict=False))
    for axis, (task, cost) in zip(axes[0], panels, strict=True):
        of_task = rows_where(rows, task=task)
        for run, start, least in distinct(of_task, "run", "start", "min_loops"):
            line = rows_where(of_task, run=run, start=start, min_loops=least)
            line = sorted(line, key=lambda row: row[cost])
            axis.errorbar(
                [row[cost] for row in line],
                *measure.values(line),
                label=f"{run}: {start} latent, min_loops {least}",
                color=colours[run],
                linestyle=":" if start == "fixed" else "-",
                marker="o" if least > 1 else "^",
                markersize=4,
                linewidth=1.1,
                elinewidth=0.6,
            )
        axis.set(title=TITLES[task], xlabel=costs[cost], ylabel=measure.axis)
        axis.set_xlim(0, None)
        axis.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    figure.suptitle("Results at different mean loops: each point is one threshold")
    captions = (_frontier_caption(rows_where(rows, run=run), measure) for run in distinct(rows, "run"))
    return CaptionedFigure(figure, " ".join(captions))


def _frontier_caption(rows: Sequence[Row], measure: Measure) -> str:
    """Return the best setting of a run with each start, and the cheapest that may be as good, in words."""
    sentences = []
    for start in distinct(rows, "start"):
        own = rows_where(rows, start=start)
        best = max(own, key=lambda row: (row[measure.column], -row["loops"]))
        sentences.append(f"starting from a {start} latent, the best setting {_describe(best, measure)}")
    if measure.has_interval:
        highest = max(row["low"] for row in rows)
        overlaps = [row for row in rows if row["high"] >= highest]
        cheapest = min(overlaps, key=lambda row: row["loops"])
        setting = (
            f"{cheapest['start']} latent, min_loops {cheapest['min_loops']}, "
            f"threshold {cheapest['threshold']:g}"
        )
        sentences.append(
            f"the cheapest setting whose interval overlaps that of the best ({setting}) "
            f"{_describe(cheapest, measure)}"
        )
    return f"{full_label(rows[0])}: {'; '.join(sentences)}."


def _describe(row: Row, measure: Measure) -> str:
    in_new_states = row.get("loops_new_states")
    new = "" if in_new_states is None else f" ({in_new_states:.2f} in new states)"
    return f"{measure.phrase(row)} with {row['loops']:.2f} loops per decision{new}"


FRONTIER = FigureKind(
    "frontier",
    (*RUN_COLUMNS, "start", "min_loops", "threshold", "success", "low", "high", "loops", "flops"),
    _draw_frontier,
)
