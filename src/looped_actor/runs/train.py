"""Training a policy from Python."""

import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import Mesh

from looped_actor.policy.policy import Policy
from looped_actor.runs.config import CONFIG_FILE, RunConfig
from looped_actor.runs.folder import begin_run, is_begun, read_run, train_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.run import Build, CustomCode
from looped_actor.training import Ending, Logger, Report
from looped_actor.training.progress_bar import training_bar
from looped_actor.training.sharding import all_devices
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import check_writable


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
    """Train a policy into a folder that holds the whole run, or resume the run that is there.

    ```python
    policy = looped_actor.train(preset("rush-hour", "micro"), "runs/first")
    policy = looped_actor.train(CustomConfig(...), "runs/walk", env=Walk(), build=build)
    ```

    The run is saved as it proceeds: after a crash, the same call continues from the newest checkpoint. On
    SIGTERM or Ctrl-C the current iteration is finished and saved, and `KeyboardInterrupt` is raised.

    Args:
      config: a preset, or a `CustomConfig` for a custom environment.
      folder: of the run.
      env: custom environment: one in JAX, or a function that makes a vector environment of Gymnasium.
      build: custom environment: makes the net from `nnx.Rngs`.
      mesh: the devices. Default: all.
      report: called after every iteration. Default: shows a progress bar on the terminal.
      loggers: get all metrics, in addition to metrics.csv and TensorBoard.
    """
    check_writable(folder)
    folder, code = pathlib.Path(folder), None if build is None else CustomCode(build, env)
    mesh = mesh or all_devices()
    if config.trained == "critics":
        raise UserError(f"{config.title}: no policy comes of that; train it with `looped-actor train`")
    if is_begun(folder):
        there = read_run(folder)
        if replace(config, **_resolved(there)) != there:
            raise UserError(
                f"{folder} is the folder of a run with another configuration: give another folder, or the "
                f"configuration in its {CONFIG_FILE}"
            )
        config = there
    else:
        config = begin_run(config, folder, mesh, code=code)
    with training_bar(config.title, config.best_by, shown=report is None) as bar:
        ending = train_run(config, folder, mesh, report or bar, code, loggers)
    if ending is Ending.INTERRUPTED:
        raise KeyboardInterrupt(f"{folder} is saved: the same call continues from there")
    return policy_at(folder, code=code)


def _resolved(config: RunConfig) -> dict[str, Any]:
    """Return the fields that are resolved when a run begins."""
    names = ("microbatch", "slots", "observations", "actions")
    return {name: getattr(config, name) for name in names if hasattr(config, name)}
