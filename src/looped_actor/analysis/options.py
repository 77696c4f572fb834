"""Options of the analyses. Imports nothing heavy, since `--help` shows them."""

import pathlib
from dataclasses import dataclass

from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class AnalysisOptions:
    """Output of an analysis."""

    out: pathlib.Path = pathlib.Path("analysis")
    """Folder for the table and the figure."""


@dataclass(frozen=True)
class PlayOptions(AnalysisOptions):
    """Levels or episodes to play."""

    levels: pathlib.Path | None = None
    """Puzzles: bank of levels. Default: the test levels of the run."""
    count: int | None = None
    """Number of levels (the first ones), or of episodes per task."""

    def __post_init__(self) -> None:
        at_least_one(self, "count")


@dataclass(frozen=True)
class HistogramOptions(PlayOptions):
    """Options of `analyze histogram`."""

    count: int | None = None
    """Puzzles: number of levels (the first ones). Default: all."""
    episodes: int | None = None
    """Robots and custom environments: episodes per task. Default: as in training."""

    def __post_init__(self) -> None:
        at_least_one(self, "count", "episodes")


@dataclass(frozen=True)
class CapsOptions(PlayOptions):
    """Options of `analyze caps`."""

    caps: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Maximum numbers of loops of adaptive decisions."""
    thresholds: tuple[float, ...] = (1e-3,)
    """KL below which adaptive decisions halt."""
    fixed: tuple[int, ...] = (4, 8, 16)
    """Numbers of loops of decisions that all take the same number."""


@dataclass(frozen=True)
class FrontierOptions(PlayOptions):
    """Options of `analyze frontier`."""

    carry_latent: tuple[bool, ...] = (False, True)
    """Values of `carry_latent` to compare."""
    min_loops: tuple[int, ...] = (1, 2)
    """Minimum numbers of loops to compare."""
    thresholds: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    """KL below which decisions halt: values to compare."""


@dataclass(frozen=True)
class DifficultyOptions(PlayOptions):
    """Options of `analyze difficulty`."""

    workers: int | None = None
    """Processes that solve the visited states. Default: one per core."""

    def __post_init__(self) -> None:
        at_least_one(self, "count", "workers")


@dataclass(frozen=True)
class ProbeOptions(AnalysisOptions):
    """Options of `analyze probes`. The defaults are the paper's."""

    levels: tuple[pathlib.Path, ...] = ()
    """Banks of levels. Default: the test levels of the run."""
    count: int | None = None
    """Number of levels of each bank (the first ones). Default: all."""
    pushes: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    """Pushes of a solution to read: 1 is the next."""
    loops: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Loops after which to read them. Loops beyond the cap of a policy are left out."""
    seeds: int = 3
    """Probes of each push and loop, with different initial weights."""
    epochs: int = 40
    """Epochs of training."""
    batch: int = 256
    """Levels in a minibatch."""
    workers: int | None = None
    """Processes that solve the levels. Default: one per core."""

    def __post_init__(self) -> None:
        at_least_one(self, "count", "seeds", "epochs", "batch", "workers")
        if not self.pushes or min(self.pushes) < 1 or len(set(self.pushes)) < len(self.pushes):
            raise UserError(f"pushes are {list(self.pushes)}; give each once, counted from 1")
