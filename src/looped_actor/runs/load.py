"""Loading policies from folders, by name, or from a hub."""

import os
import pathlib
from typing import Any

import numpy as np

from looped_actor.policy.policy import FORMAT, WEIGHTS_FILE, Policy, find_policy
from looped_actor.policy.pretrained import locate
from looped_actor.runs.config import CONFIG_FILE, read_config
from looped_actor.runs.folder import fingerprint_of, read_run
from looped_actor.runs.registry import run_of
from looped_actor.runs.run import Build, CustomCode
from looped_actor.training import Checkpoints
from looped_actor.training.fit import CHECKPOINTS_FOLDER
from looped_actor.utils.errors import UserError
from looped_actor.utils.tensors import PolicyError, fit_tensors, named_leaves, read_weights


def load_policy(path: str | os.PathLike, build: Build | None = None, env: Any = None) -> Policy:
    """Load a policy from a folder that training has written, from this package by its name, or from a hub.

    ```python
    policy = looped_actor.load_policy("rush-hour-micro")  # `looped-actor pretrained` lists the names
    policy = looped_actor.load_policy("runs/first")
    policy = looped_actor.load_policy("hf://OWNER/NAME")  # with the extra `hub`
    ```

    Nothing in the files is executed. Raises `PolicyError` if a file is missing, damaged, or does not fit its
    configuration.

    Args:
      path: the folder of a run or of its policy; or a name.
      build: for a custom environment: the function that built the net.
      env: for a custom environment: the environment, to evaluate without naming one.
    """
    where = locate(path)
    folder = find_policy(where)
    if folder is None:
        raise PolicyError(f"{path}: there is no {WEIGHTS_FILE} here; a run writes its policy when it ends")
    file = folder / WEIGHTS_FILE
    try:
        config = read_config(folder / CONFIG_FILE)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    tensors = read_weights(file, FORMAT)
    run = run_of(config, where, code=None if build is None else CustomCode(build, env))
    return Policy(run.spec, fit_tensors(run.spec.weights_like, tensors, file), str(path), where, run.code)


def policy_at(folder: pathlib.Path, checkpoint: str | None = None, code: CustomCode | None = None) -> Policy:
    """Return the policy of a folder or name: a run's, or a finished one.

    For a run, `checkpoint` is best, latest or an iteration. Default: the finished policy, or else latest.
    """
    folder = locate(folder)
    finished = find_policy(folder)
    if checkpoint is None and finished is not None:
        return load_policy(folder, code and code.build, code and code.env)
    if finished == folder:
        raise UserError(f"{folder} is a finished policy and has no checkpoints; give the folder of its run")
    config = read_run(folder)
    checkpoints = Checkpoints(
        folder / CHECKPOINTS_FOLDER, fingerprint_of(folder), read_only=True, best_by=config.best_by
    )
    run, where = run_of(config, folder, code=code), folder / CHECKPOINTS_FOLDER
    stored, bookmark = checkpoints.read(_iteration(checkpoints, checkpoint or "latest"))
    tensors = {}
    for name in named_leaves(run.spec.weights_like):
        for prefix in ("learner.parameters.actor.", "learner.parameters."):  # offline, online
            path = name.replace("parameters.", prefix, 1) if name.startswith("parameters.") else name
            if path in stored:
                tensors[name] = np.asarray(stored[path])
                break
    weights = fit_tensors(run.spec.weights_like, tensors, where / str(bookmark.iteration))
    return Policy(run.spec, weights, f"{folder} after {bookmark.steps:,} steps", folder, code)


def _iteration(checkpoints: Checkpoints, checkpoint: str) -> int | None:
    """Return the iteration that a name stands for; None for the newest."""
    if checkpoint == "latest":
        return None
    if checkpoint == "best":
        if checkpoints.best is None:
            raise UserError(f"{checkpoints.folder}: no checkpoint was evaluated yet; give latest")
        return checkpoints.best
    if not checkpoint.isdecimal():
        raise UserError(f"checkpoint {checkpoint!r}: it must be best, latest or an iteration")
    return int(checkpoint)
