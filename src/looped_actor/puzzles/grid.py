"""Positions and directions on a grid, boards, and the error of a level that cannot be read."""

import abc
from enum import IntEnum

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from looped_actor.utils.files import FileError

Position = tuple[int, int]
"""Row and column, from the top left."""


class Direction(IntEnum):
    """A step on the grid. In Boxoban, the value is the action."""

    UP = 0
    RIGHT = 1
    DOWN = 2
    LEFT = 3

    @property
    def delta(self) -> Position:
        """Rows and columns that one step adds."""
        return ((-1, 0), (0, 1), (1, 0), (0, -1))[self]

    @property
    def arrow(self) -> str:
        return "↑→↓←"[self]


def step_from(position: Position, direction: Direction, steps: int = 1) -> Position:
    """Return the position some steps away. It may lie outside of the board."""
    rows, columns = direction.delta
    return position[0] + steps * rows, position[1] + steps * columns


class Board(abc.ABC):
    """A position of a game, by its plain rules. A frozen dataclass; `str` gives its text."""

    height: int
    width: int

    @property
    @abc.abstractmethod
    def solved(self) -> bool: ...

    @abc.abstractmethod
    def to_cells(self) -> NDArray[np.uint8]:
        """Return the board as an array of cell sums, shape [height, width]."""

    @classmethod
    @abc.abstractmethod
    def from_cells(cls, cells: UInt8[np.ndarray, "h w"], *, source: str = "board") -> "Board":
        """Return the board of an array of cell sums, or raise a `LevelError` that names the source."""

    @classmethod
    @abc.abstractmethod
    def parse(cls, text: str, *, source: str = "level", line: int = 1) -> "Board":
        """Return the board of a text, or raise a `LevelError` that names the source and the line."""


class LevelError(FileError):
    """An invalid level. The message has the file, the line if there is one, and the problem."""

    def __init__(self, problem: str, *, source: str = "level", line: int | None = None):
        super().__init__(f"{source}:{line}: {problem}" if line is not None else f"{source}: {problem}")
        self.problem = problem


MAX_SIDE = 64
"""Rows or columns of the largest board. Solvers number cells in 16 bits; larger files are hardly levels."""


def check_rows(rows: list[str], *, source: str, line: int) -> tuple[int, int]:
    """Return height and width of a board given as rows of text, or raise an error."""
    if not rows or not rows[0]:
        raise LevelError("there is no board here", source=source, line=line)
    height, width = len(rows), len(rows[0])
    for offset, row in enumerate(rows):
        if len(row) != width:
            problem = f"this row has {len(row)} cells, the board's first row has {width}"
            raise LevelError(problem, source=source, line=line + offset)
    check_size(height, width, source, line)
    return height, width


def check_size(height: int, width: int, source: str = "level", line: int | None = None) -> None:
    """Raise an error if a board is larger than the readers and solvers accept."""
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
        problem = f"a board of {height}x{width}; sides of 1 to {MAX_SIDE} are read"
        raise LevelError(problem, source=source, line=line)
