"""What was timed or planned, as tables for a terminal."""

from typing import Any

from rich.table import Table

from looped_actor.bench.depths import MAX_LOOPS
from looped_actor.bench.gradient import LoopTiming
from looped_actor.bench.plan import Plan
from looped_actor.bench.work import Saving

MOST_PARTS = 8
"""Of a program that are shown."""


def gradient_table(timings: dict[str, LoopTiming], batch: int) -> Table:
    """Gradients of a minibatch, by the depths that were asked for."""
    title = f"time of a gradient of {batch} examples, relative to a frozen scan of {MAX_LOOPS} loops"
    titles = ("mean", "mean/16", "Packed", "Iso-FLOPs", "Packed/\nchunked", "executed/\nasked")
    table = _table(title, "loops like", *titles)
    for name, t in timings.items():
        ratios = (t.mean_loops / MAX_LOOPS, *t[1:])
        table.add_row(name, f"{t.mean_loops:.1f}", *("-" if r is None else f"{r:.3f}" for r in ratios))
    return table


def savings_table(savings: dict[str, Saving], what: str, devices: int) -> Table:
    """What halting saves in each kind of work."""
    cap = next(iter(savings.values())).max_loops
    many = "device" if devices == 1 else "devices"
    titles = (
        "mean loops",
        f"ideal\n(mean/{cap})",
        "looped",
        "Iso-FLOPs",
        "executed/\nasked",
        "loops/s\nover bare",
    )
    table = _table(f"{what}, {devices} {many}: time relative to {cap} loops for all", "", *titles)
    for name, saving in savings.items():
        ratios = (
            saving.mean_loops / cap,
            saving.over_frozen,
            saving.iso_flops_over_frozen,
            saving.executed_over_asked,
            saving.over_bare,
        )
        table.add_row(name, f"{saving.mean_loops:.1f}", *(f"{ratio:.3f}" for ratio in ratios))
    return table


def arms_table(task: str, batch: int, mean: float | None, rows: dict[str, dict[str, Any]]) -> Table:
    """What the arms of a task cost."""
    mean_title = f"at {mean:g}" if mean else "at mean"
    titles = ("parameters", "tokens", "loops", "at 1", mean_title, "at most", f"update of {batch}")
    table = _table(f"{task}: the paper's arms", "arm", *titles)
    table.caption = "MFLOPs per decision; memory beyond parameters and data"
    for name, row in rows.items():
        flops = [row[f"flops_at_{at}"] for at in ("1", "mean", "max")]
        table.add_row(
            name,
            f"{row['parameters']:,}",
            "-" if row["tokens"] is None else str(row["tokens"]),
            str(row["max_loops"]),
            *("-" if f is None else f"{f / 1e6:,.0f}" for f in flops),
            f"{row['update_bytes'] / 2**30:.2f} GiB",
        )
    return table


def plan_tables(plan: Plan) -> list[Table]:
    """A run on chips that are not here: the whole, and the longest loops of each program."""
    whole = Table(title=f"{plan.topology}: estimated, not measured", show_header=False)
    peak = plan.flops / (plan.seconds * plan.chips * plan.peak) if plan.seconds else 0.0
    for name, value in (
        ("memory of a chip", f"{plan.memory / 2**30:.2f} of {plan.has / 2**30:.0f} GiB"),
        ("an iteration", f"{plan.seconds:.3f} s at {plan.loops:.1f} loops"),
        (f"the run, {plan.iterations:,} iterations", f"{plan.hours:,.1f} h, without evaluations"),
        ("FLOPs of an iteration", f"{plan.flops:.2e}, {peak:.1%} of what the chips could do"),
        ("bound by", plan.bound),
        ("exchanged in an iteration", f"{plan.exchanged / 1e6:,.2f} MB by each chip"),
        ("compiled in", f"{plan.compiling:,.0f} s"),
    ):
        whole.add_row(name, value)
    tables = [whole]
    for program, parts in plan.programs.items():
        total = sum(part.total for part in parts)
        titles = ("passes", "kernels", "MB", "microseconds", "share", "bound by")
        table = _table(f"{program}: {total:.3f} s; of one pass", "loop", *titles)
        for part in parts[:MOST_PARTS]:
            share = part.total / total if total else 0.0
            numbers = f"{part.passes:,.0f}", f"{part.kernels:.0f}", f"{part.bytes / 1e6:,.2f}"
            table.add_row(part.name, *numbers, f"{part.seconds * 1e6:,.1f}", f"{share:.0%}", part.bound)
        tables.append(table)
    return tables


def _table(title: str, first: str, *titles: str) -> Table:
    table = Table(title=title)
    table.add_column(first, no_wrap=True)
    for name in titles:
        table.add_column(name, justify="right")
    return table
