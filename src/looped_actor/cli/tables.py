"""Tables for a terminal."""

from typing import TYPE_CHECKING, Any

from rich.table import Table

from looped_actor.utils.codec import field_paths, field_value

if TYPE_CHECKING:
    from looped_actor.planning.estimate import Estimate
    from looped_actor.planning.plan import Plan
    from looped_actor.planning.tune import TimedSizes
    from looped_actor.policy.card import Card
    from looped_actor.runs.config import RunConfig

MAX_LOOPS_SHOWN = 8
"""Loops of a compiled program."""


def config_table(config: "RunConfig") -> Table:
    """Return all fields of a configuration."""
    table = Table(title="configuration", show_header=False)
    for path in field_paths(config):
        table.add_row(path, str(field_value(config, path)))
    return table


def arms_table(task: str, scale: str, arms: dict[str, dict[str, Any]]) -> Table:
    """Return parameters and FLOPs of all arms of a preset."""
    titles = ("parameters", "loops", "per decision", "per step")
    table = _table(f"{task}, {scale}: arms", "arm", *titles)
    table.caption = "MFLOPs at the cap; a step is acting and learning, or a gradient step"
    for name, row in arms.items():
        table.add_row(
            name,
            f"{row['parameters']:,}",
            str(row["max_loops"]),
            f"{row['flops_per_decision'] / 1e6:,.1f}",
            f"{row['flops_per_step'] / 1e6:,.1f}",
        )
    return table


def estimate_table(estimate: "Estimate", title: str) -> Table:
    """Return the cost of a run."""
    table = Table(title=title, show_header=False)
    counts = estimate.counts
    table.add_row("parameters that are trained", f"{counts.parameters:,}")
    if estimate.max_loops:  # critics alone make no decisions
        flops = f"{counts.flops_per_decision / 1e6:,.1f} MFLOPs"
        table.add_row(f"a decision, at {estimate.max_loops} loops", flops)
    memory = "-" if estimate.update_bytes is None else f"{estimate.update_bytes / 2**20:,.1f} MiB"
    for name, value in (
        (estimate.step, f"{counts.flops_per_step / 1e6:,.1f} MFLOPs"),
        ("the whole run, at the cap", f"{estimate.flops:.2e} FLOPs"),
        ("iterations and updates", f"{estimate.iterations:,} and {estimate.updates:,}"),
        ("memory: parameters and optimizer", f"{estimate.state_bytes / 2**20:,.1f} MiB"),
        (f"memory: {estimate.experience}", f"{estimate.experience_bytes / 2**20:,.1f} MiB"),
        ("memory: a gradient, on each device", memory),
    ):
        table.add_row(name, value)
    if estimate.seconds is not None:
        hours, kind = estimate.seconds / 3600, "device" if estimate.devices == 1 else "devices"
        time = f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:,.0f} min"
        table.add_row(f"time on {estimate.devices} {kind} like this one", time)
    return table


def sizes_table(sizes: "TimedSizes") -> Table:
    """Return the times of candidates for microbatch and slots."""
    table = _table(f"{sizes.device}: time relative to the default, which comes first", "", "size", "time")
    for name, times in (("microbatch", sizes.microbatches), ("slots", sizes.slots)):
        for size, time in times.items():
            best = size == sizes.changes[name]
            table.add_row(name, f"{size}, fastest" if best else str(size), f"{time:.3f}")
        table.add_section()
    return table


def plan_tables(plan: "Plan") -> list[Table]:
    """Return a run on chips that are not attached: the whole, and the longest loops of each program."""
    whole = Table(title=f"{plan.topology}: estimated, not measured", show_header=False)
    peak = plan.flops / (plan.seconds * plan.chips * plan.peak) if plan.seconds else 0.0
    for name, value in (
        ("memory of a chip", f"{plan.memory / 2**30:.2f} of {plan.chip_memory / 2**30:.0f} GiB"),
        ("an iteration", f"{plan.seconds:.3f} s at {plan.mean_loops:.1f} loops"),
        (f"the run, {plan.iterations:,} iterations", f"{plan.hours:,.1f} h, without evaluations"),
        ("FLOPs of an iteration", f"{plan.flops:.2e}, {peak:.1%} of the peak"),
        ("bound by", plan.bound),
        ("exchanged in an iteration", f"{plan.collective_bytes / 1e6:,.2f} MB by each chip"),
        ("compiled in", f"{plan.compile_seconds:,.0f} s"),
    ):
        whole.add_row(name, value)
    tables = [whole]
    for program, loops in plan.programs.items():
        total = sum(loop.total for loop in loops)
        titles = ("passes", "kernels", "MB", "microseconds", "share", "bound by")
        table = _table(f"{program}: {total:.3f} s; of one pass", "loop", *titles)
        for loop in loops[:MAX_LOOPS_SHOWN]:
            share = loop.total / total if total else 0.0
            numbers = f"{loop.passes:,.0f}", f"{loop.kernels:.0f}", f"{loop.bytes / 1e6:,.2f}"
            table.add_row(loop.name, *numbers, f"{loop.seconds * 1e6:,.1f}", f"{share:.0%}", loop.bound)
        tables.append(table)
    return tables


def evaluation_table(results: dict[str, Any]) -> Table:
    """Return evaluation results by the length of the optimal solution or by task."""
    puzzle = "bank" in results
    played = "levels" if puzzle else "episodes"
    title = f"{results['policy']} on {results['bank' if puzzle else 'task']}"
    first = "optimal moves" if puzzle else "task"
    scores = ("solved", "95% interval") if "success" in results else ("mean return",)
    loops = "loops", "new states", "repeats"
    table = _table(title, first, played, *scores, *loops, "steps")
    if results.get("options"):
        options = ", ".join(f"{name} {value}" for name, value in results["options"].items())
        table.caption = f"options: {options}"

    def add(name: str, row: dict[str, Any]) -> None:
        loops, new = (_format(row, key, ".2f") for key in ("loops", "loops_new_states"))
        repeats = _format(row, "repeated_share", ".0%")
        if "success" in results:
            low, high = row["interval_95"]
            cells = f"{row['success']:.1%}", f"{low:.1%} - {high:.1%}"
        else:
            cells = (f"{row['returns']:.4g}",)
        table.add_row(name, f"{row[played]:,}", *cells, loops, new, repeats, f"{row['mean_steps']:.1f}")

    for row in results.get("by_optimal_moves", ()):
        low, high = row["moves"]
        add(f"{low} - {high}" if low != high else str(low), row)
    for name, row in results.get("by_task", {}).items():
        add(name, row)
    table.add_section()
    for name, row in results.get("by_outcome", {}).items():
        add(name, row)
    add("all", results)
    for name, row in results.get("baselines", {}).items():
        add(name, row)
    return table


def _format(row: dict[str, Any], key: str, spec: str) -> str:
    """Return a number of a row, or a dash if it is missing, as in files of earlier versions."""
    return f"{row[key]:{spec}}" if key in row else "-"


def _table(title: str, first: str, *titles: str) -> Table:
    table = Table(title=title)
    table.add_column(first, no_wrap=True)
    for name in titles:
        table.add_column(name, justify="right")
    return table


def pretrained_table(cards: "dict[str, Card]", sizes: dict[str, int]) -> Table:
    """Return the policies that come with the package."""
    table = _table("Pretrained policies", "name", "learner", "solved (95% interval)", "loops", "weights")
    for name, card in cards.items():
        low, high = card.interval_95 or (float("nan"),) * 2
        solved = "-" if card.success is None else f"{card.success:.1%} ({100 * low:.1f} - {100 * high:.1f})"
        loops = f"{card.loops or float('nan'):.1f} of {card.max_loops}"
        table.add_row(name, card.learner, solved, loops, f"{sizes[name] / 1024:.0f} KiB")
    return table
