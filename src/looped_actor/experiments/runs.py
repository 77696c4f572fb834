"""Run folders: begun, trained, resumed, finished."""

import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import Mesh

from looped_actor.batches import Progress, no_progress
from looped_actor.experiments.config import (
    CONFIG_FILE,
    OfflineConfig,
    OnlineConfig,
    RunConfig,
    read_config,
    write_config,
)
from looped_actor.experiments.offline import OfflineRun, prepare_data
from looped_actor.experiments.online import OnlineRun, prepare_levels
from looped_actor.experiments.policies import POLICY_FOLDER, save_policy
from looped_actor.files import held
from looped_actor.training import Bookmark, Checkpoints, Ending, OfflineState, OnlineState, Report, run
from looped_actor.training.runner import CHECKPOINTS_FOLDER


def parts_of(config: RunConfig, folder: pathlib.Path, mesh: Mesh) -> OnlineRun | OfflineRun:
    """What a run is made of."""
    if isinstance(config, OfflineConfig):
        return OfflineRun(config, folder, mesh)
    assert isinstance(config, OnlineConfig)
    return OnlineRun(config, folder, mesh)


def begin_run(config: RunConfig, folder: pathlib.Path, progress: Progress = no_progress) -> RunConfig:
    """Make the folder of a new run: its levels or data and its configuration, which is returned as written.

    Of several processes the first does it, and the others wait: they share a file system.
    """
    if jax.process_index() == 0:
        if (folder / CONFIG_FILE).exists():
            raise ValueError(
                f"{folder} is the folder of a run already: `looped-actor resume {folder}` goes on with it; "
                "for a new one give another folder with --out"
            )
        prepare: Any = prepare_data if isinstance(config, OfflineConfig) else prepare_levels
        write_config(prepare(config, folder, progress), folder / CONFIG_FILE)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("the run's folder is there")
    return read_config(folder / CONFIG_FILE)


def read_run(folder: pathlib.Path) -> RunConfig:
    """The configuration of a run that was begun."""
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder} is not the folder of a run: there is no {CONFIG_FILE} in it")
    return read_config(folder / CONFIG_FILE)


def train_run(
    config: RunConfig,
    folder: pathlib.Path,
    mesh: Mesh,
    report: Callable[[Report], None] = lambda report: None,
) -> Ending:
    """Train a run that was begun, from its newest checkpoint on; write the policy when it ends."""
    with _alone_in(folder), jax.enable_x64(config.double_precision):
        parts = parts_of(config, folder, mesh)
        try:
            state, ending = run(
                parts.trainer,
                folder,
                seed=config.seed,
                fingerprint=config.fingerprint,
                schedule=config.schedule,
                evaluate=parts.evaluate,
                report=report,
            )
        finally:
            parts.close()
        if ending is Ending.FINISHED and jax.process_index() == 0:
            save_policy(config, state.weights, folder / POLICY_FOLDER)
    return ending


@contextmanager
def _alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Two trainings in one folder would spoil each other's files."""
    if jax.process_index() > 0:  # the first one holds it for all
        yield
        return
    try:
        with held(folder / "train.lock"):
            yield
    except BlockingIOError:
        raise ValueError(
            f"{folder}: another process is training in this folder; wait for it, or end it"
        ) from None


def restore_run(
    config: RunConfig, folder: pathlib.Path, mesh: Mesh, checkpoint: str = "latest"
) -> tuple[OnlineState | OfflineState, Bookmark]:
    """The state of a run at a checkpoint (best, latest or an iteration), and where it stood."""
    checkpoints = Checkpoints(folder / CHECKPOINTS_FOLDER, config.fingerprint, read_only=True)
    iteration = None
    if checkpoint == "best":
        iteration = checkpoints.best
        if iteration is None:
            raise ValueError(f"{checkpoints.folder}: no checkpoint was evaluated yet; give latest")
    elif checkpoint != "latest":
        if not checkpoint.isdecimal():
            raise ValueError(f"checkpoint {checkpoint!r}: it must be best, latest or an iteration")
        iteration = int(checkpoint)
    with jax.enable_x64(config.double_precision):
        return checkpoints.restore(parts_of(config, folder, mesh).trainer.begin(config.seed), iteration)
