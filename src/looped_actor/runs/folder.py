"""Run folders: begun, trained, resumed, finished; and the policies in them."""

import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from looped_actor.checks import brief
from looped_actor.configs.provenance import PROVENANCE_FILE
from looped_actor.configs.runs import (
    CONFIG_FILE,
    RunConfig,
    read_config,
    write_config,
)
from looped_actor.devices import all_devices
from looped_actor.files import held, read_json, sweep, write_whole
from looped_actor.processes import Progress, no_progress
from looped_actor.runs.base import Build, Own, Run
from looped_actor.runs.kinds import run_of
from looped_actor.runs.policy import (
    FORMAT,
    POLICY_FOLDER,
    WEIGHTS_FILE,
    Policy,
    finished_policy,
    save_policy,
)
from looped_actor.training import Checkpoints, Ending, Logger, Report, fit
from looped_actor.training.bar import training_bar
from looped_actor.training.fit import CHECKPOINTS_FOLDER
from looped_actor.weights import PolicyError, fitted, named_leaves, read_weights

TEST_FILE = "test.json"
"""What the policy of a finished run did on levels that were kept for it."""


def train(
    config: RunConfig,
    folder: str | os.PathLike,
    *,
    env: Any = None,
    build: Build | None = None,
    mesh: Mesh | None = None,
    report: Callable[[Report], None] | None = None,
    loggers: Sequence[Logger] = (),
) -> Policy:
    """Train a policy, into a folder that holds all of the run; or resume the run that is there.

    ```python
    policy = looped_actor.train(preset("rush-hour", "micro"), "runs/first")
    policy = looped_actor.train(OwnConfig(...), "runs/walk", env=Walk(), build=build)
    ```

    The run is saved as it goes: after a crash, the same call continues from the newest checkpoint. On SIGTERM
    or Ctrl-C the iteration under way is finished and saved, and `KeyboardInterrupt` is raised.

    Args:
      config: a preset, or an `OwnConfig` for a world of your own.
      folder: of the run.
      env: of your own world: an environment in JAX, or a function that makes a vector environment of
        Gymnasium.
      build: of your own world: makes the net from `nnx.Rngs`.
      mesh: the devices. Default: all.
      report: called after every iteration. Default: shows a bar on the terminal.
      loggers: get all numbers, beside metrics.csv and TensorBoard.
    """
    folder, own = pathlib.Path(folder), None if build is None else Own(build, env)
    if (folder / CONFIG_FILE).exists():
        there = read_run(folder)
        if run_of(config, folder, own=own).completed() != there:
            raise ValueError(
                f"{folder} is the folder of a run with another configuration: give another folder, or the "
                f"configuration in its {CONFIG_FILE}"
            )
        config = there
    else:
        config = begin_run(config, folder, own=own)
    with training_bar(config.title, config.best_by, shown=report is None) as bar:
        ending = train_run(config, folder, mesh or all_devices(), report or bar, own, loggers)
    if ending is Ending.INTERRUPTED:
        raise KeyboardInterrupt(f"{folder} is saved: the same call continues from there")
    return policy_at(folder, own=own)


def begin_run(
    config: RunConfig,
    folder: pathlib.Path,
    progress: Progress = no_progress,
    own: Own | None = None,
) -> RunConfig:
    """Make the folder of a new run: its levels or data and its configuration, which is returned.

    With several processes the first does it, and the others wait: they share a file system.
    """
    if jax.process_index() == 0:
        with _alone_in(folder):  # or another process might begin a run here at the same moment
            _begin(config, folder, progress, own)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("the run's folder is there")
    return read_config(folder / CONFIG_FILE)


def _begin(config: RunConfig, folder: pathlib.Path, progress: Progress, own: Own | None) -> None:
    if (folder / CONFIG_FILE).exists():
        raise ValueError(
            f"{folder} is the folder of a run already: `looped-actor resume {folder}` continues it; "
            "for a new one give another folder with --out"
        )
    (folder / PROVENANCE_FILE).unlink(missing_ok=True)  # of a start that was killed
    run = run_of(config, folder, own=own)
    sums = run.prepare(progress)
    if sums:
        write_whole(folder / PROVENANCE_FILE, (json.dumps(sums, indent=2) + "\n").encode())
    write_config(run.completed(), folder / CONFIG_FILE)


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
    own: Own | None = None,
    loggers: Sequence[Logger] = (),
) -> Ending:
    """Train a run that was begun, from its newest checkpoint on; write the policy when it ends."""
    with _alone_in(folder), jax.enable_x64(config.double_precision):
        if jax.process_index() == 0:
            sweep(folder)
        run = run_of(config, folder, mesh, own)
        try:
            state, ending = fit(
                run.trainer,
                folder,
                seed=config.seed,
                fingerprint=fingerprint_of(folder),
                schedule=config.schedule,
                evaluate=run.evaluate,
                report=report,
                loggers=loggers,
            )
            if ending is Ending.FINISHED:
                _finish(run, state, folder)
        except OSError as error:  # a full disk, mostly
            raise OSError(
                f"{folder}: training ended: a file could not be written ({brief(error)}). What was saved "
                f"before is whole; mend that, and `looped-actor resume {folder}` continues from there"
            ) from error
        finally:
            run.close()
    return ending


def _finish(run: Run, state: Any, folder: pathlib.Path) -> None:
    """Test what was learned, and write it; all processes play, and the first one writes.

    A policy is written after its test, so a run that has one is not tested again.
    """
    facts = run.test(state) if finished_policy(folder) is None else None
    if jax.process_index() > 0:
        return
    if facts is not None:
        write_whole(folder / TEST_FILE, json.dumps(facts, indent=1).encode())
    run.keep(state)
    save_policy(run.config, state.weights, folder / POLICY_FOLDER)


@contextmanager
def _alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Two trainings in one folder would spoil each other's files."""
    if jax.process_index() > 0:  # the first one holds it for all
        yield
        return
    with held(folder / "train.lock", taken=f"{folder}: another process is training in this folder"):
        yield


def load_policy(path: str | os.PathLike, build: Build | None = None, env: Any = None) -> Policy:
    """Load a policy that training has written: its folder, or the folder of the run.

    Nothing in the files is executed. Raises `PolicyError` where a file is missing, damaged, or does not
    fit its configuration.

    Args:
      path: the folder.
      build: of your own world: the function that built the net.
      env: of your own world, where it is to be evaluated without naming one.
    """
    folder = finished_policy(path)
    if folder is None:
        raise PolicyError(f"{path}: there is no {WEIGHTS_FILE} here; a run writes its policy when it ends")
    file = folder / WEIGHTS_FILE
    try:
        config = read_config(folder / CONFIG_FILE)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    there = read_weights(file, FORMAT)
    run = run_of(config, pathlib.Path(path), own=None if build is None else Own(build, env))
    return Policy(run, fitted(run.weights_like, there, file), str(path))


def policy_at(folder: pathlib.Path, checkpoint: str | None = None, own: Own | None = None) -> Policy:
    """The policy of a folder: a run's, or one that a run has written.

    For a run, `checkpoint` is best, latest or an iteration. Default: the finished policy, or else latest.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is not a folder; give that of a run, or of a policy that a run has written"
        )
    finished = finished_policy(folder)
    if checkpoint is None and finished is not None:
        return load_policy(folder, own and own.build, own and own.env)
    if finished == folder:
        raise ValueError(f"{folder} is a finished policy and has no checkpoints; give the folder of its run")
    config = read_run(folder)
    checkpoints = Checkpoints(
        folder / CHECKPOINTS_FOLDER, fingerprint_of(folder), read_only=True, best_by=config.best_by
    )
    run, where = run_of(config, folder, own=own), folder / CHECKPOINTS_FOLDER
    with jax.enable_x64(config.double_precision):
        named, bookmark = checkpoints.read(_iteration(checkpoints, checkpoint or "latest"))
        paths = {
            name: name.replace("parameters.", f"{run.parameters_in_state}.", 1)
            for name in named_leaves(run.weights_like)
        }
        there = {name: np.asarray(named[path]) for name, path in paths.items() if path in named}
        weights = fitted(run.weights_like, there, where / str(bookmark.iteration))
    return Policy(run, weights, f"{folder} after {bookmark.steps:,} steps")


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
