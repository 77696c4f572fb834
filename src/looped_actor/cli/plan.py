"""`looped-actor plan`: the cost of a run, by formula, by timings here, or compiled for other chips."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from looped_actor.cli.shared import Json
from looped_actor.cli.train import RunOptions
from looped_actor.utils.checks import at_least_one

if TYPE_CHECKING:
    from looped_actor.runs.run import Run


@dataclass(frozen=True)
class TimeOptions:
    """Timings on this machine."""

    time: bool = False
    """Time a few updates, and candidates for microbatch and slots, on the devices of this machine."""
    rounds: int = 4
    """Turns of each candidate; the fastest counts."""

    def __post_init__(self) -> None:
        at_least_one(self, "rounds")


@dataclass(frozen=True)
class ChipOptions:
    """Chips that need not be attached."""

    topology: str | None = None
    """Compile for v5e, v5p, v6e or h100 chips: how many along each side, as v5e:16x16 or h100:8."""
    loops: float | None = None
    """Mean loops of a decision. Default: as the paper reports them, or 0.6 of the cap."""
    no_cache: bool = False
    """Compile again, and keep nothing in the user's cache folder."""

    def __post_init__(self) -> None:
        at_least_one(self, "loops")


def plan(*, run: RunOptions, timing: TimeOptions, chips: ChipOptions, as_json: Json = False) -> None:
    """Estimate the cost of a run before it begins: parameters, FLOPs, memory and time.

    By default everything is counted by formula, which takes a few seconds. With --time, a few updates run on
    this machine, and the fastest microbatch and number of slots are printed. With --topology, the programs of
    the run are compiled for TPUs or GPUs that need not be attached; memory and exchanges are then the
    compiler's, and times are estimates from the compiled text. That takes minutes and needs the extra `plan`;
    for GPUs jax-cuda12-plugin and jax-cuda12-pjrt.

    Example: looped-actor plan boxoban

    Example: looped-actor plan rush-hour --arm iso-flops --time

    Example: looped-actor plan boxoban --scale paper --topology v5e:2x4

    Args:
      as_json: Print one JSON object instead of tables.
    """
    run.check()
    if chips.topology is not None:
        _plan_chips(run, chips, as_json)
        return
    from rich.console import Console

    from looped_actor.cli.tables import arms_table, estimate_table, sizes_table
    from looped_actor.planning.estimate import estimate_cost, estimate_formula
    from looped_actor.runs.registry import run_of

    parts = run_of(run.chosen, code=run.custom)
    if not timing.time:
        estimate, arms = estimate_formula(parts), _arms(run)
        if as_json:
            print(json.dumps(_to_dict(estimate) | {"arms": arms}))
            return
        if arms:
            Console().print(arms_table(parts.config.task, run.scale, arms))
        Console().print(estimate_table(estimate, parts.config.title))
        return
    from looped_actor.planning.tune import time_sizes
    from looped_actor.training.sharding import start_devices

    mesh = start_devices()
    with _bar() as progress:
        progress(0.0, "timing updates")
        estimate = estimate_cost(parts, mesh.size)
        sizes = time_sizes(parts, mesh, timing.rounds, progress) if _is_looped(parts) else None
    if as_json:
        found = {} if sizes is None else sizes._asdict() | sizes.changes
        print(json.dumps(_to_dict(estimate) | found))
        return
    Console().print(estimate_table(estimate, parts.config.title))
    if sizes is not None:
        Console().print(sizes_table(sizes))
        changes = " ".join(f"{name}={value}" for name, value in sizes.changes.items())
        print(f"fastest here: looped-actor train ... --set {changes}")


def _arms(run: RunOptions) -> dict[str, dict[str, Any]]:
    """Return parameters, loops and FLOPs of all arms of a preset."""
    from looped_actor.models.tasks import TASKS
    from looped_actor.planning.estimate import count
    from looped_actor.runs.presets import preset
    from looped_actor.runs.registry import run_of

    if run.task is None or run.config is not None:
        return {}
    found = {}
    for arm in ("looped", "iso-params", "iso-flops", "drc", "mlp"):
        if arm in TASKS[run.task].unfit_arms:
            continue
        parts = run_of(preset(run.task, run.scale, arm, run.learner or "ppo"))
        counts = count(parts)
        found[arm] = {
            "parameters": parts.spec.parameters,
            "max_loops": parts.spec.max_loops,
            "flops_per_decision": counts.flops_per_decision,
            "flops_per_step": counts.flops_per_step,
        }
    return found


def _to_dict(estimate: Any) -> dict[str, Any]:
    facts = asdict(estimate)
    return facts | facts.pop("counts")._asdict()


def _is_looped(run: "Run") -> bool:
    return run.config.trained != "critics" and run.spec.halting is not None


def _plan_chips(run: RunOptions, options: ChipOptions, as_json: bool) -> None:
    from rich.console import Console

    from looped_actor.cli.tables import plan_tables
    from looped_actor.planning.chips import Topology
    from looped_actor.planning.plan import default_cache, plan_run
    from looped_actor.runs.registry import run_of

    assert options.topology is not None
    topology = Topology.parse(options.topology)
    parts = run_of(run.chosen, mesh=topology.compile_only_mesh(), code=run.custom)
    with Console(stderr=True).status(f"planning for {options.topology}") as status:
        cache = None if options.no_cache else default_cache()
        found = plan_run(parts, topology, mean_loops=options.loops, cache=cache, report=status.update)
    if as_json:
        print(json.dumps(found.results))
        return
    for table in plan_tables(found):
        Console().print(table)


@contextmanager
def _bar() -> Iterator[Callable[[float, str], Any]]:
    """Show a progress bar; yield a function that takes the fraction done and a description of the next
    step."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    from looped_actor.utils.progress import Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bar(*columns, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda fraction, what: bar.update(task, completed=fraction, description=what)
