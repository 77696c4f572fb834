"""`looped-actor reproduce`: the paper's figures and tables by their names."""

import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from looped_actor.cli.shared import Changes, Json, changes_of, progress_bar
from looped_actor.names import LearnerName, Scale
from looped_actor.utils.errors import UserError

if TYPE_CHECKING:
    from looped_actor.reproduction.grid import RunKey, Study
    from looped_actor.utils.processes import Status

app = tyro.extras.SubcommandApp()


@dataclass(frozen=True)
class Selection:
    """Which runs of which study."""

    ids: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Which figures or tables, by `reproduce list`, or all."""
    scale: Scale = "micro"
    """Two CPU cores and hours, one GPU each, or the paper."""
    learner: LearnerName = "ppo"
    """Puzzles: how they are learned."""
    seeds: int | None = None
    """Seeds per kind of run. Default: as many as in the paper."""
    tasks: tuple[str, ...] = ()
    """Only these of the environments that it shows."""
    arms: tuple[str, ...] = ()
    """Only these of the arms that it compares."""
    budget: float = 1.0
    """Steps of every run, relative to the scale's."""
    change: Changes = ()
    """Fields to change in every run that has them, as ppo.learning_rate=3e-4."""
    out: pathlib.Path | None = None
    """The folder of the study. Default: reproduction/SCALE."""

    @property
    def study(self) -> "Study":
        """Where its runs are, and what they are like."""
        from looped_actor.reproduction.grid import Study

        folder = self.out or pathlib.Path("reproduction", self.scale)
        return Study(folder, self.scale, self.budget, tuple(changes_of(self.change).items()))

    @property
    def keys(self) -> dict[str, list["RunKey"]]:
        """The runs of each artifact that was asked for."""
        from looped_actor.reproduction.artifacts import ARTIFACTS, artifact_named
        from looped_actor.reproduction.grid import RunKey
        from looped_actor.runs.registry import run_of

        names = tuple(ARTIFACTS) if "all" in self.ids else tuple(dict.fromkeys(self.ids))
        if not names:
            raise UserError(f"which figure? {', '.join(ARTIFACTS)}, or all")
        study, keys = self.study, {}
        for name in names:
            artifact = artifact_named(name)
            tasks, arms = list(self.tasks), list(self.arms)
            if len(names) > 1:  # each is shown for those of the tasks and arms that it has
                tasks = [task for task in tasks if task in artifact.tasks + artifact.also]
                arms = [arm for arm in arms if arm in artifact.arms]
                if (self.tasks and not tasks) or (self.arms and not arms):
                    continue
            config = study.config(RunKey(artifact.tasks[0], self.learner, "looped", 0))
            cap = run_of(config).net.max_loops
            keys[name] = artifact.keys(self.learner, self.seeds, tasks, arms, cap)
        unknown = study.unknown_changes([key for own in keys.values() for key in own])
        if unknown:
            raise UserError(
                f"--set {unknown[0]}: no run has this field; `looped-actor train --dry-run` lists them"
            )
        return keys


@app.command(name="list")
def list_artifacts() -> None:
    """List the figures and tables of the paper that can be reproduced, and what the paper reads from them.

    Example: looped-actor reproduce list
    """
    from rich.console import Console
    from rich.table import Table

    from looped_actor.reproduction.artifacts import ARTIFACTS

    table = Table(show_lines=True)
    for title in ("ID", "in the paper", "arms", "seeds", "what it shows there"):
        table.add_column(title)
    for artifact in ARTIFACTS.values():
        table.add_row(
            f"[bold]{artifact.id}[/bold]",
            artifact.title,
            ", ".join(artifact.arms),
            str(artifact.seeds),
            artifact.claim,
        )
    Console().print(table)


@app.command(name="plan")
def plan(
    *,
    which: Selection,
    accelerator: str = "b200",
    utilisation: float | None = None,
    as_json: Json = False,
) -> None:
    """Say which runs a figure needs, what they cost here and on an accelerator, and which are there already.

    FLOPs are counted from the nets (and agree with XLA's count), at the mean loops that the paper reports
    for the looped arm. Hours here come from timing a small piece; without a solver's time.

    Example: looped-actor reproduce plan boxoban-curves

    Example: looped-actor reproduce plan all --scale paper --accelerator h100

    Args:
      accelerator: What to count hours on: b200, h100 or a100.
      utilisation: Share of its peak that is reached. Default: 0.055, from the hours that the authors report.
      as_json: Print JSON instead of tables.
    """
    from looped_actor.reproduction.plan import UTILISATION, Accelerator
    from looped_actor.reproduction.plan import plan as plan_runs
    from looped_actor.training.sharding import start_devices

    study = which.study
    chosen = Accelerator(accelerator, UTILISATION if utilisation is None else utilisation)
    _ = chosen.rate  # what is wrong with it is said before anything is timed
    start_devices(1)
    plans = {}
    for name, keys in which.keys.items():
        plans[name] = plan_runs(study, keys, chosen)
        if not as_json:
            _print_plan(name, study, plans[name], chosen)
    if as_json:
        print(json.dumps({name: [row._asdict() for row in rows] for name, rows in plans.items()}, indent=1))
    elif len(plans) > 1:
        # Of a kind of run, the figure that needs most seeds needs those of the others too.
        ordered = sorted((row for rows in plans.values() for row in rows), key=lambda row: row.runs)
        distinct = {(row.task, row.learner, row.arm): row for row in ordered}.values()
        runs = sum(row.runs for row in distinct)
        hours = sum(row.runs * row.accelerator_hours for row in distinct)
        print(
            f"All together, runs that several need counted once: {runs} runs, {hours:,.1f} hours on a "
            f"{chosen.name}."
        )


@app.command(name="run")
def run(
    *,
    which: Selection,
    workers: int | None = None,
    ray: str | None = None,
    accelerators: int = 0,
    retries: int = 3,
) -> None:
    """Train what a figure needs, one run on each device, then make its tables and figures, and the report.

    Finished runs are not repeated. If it is interrupted or killed, the same command continues; a run whose
    process dies is restarted from its checkpoint. Over Ray, the folder must be on a file
    system that all nodes share.

    Example: looped-actor reproduce run boxoban-curves --seeds 2 --learner imitation

    Example: looped-actor reproduce run rush-hour-curves --learner imitation --seeds 1 --out quick

    Example: looped-actor reproduce run all --scale paper --ray auto --accelerators 1 --out /shared/paper

    Args:
      workers: Runs at a time. Default: one per device, or one per CPU core.
      ray: Use a Ray cluster instead of processes of this machine: its address, auto, or local to start one.
      accelerators: Over Ray, GPUs of each run.
      retries: How often a run whose process dies is restarted.
    """
    from looped_actor.analysis.drawing import check_matplotlib
    from looped_actor.reproduction.artifacts import artifact_named, make_artifact
    from looped_actor.reproduction.grid import is_finished
    from looped_actor.reproduction.report import verdicts, write_report
    from looped_actor.training.sharding import start_devices
    from looped_actor.utils.processes import Processes, RayTasks, fan_out

    check_matplotlib()
    study, wanted = which.study, which.keys
    keys = list(dict.fromkeys(key for own in wanted.values() for key in own))
    for key in keys:
        study.check(key)
    missing = [key for key in keys if not is_finished(study.folder_of(key))]
    print(f"{len(keys)} runs, {len(keys) - len(missing)} of them there already, in {study.folder}")
    if missing:
        pool: Any = RayTasks(ray, workers, retries, accelerators) if ray else Processes(workers, retries)
        with pool, _status_table() as show:
            fan_out([study.job(key) for key in missing], pool, show)
    mesh = start_devices()
    made = [
        make_artifact(artifact_named(name), study, own, which.learner, mesh, progress_bar)
        for name, own in wanted.items()
    ]
    written = write_report(study.folder)
    for folder in made:
        for path in sorted(folder.glob("*.txt")):
            print(path.read_text().strip())
        for sentence in verdicts(folder):
            print(sentence)
    for path in written:
        print(path)


@app.command(name="report")
def report(*, out: pathlib.Path = pathlib.Path("reproduction", "micro")) -> None:
    """Put the tables of a study together once more, draw them, and write report.md and report.html.

    Nothing is trained or played. A file notes.md in the folder is put first.

    Example: looped-actor reproduce report --out results/micro_study

    Args:
      out: The folder of the study.
    """
    from looped_actor.reproduction.report import write_report

    for path in write_report(out):
        print(path)


def _print_plan(name: str, study: "Study", rows: Sequence[Any], accelerator: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{name} at scale {study.scale}")
    table.add_column("run", no_wrap=True)
    hours = f"hours\n{accelerator.name}"
    for title in ("seeds", "steps", "FLOPs\nof each", hours, "hours\nhere", "there"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        begun = f" +{row.begun} begun" if row.begun else ""
        table.add_row(
            f"{row.task} {row.learner} {row.arm}",
            str(row.runs),
            f"{row.steps:.2g}" if row.steps >= 1e6 else f"{row.steps:,}",
            f"{row.expected_flops:.1e}",
            _hours(row.runs * row.accelerator_hours),
            _hours(row.runs * row.hours_here),
            f"{row.finished}/{row.runs}{begun}",
        )
    table.add_section()
    left = sum((row.runs - row.finished) * row.hours_here for row in rows)
    table.add_row(
        "all",
        str(sum(row.runs for row in rows)),
        "",
        f"{sum(row.runs * row.expected_flops for row in rows):.1e}",
        _hours(sum(row.runs * row.accelerator_hours for row in rows)),
        _hours(sum(row.runs * row.hours_here for row in rows)),
        f"{sum(row.finished for row in rows)}/{sum(row.runs for row in rows)}",
    )
    console = Console()
    console.print(table)
    console.print(
        f"Left to do: {_hours(left)} hours on one device of this machine. An accelerator is taken to reach "
        f"{accelerator.utilisation:.1%} of its peak, {accelerator.rate / 1e12:,.0f} TFLOP/s.",
        highlight=False,
    )


def _hours(hours: float) -> str:
    if hours >= 100:
        return f"{hours:,.0f}"
    digits = max(1, 1 - math.floor(math.log10(hours))) if hours > 0 else 1
    return f"{hours:.{digits}f}"


@contextmanager
def _status_table() -> Iterator[Callable[[Sequence["Status"]], None]]:
    """A table of all runs that is kept up to date; where there is no terminal, a line for each change."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(stderr=True)
    colours = {"waiting": "dim", "running": "yellow", "finished": "green", "failed": "red"}
    before: dict[str, str] = {}

    def table_of(statuses: Sequence["Status"]) -> Table:
        table = Table()
        for title in ("run", "state", "done", ""):
            table.add_column(title)
        # Of a large grid, those under way and what is next.
        rank = {"failed": 0, "running": 1, "waiting": 2, "finished": 3}
        first = sorted(statuses, key=lambda status: rank[status.state])
        for status in first[: max(5, console.height - 8)]:
            colour = colours[status.state]
            done = f"{status.standing.done:.0%}"
            table.add_row(status.name, f"[{colour}]{status.state}[/{colour}]", done, status.standing.note)
        counts = {state: sum(status.state == state for status in statuses) for state in colours}
        table.caption = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
        return table

    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(statuses: Sequence["Status"]) -> None:
            if console.is_terminal:
                live.update(table_of(statuses), refresh=True)
                return
            for status in statuses:
                if before.get(status.name, "waiting") != status.state:
                    console.print(f"{status.name}: {status.state}", highlight=False)
                before[status.name] = status.state

        yield show
