"""The runs of a reproduction: which there are, where they lie, how far they are, and how to finish one."""

import os
import pathlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax

from looped_actor.checks import above_zero
from looped_actor.devices import start_devices
from looped_actor.experiments.codec import field_paths, key_of, replaced, to_json
from looped_actor.experiments.config import CONFIG_FILE, OfflineConfig, RunConfig, config_from, read_config
from looped_actor.experiments.fanout import Job, Standing
from looped_actor.experiments.offline import DATA_FOLDER, prepare_data
from looped_actor.experiments.online import LEVELS_FOLDER, prepare_levels
from looped_actor.experiments.policies import finished_policy
from looped_actor.experiments.presets import Scale, preset
from looped_actor.experiments.runs import begin_run, read_run, train_run
from looped_actor.files import held
from looped_actor.offline.ogbench import WORLDS
from looped_actor.training.runner import Ending

MICRO_STEPS = {
    ("boxoban", "ppo"): 100_000,
    ("boxoban", "imitation"): 80_000,
    ("rush-hour", "ppo"): 120_000,
    ("rush-hour", "imitation"): 48_000,
}
"""Of each run at `micro`: far fewer than the preset's, so that a whole grid ends within hours."""
MICRO_EVALUATIONS = 5
STOCK_FOLDER = "stock"


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
        online = {} if key.task in WORLDS else {"learner": key.learner}
        config = replace(preset(key.task, self.scale, key.arm, **online), seed=key.seed)  # type: ignore[arg-type]
        there = set(field_paths(config))
        config = replaced(config, {name: value for name, value in self.changes if name in there})
        steps, given = config.total_steps, {name for name, _ in self.changes}
        if self.scale == "micro" and "total_steps" not in given and key.task not in WORLDS:
            steps = MICRO_STEPS[key.task, key.learner]
        config = replace(config, total_steps=max(1, round(steps * self.budget)))
        if self.scale == "micro" and key.task not in WORLDS and "evaluate_every" not in given:
            config = replace(config, evaluate_every=-(-config.iterations // MICRO_EVALUATIONS))
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
    """In a process of its own: begin a run, or go on with it, to its end.

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
    with held(place / "worker.lock", wait=True):
        if not (place / CONFIG_FILE).exists():
            _stock_up(wanted, place, pathlib.Path(stock))
            begin_run(wanted, place)
        _check_same(wanted, place)
        ending = train_run(read_run(place), place, mesh)
    if ending is not Ending.FINISHED:
        raise InterruptedError(f"it was asked to end, and is saved: {ending.name}")
    return ending.name


def _stock_up(config: RunConfig, folder: pathlib.Path, stock: pathlib.Path) -> None:
    """Give a run the levels or the data of all runs that ask for the same; the first one makes them."""
    offline = isinstance(config, OfflineConfig)
    wanted = config.data if isinstance(config, OfflineConfig) else config.levels  # type: ignore[attr-defined]
    if wanted.train:
        return
    shared = stock / key_of({"task": config.task, "wanted": to_json(wanted)})
    inside = DATA_FOLDER if offline else LEVELS_FOLDER
    with held(shared / "lock", wait=True):
        if not (shared / CONFIG_FILE).exists():
            prepare: Any = prepare_data if offline else prepare_levels
            prepare(replace(config, seed=0), shared)
            (shared / CONFIG_FILE).write_text("{}\n")
    (folder / inside).mkdir(parents=True, exist_ok=True)
    for path in (shared / inside).iterdir():
        _link(path, folder / inside / path.name)


def _link(source: pathlib.Path, target: pathlib.Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy(source, target)


def _check_same(config: RunConfig, folder: pathlib.Path) -> None:
    if not (folder / CONFIG_FILE).exists():
        return
    begun = _without_checksums(read_config(folder / CONFIG_FILE))
    if begun == config:
        return
    for path in field_paths(config):
        was, wanted = _field(begun, path), _field(config, path)
        if was != wanted:
            raise ValueError(
                f"{folder} was begun with {path} = {was}, and {wanted} is asked for now: ask for the same as "
                "before, or give another folder with --out"
            )


def _field(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


def _without_checksums(config: RunConfig) -> RunConfig:
    """As it was before its levels or data were there."""
    part = "data" if isinstance(config, OfflineConfig) else "levels"
    return replaced(config, {f"{part}.{split}_checksum": "" for split in ("train", "held_out")})
