"""The kinds of runs, by the types of their configurations."""

import pathlib
from collections.abc import Callable

from jax.sharding import Mesh

from looped_actor.runs.config import CustomConfig, PuzzleConfig, RobotConfig, RunConfig
from looped_actor.runs.custom import CustomRun
from looped_actor.runs.puzzle import PuzzleRun
from looped_actor.runs.robots import RobotRun
from looped_actor.runs.run import CustomCode, Run

KINDS: dict[type[RunConfig], Callable[..., Run]] = {
    PuzzleConfig: PuzzleRun,
    RobotConfig: RobotRun,
    CustomConfig: CustomRun,
}


def run_of(
    config: RunConfig,
    folder: pathlib.Path | None = None,
    mesh: Mesh | None = None,
    code: CustomCode | None = None,
) -> Run:
    """Return the parts of a run.

    Args:
      config: its configuration.
      folder: its folder, if files are needed.
      mesh: the devices, if something is computed.
      code: of a custom environment.
    """
    return KINDS[type(config)](config, folder or pathlib.Path(), mesh, code)
