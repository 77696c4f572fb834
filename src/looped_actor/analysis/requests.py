"""What can be asked of an analysis. Nothing heavy is imported: `--help` shows these."""

import pathlib
from dataclasses import dataclass

from looped_actor.names import StartName
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class StudyRequest:
    """Where the tables and figures go."""

    out: pathlib.Path = pathlib.Path("analysis")
    """Folder for what is written."""


@dataclass(frozen=True)
class PlayRequest(StudyRequest):
    """What to play."""

    levels: pathlib.Path | None = None
    """Puzzles: the bank to play. Default: the one held out in training."""
    count: int | None = None
    """Play the first N levels, or N episodes per task."""

    def __post_init__(self) -> None:
        at_least_one(self, "count")


@dataclass(frozen=True)
class HistogramRequest(PlayRequest):
    """How many loops decisions take."""

    count: int | None = None
    """Puzzles: play the first N levels. Default: all."""
    episodes: int | None = None
    """Robots and your own environments: episodes per task. Default: as in training."""


@dataclass(frozen=True)
class CapsRequest(PlayRequest):
    """At which caps and thresholds to play."""

    caps: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Maximum numbers of loops of adaptive decisions."""
    thresholds: tuple[float, ...] = (1e-3,)
    """KL below which these halt."""
    fixed: tuple[int, ...] = (4, 8, 16)
    """Numbers of loops of decisions that are not adaptive."""


@dataclass(frozen=True)
class FrontierRequest(PlayRequest):
    """From where, and how briefly, to think."""

    starts: tuple[StartName, ...] = ("fixed", "carried")
    """Where thoughts start."""
    min_loops: tuple[int, ...] = (1, 2)
    """Loops before which none may end."""
    thresholds: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    """KL below which they end."""


@dataclass(frozen=True)
class DifficultyRequest(PlayRequest):
    """How to solve every state that was visited."""

    node_limit: int = 300_000
    """States after which a search gives up; the state is then counted as unknown."""
    workers: int | None = None
    """Processes that solve. Default: one per core."""


@dataclass(frozen=True)
class ProbeRequest(StudyRequest):
    """What to probe for, and how. The defaults are the paper's."""

    levels: tuple[pathlib.Path, ...] = ()
    """Banks to probe on. Default: the one held out in training."""
    count: int | None = None
    """Use the first N levels of each bank. Default: all."""
    pushes: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    """Which pushes of a solution to read: 1 is the next."""
    loops: tuple[int, ...] = (1, 2, 4, 8, 16)
    """After which loops; those beyond a policy's cap are left out."""
    seeds: int = 3
    """Probes of each kind."""
    epochs: int = 40
    """Rounds of training over the levels."""
    batch: int = 256
    """Levels of a minibatch."""
    node_limit: int = 3_000_000
    """States after which the search for a solution gives up; such levels are left out."""
    workers: int | None = None
    """Processes that solve. Default: one per core."""

    def __post_init__(self) -> None:
        if not self.pushes or min(self.pushes) < 1 or len(set(self.pushes)) < len(self.pushes):
            raise UserError(f"pushes are {list(self.pushes)}; give each once, counted from 1")
