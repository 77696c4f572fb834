"""What the two games share: positions, directions, and the error of a board that is none."""

from enum import IntEnum

from looped_actor.utils.files import FileError

Position = tuple[int, int]
"""Row and column, from the top left."""


class Direction(IntEnum):
    """A step on the grid; the value is the action."""

    UP = 0
    RIGHT = 1
    DOWN = 2
    LEFT = 3

    @property
    def delta(self) -> Position:
        """Rows and columns that one step adds."""
        return ((-1, 0), (0, 1), (1, 0), (0, -1))[self]


def step_from(position: Position, direction: Direction, steps: int = 1) -> Position:
    """The position some steps away. It may lie outside of the board."""
    rows, columns = direction.delta
    return position[0] + steps * rows, position[1] + steps * columns


class LevelError(FileError):
    """A text or an array that is no level. The message says where it came from and what is wrong."""

    def __init__(self, problem: str, *, source: str = "level", line: int | None = None):
        super().__init__(f"{source}:{line}: {problem}" if line is not None else f"{source}: {problem}")
        self.problem = problem


MAX_SIDE = 64
"""Rows or columns of the largest board that is read. Guards against a file that is no level at all."""


def rectangle(rows: list[str], *, source: str, line: int) -> tuple[int, int]:
    """Height and width of a board given as rows of text, or an error."""
    if not rows or not rows[0]:
        raise LevelError("there is no board here", source=source, line=line)
    height, width = len(rows), len(rows[0])
    for offset, row in enumerate(rows):
        if len(row) != width:
            problem = f"this row has {len(row)} cells, the board's first row has {width}"
            raise LevelError(problem, source=source, line=line + offset)
    check_sides(height, width, source, line)
    return height, width


def check_sides(height: int, width: int, source: str = "level", line: int | None = None) -> None:
    """Raise an error if a board is larger than what is read and solved."""
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
        problem = f"a board of {height}x{width}; sides of 1 to {MAX_SIDE} are read"
        raise LevelError(problem, source=source, line=line)
