"""`looped-actor reproduce`: the paper's figures, tables and theorem."""

import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from looped_actor.cli.shared import Changes, Json, changes_of, progress_bar
from looped_actor.cli.theorem import theorem
from looped_actor.names import LearnerName, Scale
from looped_actor.utils.errors import UserError

if TYPE_CHECKING:
    from looped_actor.reproduction.grid import RunKey, Study
    from looped_actor.utils.processes import Status

app = tyro.extras.SubcommandApp()
app.command(name="theorem")(theorem)


@dataclass(frozen=True)
class Selection:
    """Runs of a study."""

    ids: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names of figures and tables from `reproduce list`, or all."""
    scale: Scale = "micro"
    """micro for two CPU cores and hours, small for one GPU per run, or paper."""
    learner: LearnerName = "ppo"
    """Puzzles: algorithm."""
    seeds: int | None = None
    """Seeds of each kind of run. Default: as many as in the paper."""
    tasks: tuple[str, ...] = ()
    """Environments. Default: all that the figure shows."""
    arms: tuple[str, ...] = ()
    """Arms. Default: all that the figure compares."""
    budget: float = 1.0
    """Steps of every run, relative to the scale's."""
    change: Changes = ()
    """Change a field in every run that has it: --set algorithm.learning_rate=3e-4."""
    out: pathlib.Path | None = None
    """Folder of the study. Default: reproduction/SCALE."""

    @property
    def study(self) -> "Study":
        """The study."""
        from looped_actor.reproduction.grid import Study

        folder = self.out or pathlib.Path("reproduction", self.scale)
        return Study(folder, self.scale, self.budget, tuple(changes_of(self.change).items()))

    @property
    def keys(self) -> dict[str, list["RunKey"]]:
        """Runs of each artifact."""
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
            if len(names) > 1:  # of each, the tasks and arms that it has
                tasks = [task for task in tasks if task in artifact.tasks + artifact.also]
                arms = [arm for arm in arms if arm in artifact.arms]
                if (self.tasks and not tasks) or (self.arms and not arms):
                    continue
            config = study.config(RunKey(artifact.tasks[0], self.learner, "looped", 0))
            cap = run_of(config).spec.max_loops
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
    """Show the runs that a figure needs, their cost here and on an accelerator, and which are finished.

    FLOPs are counted from the nets, at the mean loops that the paper reports for the looped arm. Hours on
    this machine come from timing a small piece, without the time of a solver.

    Example: looped-actor reproduce plan boxoban-curves

    Example: looped-actor reproduce plan all --scale paper --accelerator h100

    Args:
      accelerator: b200, h100 or a100.
      utilisation: Share of its peak that is reached. Default: 0.055, from the hours that the authors report.
      as_json: Print JSON instead of tables.
    """
    from looped_actor.reproduction.plan import UTILISATION, Accelerator
    from looped_actor.reproduction.plan import plan as plan_runs
    from looped_actor.training.sharding import start_devices

    study = which.study
    chosen = Accelerator(accelerator, UTILISATION if utilisation is None else utilisation)
    _ = chosen.rate  # raises errors before anything is timed
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
    """Train the runs of a figure, one on each device, then make its tables and figures, and the report.

    Finished runs are not repeated. If interrupted or killed, the same command continues; a run whose process
    dies is restarted from its checkpoint. With Ray, the folder must be on a file system that all nodes share.

    Example: looped-actor reproduce run boxoban-curves --seeds 2 --learner imitation

    Example: looped-actor reproduce run rush-hour-curves --learner imitation --seeds 1 --out quick

    Example: looped-actor reproduce run all --scale paper --ray auto --accelerators 1 --out /shared/paper

    Args:
      workers: Number of runs at the same time. Default: one per device, or one per CPU core.
      ray: Use a Ray cluster instead of processes of this machine: its address, auto, or local to start one.
      accelerators: With Ray, GPUs of each run.
      retries: Number of times that a run whose process dies is restarted.
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
    print(f"{len(keys)} runs, {len(keys) - len(missing)} of them finished, in {study.folder}")
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
    """Draw the tables of a study again, and write report.md and report.html.

    Nothing is trained or played. The report starts with the file notes.md of the folder, if there is one.

    Example: looped-actor reproduce report --out results/micro_study

    Args:
      out: Folder of the study.
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
    """Show a live table of all runs; without a terminal, a line for each change."""
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
            done = f"{status.progress.done:.0%}"
            table.add_row(status.name, f"[{colour}]{status.state}[/{colour}]", done, status.progress.note)
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
