"""Run folders: begun, trained, resumed, finished; and the policies in them."""

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.sharding import Mesh

from looped_actor.files import held, write_whole
from looped_actor.processes import Progress, no_progress
from looped_actor.runs.base import Run
from looped_actor.runs.config import (
    CONFIG_FILE,
    PROVENANCE_FILE,
    OfflineConfig,
    OnlineConfig,
    RunConfig,
    read_config,
    read_json,
    write_config,
)
from looped_actor.runs.control import ControlRun
from looped_actor.runs.policy import (
    POLICY_FOLDER,
    Policy,
    finished_policy,
    fitted,
    load_policy,
    save_policy,
    weights_like,
)
from looped_actor.runs.puzzle import PuzzleRun
from looped_actor.training import Checkpoints, Ending, Report, fit
from looped_actor.training.checkpoint import named_leaves
from looped_actor.training.fit import CHECKPOINTS_FOLDER

KINDS: dict[type[RunConfig], type[Run]] = {OnlineConfig: PuzzleRun, OfflineConfig: ControlRun}


def run_of(config: RunConfig, folder: pathlib.Path | None = None, mesh: Mesh | None = None) -> Run:
    """The object behind a run; a folder is needed where files are, a mesh where something is computed."""
    return KINDS[type(config)](config, folder or pathlib.Path(), mesh)


def begin_run(config: RunConfig, folder: pathlib.Path, progress: Progress = no_progress) -> RunConfig:
    """Make the folder of a new run: its levels or data and its configuration, which is returned.

    With several processes the first does it, and the others wait: they share a file system.
    """
    if jax.process_index() == 0:
        if (folder / CONFIG_FILE).exists():
            raise ValueError(
                f"{folder} is the folder of a run already: `looped-actor resume {folder}` goes on with it; "
                "for a new one give another folder with --out"
            )
        sums = run_of(config, folder).prepare(progress)
        write_whole(folder / PROVENANCE_FILE, (json.dumps(sums, indent=2) + "\n").encode())
        write_config(config, folder / CONFIG_FILE)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("the run's folder is there")
    return read_config(folder / CONFIG_FILE)


def read_run(folder: pathlib.Path) -> RunConfig:
    """The configuration of a run that was begun."""
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder} is not the folder of a run: there is no {CONFIG_FILE} in it")
    return read_config(folder / CONFIG_FILE)


def fingerprint_of(folder: pathlib.Path) -> str:
    """Equal while `config.json` says the same; its checkpoints carry it."""
    return hashlib.sha256(json.dumps(read_json(folder / CONFIG_FILE), sort_keys=True).encode()).hexdigest()


def train_run(
    config: RunConfig,
    folder: pathlib.Path,
    mesh: Mesh,
    report: Callable[[Report], None] = lambda report: None,
) -> Ending:
    """Train a run that was begun, from its newest checkpoint on; write the policy when it ends."""
    with _alone_in(folder), jax.enable_x64(config.double_precision):
        run = run_of(config, folder, mesh)
        try:
            state, ending = fit(
                run.trainer,
                folder,
                seed=config.seed,
                fingerprint=fingerprint_of(folder),
                schedule=config.schedule,
                evaluate=run.evaluate,
                report=report,
            )
        finally:
            run.close()
        if ending is Ending.FINISHED and jax.process_index() == 0:
            save_policy(config, state.weights, folder / POLICY_FOLDER)
    return ending


@contextmanager
def _alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Two trainings in one folder would spoil each other's files."""
    if jax.process_index() > 0:  # the first one holds it for all
        yield
        return
    with held(folder / "train.lock", taken=f"{folder}: another process is training in this folder"):
        yield


def policy_at(folder: pathlib.Path, checkpoint: str | None = None) -> Policy:
    """The policy of a folder: a run's, or one that a run has written.

    For a run, `checkpoint` is best, latest or an iteration. Default: the finished policy, or else latest.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is not a folder; give that of a run, or of a policy that a run has written"
        )
    finished = finished_policy(folder)
    if checkpoint is None and finished is not None:
        return load_policy(folder)
    if finished == folder:
        raise ValueError(f"{folder} is a finished policy and has no checkpoints; give the folder of its run")
    config = read_run(folder)
    checkpoints = Checkpoints(folder / CHECKPOINTS_FOLDER, fingerprint_of(folder), read_only=True)
    with jax.enable_x64(config.double_precision):
        named, bookmark = checkpoints.read(_iteration(checkpoints, checkpoint or "latest"))
        inside, where = run_of(config).parameters_in_state, folder / CHECKPOINTS_FOLDER
        paths = {
            name: name.replace("parameters.", f"{inside}.", 1) for name in named_leaves(weights_like(config))
        }
        there = {name: np.asarray(named[path]) for name, path in paths.items() if path in named}
        weights = fitted(config, there, where / str(bookmark.iteration))
    return Policy(config, weights, folder, f"{folder} after {bookmark.steps:,} steps")


def _iteration(checkpoints: Checkpoints, checkpoint: str) -> int | None:
    """Which checkpoint is meant; None for the newest."""
    if checkpoint == "latest":
        return None
    if checkpoint == "best":
        if checkpoints.best is None:
            raise ValueError(f"{checkpoints.folder}: no checkpoint was evaluated yet; give latest")
        return checkpoints.best
    if not checkpoint.isdecimal():
        raise ValueError(f"checkpoint {checkpoint!r}: it must be best, latest or an iteration")
    return int(checkpoint)
