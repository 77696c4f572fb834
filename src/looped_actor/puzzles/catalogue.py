"""The games by name: what code that serves both needs to know of each."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from looped_actor.puzzles.boxoban import rules as boxoban
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.grid import LevelError
from looped_actor.puzzles.rush_hour import rules as rush_hour
from looped_actor.puzzles.rush_hour.rules import RushHourBoard

Board = BoxobanBoard | RushHourBoard


class _Reader(Protocol):
    def __call__(self, text: str, *, source: str = ..., line: int = ...) -> Board: ...


class Game(NamedTuple):
    """A game as data."""

    name: str
    kinds: tuple[int, ...]
    """All sums that a cell can hold. Where one stands here is its code in files: add, never reorder."""
    parse: _Reader
    from_cells: Callable[..., Board]
    valid: Callable[[np.ndarray], NDArray[np.bool_]]
    """Whether each of (n, h, w) arrays of cell sums is a board."""
    time_limit: int
    """Steps of an episode."""


BOXOBAN = Game(
    name="boxoban",
    kinds=tuple(int(cell) for cell in boxoban.SYMBOLS.values()),
    parse=BoxobanBoard.parse,
    from_cells=BoxobanBoard.from_cells,
    valid=boxoban.valid,
    time_limit=120,
)
RUSH_HOUR = Game(
    name="rush-hour",
    kinds=tuple(int(kind) for kind in rush_hour.KINDS),
    parse=RushHourBoard.parse,
    from_cells=RushHourBoard.from_cells,
    valid=rush_hour.valid,
    time_limit=150,
)
GAMES = {game.name: game for game in (BOXOBAN, RUSH_HOUR)}


def game_named(name: str, *, source: str = "game") -> Game:
    """The game of that name, or an error that lists them."""
    if name not in GAMES:
        raise LevelError(f"{name!r} is none of the games {', '.join(GAMES)}", source=source)
    return GAMES[name]
