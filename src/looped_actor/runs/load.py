"""A policy, from the folder that holds it."""

import os
import pathlib
from typing import Any

import jax
import numpy as np

from looped_actor.policy.policy import FORMAT, WEIGHTS_FILE, Policy, finished_policy
from looped_actor.policy.pretrained import located
from looped_actor.runs.config import CONFIG_FILE, read_config
from looped_actor.runs.folder import fingerprint_of, read_run
from looped_actor.runs.registry import run_of
from looped_actor.runs.run import Build, Own
from looped_actor.training import Checkpoints
from looped_actor.training.fit import CHECKPOINTS_FOLDER
from looped_actor.utils.errors import UserError
from looped_actor.utils.tensors import PolicyError, fitted, named_leaves, read_weights


def load_policy(path: str | os.PathLike, build: Build | None = None, env: Any = None) -> Policy:
    """Load a policy: of a folder that training has written, of this package by its name, or from a hub.

    ```python
    policy = looped_actor.load_policy("rush-hour-micro")  # `looped-actor policies` lists their names
    policy = looped_actor.load_policy("runs/first")
    policy = looped_actor.load_policy("hf://OWNER/NAME")  # with the extra `hub`
    ```

    Nothing in the files is executed. Raises `PolicyError` where a file is missing, damaged, or does not
    fit its configuration.

    Args:
      path: the folder of a run or of its policy; or a name.
      build: of your own world: the function that built the net.
      env: of your own world, where it is to be evaluated without naming one.
    """
    where = located(path)
    folder = finished_policy(where)
    if folder is None:
        raise PolicyError(f"{path}: there is no {WEIGHTS_FILE} here; a run writes its policy when it ends")
    file = folder / WEIGHTS_FILE
    try:
        config = read_config(folder / CONFIG_FILE)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    there = read_weights(file, FORMAT)
    run = run_of(config, where, own=None if build is None else Own(build, env))
    return Policy(run, fitted(run.weights_like, there, file), str(path))


def policy_at(folder: pathlib.Path, checkpoint: str | None = None, own: Own | None = None) -> Policy:
    """The policy of a folder or name: a run's, or a finished one.

    For a run, `checkpoint` is best, latest or an iteration. Default: the finished policy, or else latest.
    """
    folder = located(folder)
    finished = finished_policy(folder)
    if checkpoint is None and finished is not None:
        return load_policy(folder, own and own.build, own and own.env)
    if finished == folder:
        raise UserError(f"{folder} is a finished policy and has no checkpoints; give the folder of its run")
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
            raise UserError(f"{checkpoints.folder}: no checkpoint was evaluated yet; give latest")
        return checkpoints.best
    if not checkpoint.isdecimal():
        raise UserError(f"checkpoint {checkpoint!r}: it must be best, latest or an iteration")
    return int(checkpoint)
