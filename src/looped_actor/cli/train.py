"""`looped-actor train` and `resume`: from a preset to a policy."""

import importlib.util
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from looped_actor.cli.shared import (
    Changes,
    ClusterOptions,
    CodeOptions,
    Folder,
    changes_of,
    check_files,
    check_runs,
    progress_bar,
)
from looped_actor.names import PUZZLES, ArmName, LearnedName, LearnerName, Scale, TaskName
from looped_actor.utils.errors import UserError
from looped_actor.utils.interrupts import exit_on_interrupt

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from looped_actor.runs.config import RunConfig
    from looped_actor.runs.run import Own
    from looped_actor.training import Logger


@dataclass(frozen=True)
class RunOptions(CodeOptions):
    """Which run."""

    task: Annotated[TaskName | None, tyro.conf.Positional] = None
    """The environment. Omit it with --config or --code."""
    scale: Scale = "micro"
    """The preset to start from: two CPU cores and minutes, one GPU and an hour, or the paper."""
    arm: ArmName | None = None
    """What to train. Default: looped."""
    learner: LearnerName | None = None
    """Puzzles: ppo learns from rewards; imitation learns from the solver, takes far fewer steps, and has
    its own preset. Default: ppo."""
    seed: int | None = None
    """Seed of everything random. Default: 0."""
    steps: float | None = None
    """Environment steps, or gradient steps offline, of the whole run. Default: the preset's."""
    levels: tuple[pathlib.Path, ...] | None = None
    """Puzzles: two banks, to learn from and to test on, or three, with one between them to watch learning by.
    Default: the preset's, or generated."""
    data: pathlib.Path | None = None
    """Robots: a dataset in OGBench's format, with its -val beside it. Default: the preset's, or collected."""
    learn: LearnedName | None = None
    """Robots: everything, or the critics alone, from which actors of any arm learn with --critics. Default:
    all."""
    critics: pathlib.Path | None = None
    """Robots: a finished run whose value and critics the actor learns from. Default: its own."""
    config: pathlib.Path | None = None
    """A config.json to start from, instead of a preset."""
    change: Changes = ()
    """Override fields of the configuration, as ppo.learning_rate=3e-4. --dry-run lists them all."""

    def check(self) -> None:
        """Raise an error if a file is not there, before JAX is imported, which takes seconds."""
        super().check()
        check_files(self.config)
        if self.task in (None, *PUZZLES):
            check_files(*self.levels or ())
        if self.task not in PUZZLES:
            check_files(self.data, hint="; make it with `looped-actor ogbench collect`, or give another file")

    @property
    def chosen(self) -> "RunConfig":
        """The configuration that is asked for."""
        from looped_actor.utils.codec import replaced

        chosen: Any = self._begun_from
        for field in ("levels", "data", "critics"):
            if getattr(self, field) is not None and not hasattr(chosen, field):
                raise UserError(f"{chosen.task} does not learn from {field}: leave --{field} out")
        if self.learn is not None and not hasattr(chosen, "learn"):
            raise UserError(f"{chosen.task} has no critics apart from its policy: leave --learn out")
        if self.learn == "critics" and self.arm is not None:
            raise UserError("critics are the same for all arms: leave out --arm, or --learn critics")
        data, critics = (path and str(path) for path in (self.data, self.critics))
        given = {"arm": self.arm, "seed": self.seed, "total_steps": self.steps}
        given |= {"data.train": data, "critics": critics, "learn": self.learn}
        changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
        chosen = replaced(chosen, changes | changes_of(self.change))
        return _with_banks(chosen, self.levels) if self.levels else chosen

    @property
    def _begun_from(self) -> "RunConfig":
        from looped_actor.runs.config import read_config
        from looped_actor.runs.presets import preset

        if self.config is None and self.task is None and self.module is not None:
            if not hasattr(self.module, "config"):
                raise UserError(f"--code {self.code}: there is no `config` in it, an OwnConfig")
            return self.module.config
        if self.config is None:
            if self.task is None:
                raise UserError("which environment? looped-actor train boxoban, for example")
            return preset(self.task, self.scale, learner=self.learner or "ppo")
        chosen = read_config(self.config)
        if self.task not in (None, chosen.task):
            raise UserError(f"{self.config} is of {chosen.task}, not of {self.task}")
        if self.learner not in (None, getattr(chosen, "learner", None)):
            raise UserError(f"{self.config} is not of {self.learner}: change its field learner")
        return chosen

    def folder(self, chosen: "RunConfig") -> pathlib.Path:
        """Where the run goes, if nothing else is said."""
        scale, learner = getattr(chosen, "scale", "own"), chosen.algorithm.lower()
        name = "-".join([chosen.task, scale, learner, chosen.trained, f"seed{chosen.seed}"])
        return pathlib.Path("runs", name)


@dataclass(frozen=True)
class LogOptions:
    """Where else the numbers of a run go."""

    wandb: str | None = None
    """Log to this Weights & Biases project. WANDB_MODE=offline keeps everything on this machine."""

    def check(self) -> None:
        """Raise an error if something is missing: better before the run begins."""
        if self.wandb is not None and importlib.util.find_spec("wandb") is None:
            raise UserError("W&B is not installed: pip install 'looped-actor[wandb]'")

    def loggers(self, folder: pathlib.Path) -> "list[Logger]":
        """Those that are asked for."""
        from looped_actor.training import WandbLogger

        return [] if self.wandb is None else [WandbLogger(self.wandb, folder)]


def train(
    *,
    run: RunOptions,
    cluster: ClusterOptions,
    logs: LogOptions,
    out: pathlib.Path | None = None,
    dry_run: bool = False,
) -> None:
    """Train a policy: puzzles by PPO or by imitating their solver, robots offline by GCIQL, your own
    environment by PPO.

    The folder of the run gets config.json, metrics.csv, TensorBoard events, checkpoints, evaluations on
    held-out levels or tasks, and at the end the policy as safetensors. SIGTERM or Ctrl-C saves and exits;
    `looped-actor resume` continues exactly from there, or after a crash from the newest checkpoint.

    On several hosts, start the same command on each, with --coordinator, --processes and --process.

    Example: looped-actor train boxoban --out runs/first

    Example: looped-actor train rush-hour --arm iso-flops --steps 2e5 --set ppo.learning_rate=3e-4

    Example: looped-actor train boxoban --learner imitation --out runs/imitation

    Example: looped-actor train cube-double --arm mlp --data data/cube-double-play-v0.npz

    Example: looped-actor train puzzle-3x3 --learn critics --out runs/critics

    Example: looped-actor train puzzle-3x3 --arm looped --critics runs/critics

    Example: looped-actor train --code examples/own_world.py --out runs/walk

    Example: looped-actor train boxoban --scale paper --dry-run

    Args:
      out: The folder of the run. Default: runs/TASK-SCALE-LEARNER-ARM-seedN.
      dry_run: Print the configuration and what the run would cost, and stop.
    """
    run.check()
    logs.check()
    with exit_on_interrupt():
        from looped_actor.runs.folder import begin_run
        from looped_actor.training.sharding import ending_together

        mesh = cluster.start()  # before any code of the user's computes something
        chosen, own = run.chosen, run.own
        if dry_run:
            _print_plan(chosen, own, mesh.size)
            return
        folder = out or run.folder(chosen)
    with ending_together(_advice(folder)), _advising_how_to_continue(folder):
        with progress_bar(f"preparing {chosen.task}") as progress:
            chosen = begin_run(chosen, folder, progress, own)
        _train(chosen, folder, mesh, own, logs)


def resume(run: Folder, /, *, code: CodeOptions, cluster: ClusterOptions, logs: LogOptions) -> None:
    """Continue a run from its newest checkpoint, exactly as if it had not been interrupted.

    The number of devices may differ from before; numbers then agree up to rounding.

    Example: looped-actor resume runs/first

    Example: looped-actor resume runs/walk --code examples/own_world.py

    Args:
      run: The folder of the run.
    """
    check_runs(run)
    code.check()
    logs.check()
    with exit_on_interrupt():
        from looped_actor.runs.folder import complete_start, read_run
        from looped_actor.training.sharding import ending_together

        config, mesh = read_run(run), cluster.start()
    with ending_together(_advice(run)), _advising_how_to_continue(run):
        with progress_bar(f"preparing {config.task}") as progress:
            complete_start(config, run, progress, code.own)
        _train(config, run, mesh, code.own, logs)


@contextmanager
def _advising_how_to_continue(folder: pathlib.Path) -> Iterator[None]:
    """Let an interruption say how the run continues."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_interrupted(folder)) from None


def _interrupted(folder: pathlib.Path) -> str:
    if not (folder / "config.json").is_file():
        return "interrupted; the same command begins again"
    return f"interrupted; continue with: looped-actor resume {folder}"


def _advice(folder: pathlib.Path) -> str:
    return f"start all of them again with `looped-actor resume {folder}` to go on from the newest checkpoint"


def _with_banks(config: Any, levels: tuple[pathlib.Path, ...]) -> "RunConfig":
    from dataclasses import replace

    from looped_actor.puzzles.banks import open_bank
    from looped_actor.runs.material import LevelsConfig

    if len(levels) not in (2, 3):
        raise UserError(f"--levels names {len(levels)} banks; give two or three: train, [valid,] test")
    about, count = open_bank(levels[0]).info, config.levels.evaluate_count
    train, *valid, held_out = map(str, levels)
    named = LevelsConfig(train, "".join(valid), held_out, evaluate_count=count)
    return replace(config, levels=named, board=(about.height, about.width))


def _train(
    config: "RunConfig", folder: pathlib.Path, mesh: "Mesh", own: "Own | None", logs: LogOptions
) -> None:
    with exit_on_interrupt(lambda: _interrupted(folder)):  # but while it learns: then it saves first
        import jax

        from looped_actor.policy.policy import finished_policy
        from looped_actor.runs.folder import train_run
        from looped_actor.training import Ending
        from looped_actor.training.progress_bar import training_bar

        first = jax.process_index() == 0
        with training_bar(config.title, config.best_by, shown=first) as report:
            loggers = logs.loggers(folder) if first else []
            ending = train_run(config, folder, mesh, report, own, loggers)
    if not first:
        return
    if ending is Ending.FINISHED:
        policy = finished_policy(folder)
        what = f"the policy is in {policy}" if policy else f"actors learn from it with --critics {folder}"
        print(f"{folder}: finished; {what}")
    else:
        print(f"{folder}: saved; continue with: looped-actor resume {folder}")


def _print_plan(config: "RunConfig", own: "Own | None", devices: int) -> None:
    from rich.console import Console

    from looped_actor.cli.tables import cost_tables
    from looped_actor.runs.registry import run_of

    for table in cost_tables(config, run_of(run_of(config, own=own).completed(), own=own).cost(devices)):
        Console(markup=False).print(table)
    print("for TPUs and GPUs that are not here: the same with `plan` for `train`, and --topology v5e:2x4")
