"""`looped-actor train` and `resume`: from a preset to a policy."""

import importlib.util
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from looped_actor.names import PUZZLES, ArmName, LearnerName, Scale, TaskName
from looped_actor.utils.errors import UserError
from looped_actor.utils.interrupts import exit_on_interrupt

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from looped_actor.runs.config import RunConfig
    from looped_actor.runs.run import CustomCode
    from looped_actor.training import Logger


@dataclass(frozen=True)
class RunOptions(CodeOptions):
    """Configuration of the run."""

    task: Annotated[TaskName | None, tyro.conf.Positional] = None
    """Environment. Omit it with --config or --code."""
    scale: Scale = "micro"
    """Preset to start from: micro for two CPU cores and minutes, small for one GPU and an hour, or paper."""
    arm: ArmName | Literal["critics"] | None = None
    """Net. Default: looped. Robots: `critics` learns value and critics alone, for --critics."""
    learner: LearnerName | None = None
    """Puzzles: ppo learns from rewards; imitation learns from the solver's labels, and takes far fewer steps.
    Default: ppo."""
    seed: int | None = None
    """Seed of everything random. Default: 0."""
    steps: float | None = None
    """Environment steps (gradient steps offline) of the run. Default: the preset's."""
    levels: tuple[pathlib.Path, ...] | None = None
    """Puzzles: banks of levels for training, [validation,] test. Default: generated, or the preset's."""
    data: pathlib.Path | None = None
    """Robots: dataset in OGBench's format, with its -val next to it. Default: collected, or the preset's."""
    critics: pathlib.Path | None = None
    """Robots: finished run whose value and critics the actor learns from. Default: its own."""
    config: pathlib.Path | None = None
    """A config.json to start from, instead of a preset."""
    change: Changes = ()
    """Change a field of the configuration: --set algorithm.learning_rate=3e-4. --dry-run lists all fields."""

    def check(self) -> None:
        """Raise an error if a file does not exist, before JAX is imported, which takes seconds."""
        super().check()
        check_files(self.config)
        if self.task in (None, *PUZZLES):
            check_files(*self.levels or ())
        if self.task not in PUZZLES:
            check_files(self.data, hint="; make it with `looped-actor robots collect`, or give another file")

    @property
    def chosen(self) -> "RunConfig":
        """The configuration with all options applied."""
        from dataclasses import replace

        from looped_actor.runs.config import CustomConfig, PuzzleConfig, RobotConfig
        from looped_actor.utils.codec import replace_fields

        config: Any = self._start
        for option, kind in (("levels", PuzzleConfig), ("data", RobotConfig), ("critics", RobotConfig)):
            if getattr(self, option) is not None and not isinstance(config, kind):
                raise UserError(f"{config.task} does not learn from {option}: leave --{option} out")
        if self.arm == "critics":
            if not isinstance(config, RobotConfig):
                raise UserError(f"{config.task} has no critics apart from its policy: give another --arm")
            config = replace(config, arm=None)
        elif self.arm is not None and self.config is not None:
            raise UserError("--arm chooses a preset's arm: with --config, change its field arm instead")
        elif self.arm is not None and isinstance(config, CustomConfig):
            config = replace(config, net=self.arm)
        changes: dict[str, Any] = {"seed": self.seed, "total_steps": self.steps}
        changes |= {"data.train": self.data and str(self.data), "critics": self.critics and str(self.critics)}
        changes = {field: value for field, value in changes.items() if value is not None}
        config = replace_fields(config, changes | changes_of(self.change))
        return _with_banks(config, self.levels) if self.levels else config

    @property
    def _start(self) -> "RunConfig":
        """The preset, file or code to start from."""
        from looped_actor.runs.config import read_config
        from looped_actor.runs.presets import preset

        if self.config is None and self.task is None and self.module is not None:
            if not hasattr(self.module, "config"):
                raise UserError(f"--code {self.code}: there is no `config` in it, a CustomConfig")
            return self.module.config
        if self.config is None:
            if self.task is None:
                raise UserError("which environment? looped-actor train boxoban, for example")
            arm = "looped" if self.arm in (None, "critics") else self.arm
            return preset(self.task, self.scale, arm, self.learner or "ppo")  # type: ignore[arg-type]
        config = read_config(self.config)
        if self.task not in (None, config.task):
            raise UserError(f"{self.config} is of {config.task}, not of {self.task}")
        if self.learner not in (None, config.learner.lower()):
            raise UserError(f"{self.config} is not of {self.learner}: change its field algorithm")
        return config

    def folder(self, config: "RunConfig") -> pathlib.Path:
        """Return the default folder of the run."""
        scale = self.scale if self.config is None and self.task is not None else "custom"
        name = "-".join([config.task, scale, config.learner.lower(), config.trained, f"seed{config.seed}"])
        return pathlib.Path("runs", name)


@dataclass(frozen=True)
class LogOptions:
    """Additional loggers."""

    wandb: str | None = None
    """Log to this Weights & Biases project. WANDB_MODE=offline keeps everything on this machine."""

    def check(self) -> None:
        """Raise an error if a package is missing, before the run begins."""
        if self.wandb is not None and importlib.util.find_spec("wandb") is None:
            raise UserError("W&B is not installed: pip install 'looped-actor[wandb]'")

    def loggers(self, folder: pathlib.Path) -> "list[Logger]":
        """Return the loggers."""
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
    """Train a policy: puzzles by PPO or by imitation of their solver, robots offline by GCIQL, custom
    environments by PPO.

    The folder of the run gets config.json, metrics.csv, TensorBoard events, checkpoints, evaluations on
    validation levels or tasks, and at the end the policy as safetensors. SIGTERM or Ctrl-C saves and exits;
    `looped-actor resume` continues exactly from there, or after a crash from the newest checkpoint.

    On several hosts, start the same command on each, with --coordinator, --processes and --process.

    Example: looped-actor train boxoban --out runs/first

    Example: looped-actor train rush-hour --arm iso-flops --steps 2e5 --set algorithm.learning_rate=3e-4

    Example: looped-actor train boxoban --learner imitation --out runs/imitation

    Example: looped-actor train cube-double --arm mlp --data data/cube-double-play-v0.npz

    Example: looped-actor train puzzle-3x3 --arm critics --out runs/critics

    Example: looped-actor train puzzle-3x3 --arm looped --critics runs/critics

    Example: looped-actor train --code examples/custom_environment.py --out runs/walk

    Example: looped-actor train boxoban --scale paper --dry-run

    Args:
      out: Folder of the run. Default: runs/TASK-SCALE-LEARNER-ARM-seedN.
      dry_run: Print the configuration and its cost by formula, and stop.
    """
    run.check()
    logs.check()
    with exit_on_interrupt():
        from looped_actor.runs.folder import begin_run
        from looped_actor.training.sharding import exit_together

        mesh = cluster.start()  # before any code of the user computes something
        chosen, code = run.chosen, run.custom
        if dry_run:
            _print_config(chosen, code)
            return
        folder = out or run.folder(chosen)
    with exit_together(_advice(folder)), _explain_interrupt(folder):
        with progress_bar(f"preparing {chosen.task}") as progress:
            chosen = begin_run(chosen, folder, mesh, progress, code)
        _train(chosen, folder, mesh, code, logs)


def resume(run: Folder, /, *, code: CodeOptions, cluster: ClusterOptions, logs: LogOptions) -> None:
    """Continue a run from its newest checkpoint, exactly as if it had not been interrupted.

    The number of devices may differ from before; numbers then agree up to rounding.

    Example: looped-actor resume runs/first

    Example: looped-actor resume runs/walk --code examples/custom_environment.py

    Args:
      run: Folder of the run.
    """
    check_runs(run)
    code.check()
    logs.check()
    with exit_on_interrupt():
        from looped_actor.runs.folder import complete_start, read_run
        from looped_actor.training.sharding import exit_together

        config, mesh = read_run(run), cluster.start()
    with exit_together(_advice(run)), _explain_interrupt(run):
        with progress_bar(f"preparing {config.task}") as progress:
            complete_start(config, run, progress, code.custom)
        _train(config, run, mesh, code.custom, logs)


@contextmanager
def _explain_interrupt(folder: pathlib.Path) -> Iterator[None]:
    """Add to an interruption how the run continues."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_interrupted(folder)) from None


def _interrupted(folder: pathlib.Path) -> str:
    if not (folder / "config.json").is_file():
        return "interrupted; the same command begins again"
    return f"interrupted; continue with: looped-actor resume {folder}"


def _advice(folder: pathlib.Path) -> str:
    return (
        f"start all of them again with `looped-actor resume {folder}` to continue from the newest checkpoint"
    )


def _with_banks(config: Any, levels: tuple[pathlib.Path, ...]) -> "RunConfig":
    from dataclasses import replace

    from looped_actor.puzzles.banks import open_bank
    from looped_actor.runs.config import LevelsConfig

    if len(levels) not in (2, 3):
        raise UserError(f"--levels names {len(levels)} banks; give two or three: train, [valid,] test")
    info, count = open_bank(levels[0]).info, config.levels.evaluate_count
    train, *valid, held_out = map(str, levels)
    banks = LevelsConfig(train, "".join(valid), held_out, evaluate_count=count)
    return replace(config, levels=banks, board=(info.height, info.width))


def _train(
    config: "RunConfig", folder: pathlib.Path, mesh: "Mesh", code: "CustomCode | None", logs: LogOptions
) -> None:
    with exit_on_interrupt(lambda: _interrupted(folder)):  # except while it learns: then it saves first
        import jax

        from looped_actor.policy.policy import find_policy
        from looped_actor.runs.folder import train_run
        from looped_actor.training import Ending
        from looped_actor.training.progress_bar import training_bar

        first = jax.process_index() == 0
        with training_bar(config.title, config.best_by, shown=first) as report:
            loggers = logs.loggers(folder) if first else []
            ending = train_run(config, folder, mesh, report, code, loggers)
    if not first:
        return
    if ending is Ending.FINISHED:
        policy = find_policy(folder)
        what = f"the policy is in {policy}" if policy else f"actors learn from it with --critics {folder}"
        print(f"{folder}: finished; {what}")
    else:
        print(f"{folder}: saved; continue with: looped-actor resume {folder}")


def _print_config(config: "RunConfig", code: "CustomCode | None") -> None:
    from rich.console import Console

    from looped_actor.cli.tables import config_table, estimate_table
    from looped_actor.planning.estimate import estimate_formula
    from looped_actor.runs.registry import run_of

    Console(markup=False).print(config_table(config))
    run = run_of(config, code=code)
    run = run_of(run.complete_config(), code=code)
    Console(markup=False).print(estimate_table(estimate_formula(run), config.title))
