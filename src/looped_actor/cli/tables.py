"""What was timed or planned, as tables for a terminal."""

from typing import TYPE_CHECKING, Any

from rich.table import Table

from looped_actor.utils.codec import field_paths, field_value

if TYPE_CHECKING:
    from looped_actor.planning.bench_gradient import LoopTiming
    from looped_actor.planning.bench_work import Saving
    from looped_actor.planning.plan import Plan
    from looped_actor.planning.tune import Tuned
    from looped_actor.policy.card import Card
    from looped_actor.runs.config import RunConfig
    from looped_actor.runs.run import Estimate

MOST_PARTS = 8
"""Of a program that are shown."""


def gradient_table(timings: "dict[str, LoopTiming]", batch: int) -> Table:
    """Gradients of a minibatch, by the depths that were asked for."""
    from looped_actor.planning.depths import MAX_LOOPS

    title = f"time of a gradient of {batch} examples, relative to a frozen scan of {MAX_LOOPS} loops"
    titles = ("mean", "mean/16", "Packed", "Iso-FLOPs", "Packed/\nchunked", "executed/\nasked")
    table = _table(title, "loops like", *titles)
    for name, t in timings.items():
        ratios = (t.mean_loops / MAX_LOOPS, *t[1:])
        table.add_row(name, f"{t.mean_loops:.1f}", *("-" if r is None else f"{r:.3f}" for r in ratios))
    return table


def savings_table(savings: "dict[str, Saving]", what: str, devices: int) -> Table:
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


def plan_tables(plan: "Plan") -> list[Table]:
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


def serving_table(facts: dict[str, Any]) -> Table:
    """What two servers of one policy did."""
    title = f"{facts['task']}: thoughts of {facts['mean_loops']:.1f} loops; latencies in milliseconds"
    table = _table(title, "", "slots", "batches", "ratio")
    most = facts["saturation"]
    table.add_row(
        "answers per second, at most",
        *(f"{most[way]:.0f}" for way in most),
        f"{facts['throughput_ratio']:.2f}",
    )
    for name, told in facts.items():
        if not name.startswith("at_"):
            continue
        table.add_section()
        for quantile in ("p50", "p95", "p99"):
            slots, batches = (1000 * told[way][quantile] for way in most)
            row = f"{slots:.1f}", f"{batches:.1f}", f"{slots / batches:.2f}"
            table.add_row(f"{quantile} at {told['per_second']:.0f} per second", *row)
    engine = facts["engine"]
    table.caption = (
        f"the engine alone: {engine['loops_per_second']:.0f} loops per second, "
        f"{engine['share_of_streaming']:.2f} of Streaming"
    )
    return table


def tuned_table(tuned: "Tuned") -> Table:
    """What was timed to find what suits a kind of device."""
    title = f"{tuned.kind}: the paper's net; time relative to the default, the first of each"
    table = _table(title, "", "computed at once", "time")
    for what, times, best in (
        ("an update, in chunks", tuned.chunks, tuned.chunk),
        ("a rollout, in slots", tuned.slots, tuned.slot),
    ):
        for size, time in times.items():
            table.add_row(what, f"{size}, chosen" if size == best else str(size), f"{time:.3f}")
        table.add_section()
    return table


def cost_tables(config: "RunConfig", cost: "Estimate") -> list[Table]:
    """What a run would do, and take."""
    fields, table = Table(title="configuration", show_header=False), Table(title="cost", show_header=False)
    for path in field_paths(config):
        fields.add_row(path, str(field_value(config, path)))
    counted, hours = cost.counted, cost.seconds / 3600
    kind = "device" if cost.devices == 1 else "devices"
    table.add_row("parameters", f"{counted.parameters:,}")
    if cost.max_loops:  # critics alone decide nothing
        flops = f"{counted.flops_per_decision / 1e6:,.1f} MFLOPs"
        table.add_row(f"a decision, at {cost.max_loops} loops", flops)
    for name, value in (
        (cost.step, f"{counted.flops_per_step / 1e6:,.1f} MFLOPs"),
        ("the whole run, at most", f"{counted.flops_per_step * config.total_steps:.2e} FLOPs"),
        ("iterations and updates", f"{cost.iterations:,} and {cost.updates:,}"),
        ("memory: parameters and optimiser", f"{cost.state_bytes / 2**20:,.1f} MiB"),
        (f"memory: {cost.experience}", f"{cost.experience_bytes / 2**20:,.1f} MiB"),
        ("memory: an update, on each device", f"{cost.update_bytes / 2**20:,.1f} MiB"),
        (
            f"time on {cost.devices} {kind} like this one",
            f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:,.0f} min",
        ),
    ):
        table.add_row(name, value)
    return [fields, table]


def evaluation_table(facts: dict[str, Any]) -> Table:
    """What a policy achieved, by the length of the optimal solution or by task."""
    puzzle = "bank" in facts
    played = "levels" if puzzle else "episodes"
    title = f"{facts['policy']} on {facts['bank' if puzzle else 'task']}"
    first = "optimal moves" if puzzle else "task"
    achieved = ("solved", "95% interval") if "success" in facts else ("mean return",)
    loops = "loops", "new states", "repeats"
    table = _table(title, first, played, *achieved, *loops, "steps")
    if facts.get("options"):
        given = ", ".join(f"{name} {value}" for name, value in facts["options"].items())
        table.caption = f"not as in training or by default: {given}"

    def add(name: str, row: dict[str, Any]) -> None:
        loops, new = (_written(row, key, ".2f") for key in ("loops", "loops_new_states"))
        repeats = _written(row, "repeated_share", ".0%")
        if "success" in facts:
            low, high = row["interval_95"]
            cells = f"{row['success']:.1%}", f"{low:.1%} - {high:.1%}"
        else:
            cells = (f"{row['returns']:.4g}",)
        table.add_row(name, f"{row[played]:,}", *cells, loops, new, repeats, f"{row['mean_steps']:.1f}")

    for row in facts.get("by_optimal_moves", ()):
        low, high = row["moves"]
        add(f"{low} - {high}" if low != high else str(low), row)
    for name, row in facts.get("by_task", {}).items():
        add(name, row)
    table.add_section()
    for name, row in facts.get("by_outcome", {}).items():
        add(name, row)
    add("all", facts)
    for name, row in facts.get("baselines", {}).items():
        add(name, row)
    return table


def _written(row: dict[str, Any], key: str, form: str) -> str:
    """Return a number of a row; a dash where it is not known, as in records of older versions."""
    return f"{row[key]:{form}}" if key in row else "-"


def _table(title: str, first: str, *titles: str) -> Table:
    table = Table(title=title)
    table.add_column(first, no_wrap=True)
    for name in titles:
        table.add_column(name, justify="right")
    return table


def policies_table(cards: "dict[str, Card]", sizes: dict[str, int]) -> Table:
    """What comes trained with the package."""
    table = _table("Trained policies", "name", "learner", "solved (95% interval)", "loops", "weights")
    for name, card in cards.items():
        low, high = card.interval_95 or (float("nan"),) * 2
        solved = "-" if card.success is None else f"{card.success:.1%} ({100 * low:.1f} - {100 * high:.1f})"
        loops = f"{card.loops or float('nan'):.1f} of {card.max_loops}"
        table.add_row(name, card.learner, solved, loops, f"{sizes[name] / 1024:.0f} KiB")
    return table
