"""What can be asked of a policy. Nothing heavy is imported: `--help` shows these."""

import difflib
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from looped_actor.checks import at_least_one, within
from looped_actor.errors import UserError
from looped_actor.names import Platform, StartName


@dataclass(frozen=True)
class HaltingChange:
    """How a looped policy is to start and halt, where not as in training."""

    max_loops: int | None = None
    """Override the maximum number of loops."""
    min_loops: int | None = None
    """Override the minimum number of loops."""
    threshold: float | None = None
    """Override the KL below which to halt."""
    start: StartName | None = None
    """Override where a thought starts: from the same latent, or where the last one of its episode ended."""


@dataclass(frozen=True)
class EvaluationRequest(HaltingChange):
    """What to play, and how."""

    levels: pathlib.Path | None = None
    """Puzzles: the bank to play. Default: the one held out in training."""
    solutions: pathlib.Path | None = None
    """Puzzles: optimal solutions of that bank, by `looped-actor levels solve`, where it has no lengths."""
    count: int | None = None
    """Play the first N levels, or N episodes per task."""
    baselines: bool = False
    """Also evaluate a random policy, and on puzzles a greedy one, which is slow."""
    tasks: tuple[int, ...] | None = None
    """Robots: which of the world's five tasks. Default: all."""
    graded: bool = False
    """Robots: goals by distance instead, puzzle-3x3 and cube-double: how near a policy is to the tasks."""
    deviation: float = 0.0
    """Robots: add this much noise to the mean action, where it stands still between two ways."""
    workers: int | None = None
    """Robots: processes that step MuJoCo. Default: one per core."""

    def __post_init__(self) -> None:
        at_least_one(self, "count")
        within(self, 0, 1, "deviation")

    def refuse(self, reason: str, *options: str) -> None:
        """Raise an error that names the first of these options which was given and does not apply."""
        for option in options:
            if getattr(self, option) != getattr(EvaluationRequest, option):
                raise UserError(f"{reason}: leave --{option} out")


@dataclass(frozen=True)
class ExportRequest(HaltingChange):
    """How to export a policy."""

    board: tuple[int, int] | None = None
    """Puzzles: rows and columns of the boards that the program reads. Default: as in training."""
    platforms: tuple[Platform, ...] = ("cpu", "cuda", "tpu")
    """Platforms to compile the program for."""


Request = TypeVar("Request", bound=HaltingChange)


def request_from(kind: type[Request], options: Mapping[str, Any]) -> Request:
    """Return a request with these options, or raise an error that names those which it does not have."""
    known = [field.name for field in fields(kind)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]}?" if near else f"give some of {', '.join(known)}"
            raise UserError(f"there is no option {name!r}: {meant}")
    return kind(**options)
