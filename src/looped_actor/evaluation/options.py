"""Options of evaluation and export. Imports nothing heavy, since `--help` shows them."""

import difflib
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from looped_actor.names import Platform
from looped_actor.utils.checks import at_least_one, within
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class LoopOptions:
    """Changes to the loop of a policy."""

    max_loops: int | None = None
    """Maximum number of loops. Default: as in training."""
    min_loops: int | None = None
    """Minimum number of loops. Default: as in training."""
    threshold: float | None = None
    """KL below which to halt. Default: as in training."""
    carry_latent: bool | None = None
    """Start a decision from the last latent of its episode, or not. Default: as in training."""


@dataclass(frozen=True)
class EvaluationOptions(LoopOptions):
    """Levels, tasks or episodes to evaluate on."""

    levels: pathlib.Path | None = None
    """Puzzles: bank of levels. Default: the test levels of the run."""
    solutions: pathlib.Path | None = None
    """Puzzles: optimal solutions of that bank by `looped-actor levels solve`, if it has no lengths."""
    count: int | None = None
    """Number of levels (the first ones), or of episodes per task."""
    baselines: bool = False
    """Also evaluate a random policy, and on puzzles a greedy one, which is slow."""
    tasks: tuple[int, ...] | None = None
    """Robots: numbers of the tasks. Default: all five."""
    graded: bool = False
    """Robots: use goals at graded distances instead of the tasks (puzzle-3x3 and cube-double)."""
    deviation: float = 0.0
    """Robots: standard deviation of noise that is added to the mean action."""
    workers: int | None = None
    """Robots: processes that step MuJoCo. Default: one per core."""

    def __post_init__(self) -> None:
        at_least_one(self, "count")
        within(self, 0, 1, "deviation")

    def refuse(self, reason: str, *options: str) -> None:
        """Raise an error that names the first of these options which was given and does not apply."""
        for option in options:
            if getattr(self, option) != getattr(EvaluationOptions, option):
                raise UserError(f"{reason}: leave --{option} out")


@dataclass(frozen=True)
class ExportOptions(LoopOptions):
    """Form of an exported policy."""

    board: tuple[int, int] | None = None
    """Puzzles: rows and columns of the boards that the program reads. Default: as in training."""
    platforms: tuple[Platform, ...] = ("cpu", "cuda", "tpu")
    """Platforms to compile the program for."""


Options = TypeVar("Options", bound=LoopOptions)


def options_from(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Return options of a kind, or raise an error that names those which it does not have."""
    known = [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]}?" if near else f"give some of {', '.join(known)}"
            raise UserError(f"there is no option {name!r}: {meant}")
    return kind(**given)
