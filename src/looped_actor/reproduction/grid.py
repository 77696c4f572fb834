"""Runs of a study: configurations, folders, progress, shared data, and a function that finishes a run."""

import os
import pathlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax

from looped_actor.names import PUZZLES, Scale
from looped_actor.policy.policy import find_policy
from looped_actor.runs.config import CONFIG_FILE, RunConfig, config_from, read_config
from looped_actor.runs.folder import begin_run, is_begun, read_run, train_run
from looped_actor.runs.presets import STUDY_EVALUATIONS, preset
from looped_actor.runs.registry import run_of
from looped_actor.training import Ending
from looped_actor.training.sharding import start_devices
from looped_actor.utils.checks import above_zero
from looped_actor.utils.codec import field_paths, field_value, key_of, replace_fields, to_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import held
from looped_actor.utils.processes import Job, JobProgress

SHARED_FOLDER = "stock"
"""Levels and data that several runs of a study learn from."""
SHARED_SEED = 0
"""Seed of collected data, whatever the seed of a run is, so that runs share them."""


class RunKey(NamedTuple):
    """A run, in the words of the paper."""

    task: str
    learner: str
    """ppo, imitation or gciql."""
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the run and of its folder."""
        return f"{self.task}-{self.learner}-{self.arm}-seed{self.seed}"


@dataclass(frozen=True)
class Study:
    """A folder of runs at one scale."""

    folder: pathlib.Path
    scale: Scale = "micro"
    budget: float = 1.0
    """Steps of every run, relative to those of the scale."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Fields to change in every run that has them, with their values."""

    def __post_init__(self) -> None:
        above_zero(self, "budget")

    def folder_of(self, key: RunKey) -> pathlib.Path:
        """Return the folder of a run."""
        return self.folder / "runs" / key.name

    def config(self, key: RunKey) -> RunConfig:
        """Return the configuration of a run."""
        config = preset(key.task, self.scale, key.arm, key.learner, study=True)  # type: ignore[arg-type]
        config = replace(config, seed=key.seed)
        fields, changed = set(field_paths(config)), {name for name, _ in self.changes}
        config = replace_fields(config, {name: value for name, value in self.changes if name in fields})
        if "data.seed" in fields - changed and not config.data.train:
            config = replace_fields(config, {"data.seed": SHARED_SEED})
        config = replace(config, total_steps=max(1, round(config.total_steps * self.budget)))
        if self.scale == "micro" and key.task in PUZZLES and "evaluate_every" not in changed:
            config = replace(config, evaluate_every=-(-config.iterations // STUDY_EVALUATIONS))
        return config

    def unknown_changes(self, keys: Sequence[RunKey]) -> list[str]:
        """Return the changed fields that none of some runs has."""
        unchanged = replace(self, changes=())
        fields = {path for key in keys for path in field_paths(unchanged.config(key))}
        return [name for name, _ in self.changes if name not in fields]

    def job(self, key: RunKey) -> Job:
        """Return the job of finishing a run."""
        folder = self.folder_of(key)
        arguments = (to_json(self.config(key)), str(folder), str(self.folder / SHARED_FOLDER))
        return Job(key.name, complete_run, arguments, partial(progress_of, folder))

    def check(self, key: RunKey) -> None:
        """Raise an error if a run was begun with another configuration."""
        _check_config(self.config(key), self.folder_of(key))


def is_finished(folder: pathlib.Path) -> bool:
    """Return whether a run has written its policy."""
    return find_policy(folder) is not None


def progress_of(folder: pathlib.Path) -> JobProgress:
    """Return the progress of a run from its files, which another process may be writing."""
    if not (folder / CONFIG_FILE).is_file():
        return JobProgress(0.0)
    if is_finished(folder):
        return JobProgress(1.0)
    try:
        rows = (folder / "timings.csv").read_text().splitlines()[1:]
        steps, rate = (float(number) for number in rows[-1].split(",")[2:])
    except (OSError, IndexError, ValueError):
        return JobProgress(0.0, "begun")
    config = read_config(folder / CONFIG_FILE)
    total = config.iterations * config.steps_per_iteration
    processes = len({row.split(",")[0] for row in rows})
    restarts = f", process {processes}" if processes > 1 else ""
    left = (total - steps) / rate / 60 if rate > 0 else float("inf")
    return JobProgress(min(steps / total, 0.99), f"{rate:,.0f} steps/s, {left:,.0f} min left{restarts}")


def complete_run(config: Any, folder: str, shared: str) -> str:
    """Train a run to its end, from its start or its last checkpoint. Call it in a new process.

    Args:
      config: its configuration, as JSON.
      folder: its folder.
      shared: folder of levels and data that several runs learn from.
    """
    wanted, place = config_from(config), pathlib.Path(folder)
    if is_finished(place):
        return Ending.FINISHED.name
    mesh = start_devices(1)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # Runs that differ only in their seed, and runs that are resumed, compile the same programs.
        jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(shared) / "compiled"))
    # A worker whose parent was killed may still be saving: wait for it.
    with held(place / "worker.lock"):
        if not is_begun(place):
            link_shared_data(wanted, place, pathlib.Path(shared))
            begin_run(wanted, place)
        _check_config(wanted, place)
        ending = train_run(read_run(place), place, mesh)
    if ending is not Ending.FINISHED:
        raise InterruptedError(f"the run was interrupted, and is saved: {ending.name}")
    return ending.name


def link_shared_data(config: RunConfig, folder: pathlib.Path, shared: pathlib.Path) -> None:
    """Link the levels or data that all runs of one recipe share into a run; the first run makes them."""
    material = {name: value for name, value in to_json(config).items() if name in ("levels", "data")}
    if any(part["train"] for part in material.values()):
        return
    run = run_of(config, folder)
    source = shared / key_of({"task": config.task, "recipe": to_json(run.material_recipe)})
    maker = run_of(config, source)
    with held(source / "lock"):
        if not (source / CONFIG_FILE).exists():
            maker.prepare()
            (source / CONFIG_FILE).write_text("{}\n")
    run.material.mkdir(parents=True, exist_ok=True)
    for path in maker.material.iterdir():
        _link(path, run.material / path.name)


def _link(source: pathlib.Path, target: pathlib.Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy(source, target)


def _check_config(config: RunConfig, folder: pathlib.Path) -> None:
    if not is_begun(folder):
        return
    begun, wanted = _comparable(read_config(folder / CONFIG_FILE)), _comparable(config)
    # A run resolves these when it begins.
    begun = replace(
        begun, **{name: None for name in ("microbatch", "slots") if getattr(wanted, name) is None}
    )
    if begun == wanted:
        return
    for path in field_paths(wanted):
        before, now = field_value(begun, path), field_value(wanted, path)
        if before != now:
            raise UserError(
                f"{folder} was begun with {path} = {before}, and {now} is asked for now: ask for the same as "
                "before, or give another folder with --out"
            )


def _comparable(config: Any) -> Any:
    """Return a configuration with the hidden width of its core as a number, as older versions wrote it."""
    core = getattr(getattr(config, "arm", None), "core", None)
    if core is None:
        return config
    return replace(config, arm=replace(config.arm, core=replace(core, hidden=core.hidden_width)))
