"""`looped-actor train` and `resume`: from a preset to a policy."""

import math
import pathlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from looped_actor.cli.shared import Changes, ClusterOptions, Folder, changes_of, progress_bar
from looped_actor.names import PUZZLES, ArmName, LearnerName, Scale, TaskName

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from looped_actor.runs.config import RunConfig
    from looped_actor.training import Report


@dataclass(frozen=True)
class RunOptions:
    """Which run."""

    task: Annotated[TaskName | None, tyro.conf.Positional] = None
    """The environment. May be left out where --config gives it."""
    scale: Scale = "micro"
    """The preset to start from: two CPU cores and minutes, one GPU and an hour, or the paper."""
    arm: ArmName | None = None
    """What to train. Default: looped."""
    learner: LearnerName | None = None
    """Puzzles: learn from rewards by ppo, or what the solver would do by imitation, which takes far fewer
    steps and has a preset of its own. Default: ppo."""
    seed: int | None = None
    """Seed of everything random. Default: 0."""
    steps: float | None = None
    """Environment steps, or gradient steps offline, of the whole run. Default: the preset's."""
    levels: tuple[pathlib.Path, pathlib.Path] | None = None
    """Puzzles: banks to learn from and to evaluate on. Default: the preset's, or generated."""
    data: pathlib.Path | None = None
    """Robots: a dataset in OGBench's format, with its -val beside it. Default: the preset's, or collected."""
    config: pathlib.Path | None = None
    """A config.json to start from, instead of a preset."""
    change: Changes = ()
    """Other fields to change, as ppo.learning_rate=3e-4. --dry-run lists all fields."""

    @property
    def chosen(self) -> "RunConfig":
        """The configuration that is asked for."""
        from looped_actor.codec import replaced

        chosen: Any = self._begun_from
        for option, value, field in (("--levels", self.levels, "levels"), ("--data", self.data, "data")):
            if value is not None and not hasattr(chosen, field):
                raise ValueError(f"{chosen.task} does not learn from {field}: leave {option} out")
        data = self.data and str(self.data)
        given = {"arm": self.arm, "seed": self.seed, "total_steps": self.steps, "data.train": data}
        changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
        chosen = replaced(chosen, changes | changes_of(self.change))
        return _with_banks(chosen, self.levels) if self.levels else chosen

    @property
    def _begun_from(self) -> "RunConfig":
        from looped_actor.runs.config import read_config
        from looped_actor.runs.presets import preset

        if self.config is None:
            if self.task is None:
                raise ValueError("which environment? looped-actor train boxoban, for example")
            return preset(self.task, self.scale, learner=self.learner or "ppo")
        chosen = read_config(self.config)
        if self.task not in (None, chosen.task):
            raise ValueError(f"{self.config} is of {chosen.task}, not of {self.task}")
        if self.learner not in (None, getattr(chosen, "learner", None)):
            raise ValueError(f"{self.config} is not of {self.learner}: change its field learner")
        return chosen

    @property
    def folder(self) -> pathlib.Path:
        """Where the run goes, if nothing else is said."""
        chosen, by = self.chosen, [] if self.learner is None else [self.learner]
        name = "-".join([chosen.task, chosen.scale, *by, chosen.arm, f"seed{chosen.seed}"])
        return pathlib.Path("runs", name)


def train(
    *, run: RunOptions, cluster: ClusterOptions, out: pathlib.Path | None = None, dry_run: bool = False
) -> None:
    """Train a policy, into a folder that holds all of the run: puzzles by PPO or by imitation of
    their solver, robots offline by GCIQL.

    The folder gets config.json, metrics.csv, TensorBoard events, checkpoints, evaluations on held-out
    levels or on OGBench's tasks, and at the end the policy as safetensors. SIGTERM or Ctrl-C saves and ends;
    `looped-actor resume` goes on exactly from there, and after a crash from the newest checkpoint.

    On several hosts, start the same command on each, with --coordinator, --processes and --process.

    Example: looped-actor train boxoban --out runs/first

    Example: looped-actor train rush-hour --arm iso-flops --steps 2e5 --set ppo.learning_rate=3e-4

    Example: looped-actor train boxoban --learner imitation --out runs/imitation

    Example: looped-actor train cube-double --arm mlp --data data/cube-double-play-v0.npz

    Example: looped-actor train boxoban --scale paper --dry-run

    Args:
      out: The folder of the run. Default: runs/TASK-SCALE-ARM-seedN.
      dry_run: Print the configuration and what the run would cost, and stop.
    """
    from looped_actor.runs.folder import begin_run

    chosen = run.chosen
    mesh = cluster.start()
    if dry_run:
        _print_plan(chosen, mesh.size)
        return
    folder = out or run.folder
    with progress_bar("preparing levels" if chosen.task in PUZZLES else "preparing data") as progress:
        chosen = begin_run(chosen, folder, progress)
    _train(chosen, folder, mesh)


def resume(run: Folder, /, *, cluster: ClusterOptions) -> None:
    """Go on with a run from its newest checkpoint, exactly as if it had not been interrupted.

    The number of devices may differ from before; numbers then agree up to rounding.

    Example: looped-actor resume runs/first

    Args:
      run: The folder of the run.
    """
    from looped_actor.runs.folder import read_run

    config = read_run(run)
    _train(config, run, cluster.start())


def _with_banks(config: Any, levels: tuple[pathlib.Path, pathlib.Path]) -> "RunConfig":
    from dataclasses import replace

    from looped_actor.levels import open_bank
    from looped_actor.runs.config import LevelsConfig

    about = open_bank(levels[0]).info
    named = LevelsConfig(str(levels[0]), str(levels[1]), evaluate_count=config.levels.evaluate_count)
    return replace(config, levels=named, board=(about.height, about.width))


def _train(config: "RunConfig", folder: pathlib.Path, mesh: "Mesh") -> None:
    import jax

    from looped_actor.runs.folder import train_run
    from looped_actor.training import Ending

    first = jax.process_index() == 0
    with _training_bar(config, shown=first) as report:
        ending = train_run(config, folder, mesh, report)
    if not first:
        return
    if ending is Ending.FINISHED:
        print(f"{folder}: finished; the policy is in {folder / 'policy'}")
    else:
        print(f"{folder}: saved; go on with: looped-actor resume {folder}")


@contextmanager
def _training_bar(config: "RunConfig", shown: bool):
    """Steps, rate, success, loops, and time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    with Progress(
        *columns, console=Console(stderr=True), disable=not shown, speed_estimate_period=600
    ) as bar:
        name = f"{config.algorithm}: {config.task} {config.arm}"
        task = bar.add_task(name, total=None, numbers="compiling")
        begun = False

        def show(report: "Report") -> None:
            nonlocal begun
            loops = f"{report.loops:.1f} loops, {report.utilisation:.0%} of those computed"
            numbers = [f"{report.steps_per_second:,.0f} steps/s", loops]
            if not math.isnan(report.success):  # no episode may have ended
                numbers.append(f"success {report.success:.0%}")
            if report.evaluated is not None:
                numbers.append(f"held out {report.evaluated:.0%}")
            # What was done before a resumption, and what compiling took, say nothing of the time left.
            put = bar.update if begun else bar.reset
            put(task, completed=report.steps, total=report.all_steps, numbers=", ".join(numbers))
            begun = True

        yield show


def _print_plan(config: "RunConfig", devices: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from looped_actor.codec import field_paths, field_value
    from looped_actor.runs.folder import run_of

    fields = Table(title="configuration", show_header=False)
    for path in field_paths(config):
        fields.add_row(path, str(field_value(config, path)))
    cost = run_of(config).cost(devices)
    counted = cost.counted
    a_step = "an environment step, learning included" if config.task in PUZZLES else "a gradient step"
    table = Table(title="cost", show_header=False)
    hours, kind = cost.seconds / 3600, "device" if cost.devices == 1 else "devices"
    for name, value in (
        ("parameters", f"{counted.parameters:,}"),
        (f"a decision, at {cost.max_loops} loops", f"{counted.flops_per_decision / 1e6:,.1f} MFLOPs"),
        (a_step, f"{counted.flops_per_step / 1e6:,.1f} MFLOPs"),
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
    console = Console()
    console.print(fields)
    console.print(table)
