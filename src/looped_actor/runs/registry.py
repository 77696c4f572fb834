"""The one place that knows which kinds of runs there are."""

import pathlib
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from looped_actor.runs.config import OfflineConfig, OnlineConfig, OwnConfig, RunConfig
from looped_actor.runs.critics import CriticsRun
from looped_actor.runs.custom import OwnRun
from looped_actor.runs.puzzle import PuzzleRun
from looped_actor.runs.robots import ControlRun
from looped_actor.runs.run import Own, Run


def _offline(config: OfflineConfig, *given: Any) -> Run:
    return (CriticsRun if config.learn == "critics" else ControlRun)(config, *given)


KINDS: dict[type[RunConfig], Callable[..., Run]] = {
    OnlineConfig: PuzzleRun,
    OfflineConfig: _offline,
    OwnConfig: OwnRun,
}


def run_of(
    config: RunConfig,
    folder: pathlib.Path | None = None,
    mesh: Mesh | None = None,
    own: Own | None = None,
) -> Run:
    """The object behind a run.

    Args:
      config: of the run.
      folder: where its files are, where they are needed.
      mesh: the devices, where something is computed.
      own: the code of a user's own world.
    """
    return KINDS[type(config)](config, folder or pathlib.Path(), mesh, own)
