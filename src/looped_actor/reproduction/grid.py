"""The runs of a reproduction: which there are, where they lie, how far they are, and how to finish one."""

import os
import pathlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax

from looped_actor.names import PUZZLES, Scale
from looped_actor.policy.policy import finished_policy
from looped_actor.runs.config import CONFIG_FILE, RunConfig, config_from, read_config
from looped_actor.runs.folder import begin_run, is_begun, read_run, train_run
from looped_actor.runs.presets import STUDY_EVALUATIONS, preset
from looped_actor.runs.registry import run_of
from looped_actor.training import Ending
from looped_actor.training.sharding import start_devices
from looped_actor.utils.checks import above_zero
from looped_actor.utils.codec import field_paths, field_value, key_of, replaced, to_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import held
from looped_actor.utils.processes import Job, Standing

STOCK_FOLDER = "stock"
STOCK_SEED = 0
"""Seed of the data that all runs of a study learn from, whatever their own is."""


class RunKey(NamedTuple):
    """A run, in the words of the paper."""

    task: str
    learner: str
    """ppo, imitation or gciql."""
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Also that of its folder."""
        return f"{self.task}-{self.learner}-{self.arm}-seed{self.seed}"


@dataclass(frozen=True)
class Study:
    """A folder of runs at one scale."""

    folder: pathlib.Path
    scale: Scale = "micro"
    budget: float = 1.0
    """Steps of every run, relative to what the scale has."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Fields to change in every run that has them."""

    def __post_init__(self) -> None:
        above_zero(self, "budget")

    def folder_of(self, key: RunKey) -> pathlib.Path:
        """Where a run lies."""
        return self.folder / "runs" / key.name

    def config(self, key: RunKey) -> RunConfig:
        """What a run is to be."""
        config = replace(preset(key.task, self.scale, key.arm, key.learner, study=True), seed=key.seed)  # type: ignore[arg-type]
        there, given = set(field_paths(config)), {name for name, _ in self.changes}
        config = replaced(config, {name: value for name, value in self.changes if name in there})
        if "data.seed" in there - given and not config.data.train:
            config = replaced(config, {"data.seed": STOCK_SEED})
        config = replace(config, total_steps=max(1, round(config.total_steps * self.budget)))
        if self.scale == "micro" and key.task in PUZZLES and "evaluate_every" not in given:
            config = replace(config, evaluate_every=-(-config.iterations // STUDY_EVALUATIONS))
        return config

    def unknown_changes(self, keys: Sequence[RunKey]) -> list[str]:
        """Fields to change that no run has."""
        there = {path for key in keys for path in field_paths(replace(self, changes=()).config(key))}
        return [name for name, _ in self.changes if name not in there]

    def job(self, key: RunKey) -> Job:
        """The work of finishing a run."""
        folder = self.folder_of(key)
        arguments = (to_json(self.config(key)), str(folder), str(self.folder / STOCK_FOLDER))
        return Job(key.name, complete_run, arguments, partial(standing_of, folder))

    def check(self, key: RunKey) -> None:
        """Raise an error if a run was begun with other settings."""
        _check_same(self.config(key), self.folder_of(key))


def is_finished(folder: pathlib.Path) -> bool:
    """Whether a run has written its policy."""
    return finished_policy(folder) is not None


def standing_of(folder: pathlib.Path) -> Standing:
    """How far a run is, from its files; also while another process writes them."""
    if not (folder / CONFIG_FILE).is_file():
        return Standing(0.0)
    if is_finished(folder):
        return Standing(1.0)
    try:
        rows = (folder / "timings.csv").read_text().splitlines()[1:]
        steps, rate = (float(number) for number in rows[-1].split(",")[2:])
    except (OSError, IndexError, ValueError):
        return Standing(0.0, "begun")
    config = read_config(folder / CONFIG_FILE)
    whole = config.iterations * config.steps_per_iteration
    processes = len({row.split(",")[0] for row in rows})
    again = f", process {processes}" if processes > 1 else ""
    left = (whole - steps) / rate / 60 if rate > 0 else float("inf")
    return Standing(min(steps / whole, 0.99), f"{rate:,.0f} steps/s, {left:,.0f} min left{again}")


def complete_run(config: Any, folder: str, stock: str) -> str:
    """In a process of its own: start a run, or resume it, to its end.

    Args:
      config: its configuration, as JSON.
      folder: of the run.
      stock: where levels and data are kept that several runs learn from.
    """
    wanted, place = config_from(config), pathlib.Path(folder)
    if is_finished(place):
        return Ending.FINISHED.name
    mesh = start_devices(1)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # Runs that differ in their seed only, and those that are begun again, compile the same programs.
        jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(stock) / "compiled"))
    # A worker whose parent was killed may be about to end: wait for it.
    with held(place / "worker.lock"):
        if not is_begun(place):
            _stock_up(wanted, place, pathlib.Path(stock))
            begin_run(wanted, place)
        _check_same(wanted, place)
        ending = train_run(read_run(place), place, mesh)
    if ending is not Ending.FINISHED:
        raise InterruptedError(f"it was asked to end, and is saved: {ending.name}")
    return ending.name


def _stock_up(config: RunConfig, folder: pathlib.Path, stock: pathlib.Path) -> None:
    """Give a run the levels or the data of all runs that ask for the same; the first one makes them."""
    asked = {name: value for name, value in to_json(config).items() if name in ("levels", "data")}
    if any(part["train"] for part in asked.values()):
        return
    own = run_of(config, folder)
    shared = stock / key_of({"task": config.task, "recipe": to_json(own.recipe)})
    made = run_of(config, shared)
    with held(shared / "lock"):
        if not (shared / CONFIG_FILE).exists():
            made.prepare()
            (shared / CONFIG_FILE).write_text("{}\n")
    own.material.mkdir(parents=True, exist_ok=True)
    for path in made.material.iterdir():
        _link(path, own.material / path.name)


def _link(source: pathlib.Path, target: pathlib.Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy(source, target)


def _check_same(config: RunConfig, folder: pathlib.Path) -> None:
    if not is_begun(folder):
        return
    begun = read_config(folder / CONFIG_FILE)
    if begun == config:
        return
    for path in field_paths(config):
        was, wanted = field_value(begun, path), field_value(config, path)
        if was != wanted:
            raise UserError(
                f"{folder} was begun with {path} = {was}, and {wanted} is asked for now: ask for the same as "
                "before, or give another folder with --out"
            )
