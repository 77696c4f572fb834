"""The rules of Boxoban in plain Python, with rewards, and levels as text and as arrays.

This is the obvious version: tests compare `rules_jax` and the environment with it.
"""

from dataclasses import dataclass, replace
from enum import IntFlag

import numpy as np
from jaxtyping import Bool, UInt8
from numpy.typing import NDArray

from looped_actor.puzzles.grid import Board, Direction, LevelError, Position, check_rows, step_from

TIME_LIMIT = 120
"""Steps of an episode."""
STEP_REWARD = -0.1
BOX_REWARD = 1.0
"""Reward for a box that enters a target; one that leaves it costs as much."""
SOLVED_REWARD = 10.0


class Cell(IntFlag):
    """Contents of a cell. A board as an array holds the sum of these for each cell.

    The order is that of the observation planes.
    """

    WALL = 1
    BOX = 2
    TARGET = 4
    PLAYER = 8


SYMBOLS = {
    " ": Cell(0),
    "#": Cell.WALL,
    "$": Cell.BOX,
    ".": Cell.TARGET,
    "*": Cell.BOX | Cell.TARGET,
    "@": Cell.PLAYER,
    "+": Cell.PLAYER | Cell.TARGET,
}
"""The usual characters of Sokoban levels."""
KINDS = tuple(SYMBOLS.values())
"""All that a cell can be. The order is part of the format of banks."""

_SYMBOL_OF = {cell: symbol for symbol, cell in SYMBOLS.items()}


@dataclass(frozen=True)
class BoxobanBoard(Board):
    """A position of the game. Everything outside of the board is wall."""

    height: int
    width: int
    walls: frozenset[Position]
    targets: frozenset[Position]
    boxes: frozenset[Position]
    player: Position

    def is_wall(self, position: Position) -> bool:
        """Return whether a position is a wall or outside of the board."""
        inside = 0 <= position[0] < self.height and 0 <= position[1] < self.width
        return not inside or position in self.walls

    def move(self, direction: Direction) -> "BoxobanBoard":
        """Walk one cell, pushing the box there; if that is impossible, return the same board."""
        ahead, beyond = step_from(self.player, direction), step_from(self.player, direction, 2)
        if self.is_wall(ahead):
            return self
        if ahead not in self.boxes:
            return replace(self, player=ahead)
        if self.is_wall(beyond) or beyond in self.boxes:
            return self
        return replace(self, player=ahead, boxes=self.boxes - {ahead} | {beyond})

    @property
    def solved(self) -> bool:
        """True if every box is on a target."""
        return self.boxes <= self.targets

    def cell(self, position: Position) -> Cell:
        """Return the contents of a cell."""
        sets = {Cell.WALL: self.walls, Cell.BOX: self.boxes, Cell.TARGET: self.targets}
        cell = Cell.PLAYER if position == self.player else Cell(0)
        for kind, members in sets.items():
            if position in members:
                cell |= kind
        return cell

    def __str__(self) -> str:
        grid = ((_SYMBOL_OF[self.cell((r, c))] for c in range(self.width)) for r in range(self.height))
        return "\n".join("".join(row) for row in grid)

    def to_cells(self) -> NDArray[np.uint8]:
        cells = np.zeros((self.height, self.width), np.uint8)
        sets = ((Cell.WALL, self.walls), (Cell.TARGET, self.targets), (Cell.BOX, self.boxes))
        for kind, members in (*sets, (Cell.PLAYER, {self.player})):
            if members:
                rows, columns = zip(*members, strict=True)
                cells[rows, columns] |= int(kind)
        return cells

    @classmethod
    def from_cells(cls, cells: UInt8[np.ndarray, "h w"], *, source: str = "board") -> "BoxobanBoard":
        if problem := find_problem(cells):
            raise LevelError(problem, source=source)

        def positions(kind: Cell) -> frozenset[Position]:
            return frozenset((int(r), int(c)) for r, c in np.argwhere(cells & kind))

        (player,) = positions(Cell.PLAYER)
        height, width = cells.shape
        return cls(
            height=height,
            width=width,
            walls=positions(Cell.WALL),
            targets=positions(Cell.TARGET),
            boxes=positions(Cell.BOX),
            player=player,
        )

    @classmethod
    def parse(cls, text: str, *, source: str = "level", line: int = 1) -> "BoxobanBoard":
        """Return the board that rows of `SYMBOLS` describe. Errors name `source` and the line."""
        rows = text.strip("\n").split("\n")
        height, width = check_rows(rows, source=source, line=line)
        for offset, row in enumerate(rows):
            for column, symbol in enumerate(row, 1):
                if symbol not in SYMBOLS:
                    problem = f"column {column}: {symbol!r} is none of {' '.join(map(repr, SYMBOLS))}"
                    raise LevelError(problem, source=source, line=line + offset)
        cells = np.array([SYMBOLS[symbol] for row in rows for symbol in row], np.uint8)
        try:
            return cls.from_cells(cells.reshape(height, width))
        except LevelError as error:
            raise LevelError(error.problem, source=source, line=line) from None


def step(board: BoxobanBoard, action: int) -> tuple[BoxobanBoard, float]:
    """Return the board after an action, a `Direction`, and the reward."""
    after = board.move(Direction(action))
    placed = len(after.boxes & after.targets) - len(board.boxes & board.targets)
    return after, STEP_REWARD + BOX_REWARD * placed + SOLVED_REWARD * after.solved


def find_problem(cells: UInt8[np.ndarray, "h w"]) -> str | None:
    """Return what is wrong with an array of `Cell` sums, or None if it is a board."""
    known = np.isin(cells, [int(kind) for kind in KINDS])
    if not known.all():
        row, column = np.argwhere(~known)[0] + 1
        return f"row {row}, column {column}: {cells[row - 1, column - 1]} is no cell of Boxoban"
    players, boxes, targets = (
        int(((cells & kind) != 0).sum()) for kind in (Cell.PLAYER, Cell.BOX, Cell.TARGET)
    )
    if players != 1:
        return f"{players} players; a level has one"
    if boxes == 0:
        return "no box"
    if boxes != targets:
        return f"{boxes} boxes for {targets} targets; a level has as many of one as of the other"
    return None


def valid(cells: UInt8[np.ndarray, "n h w"]) -> Bool[np.ndarray, " n"]:
    """Return whether each array of `Cell` sums is a board: `find_problem` for many at once."""
    known = np.zeros(256, bool)
    known[[int(kind) for kind in KINDS]] = True
    flat = cells.reshape(len(cells), -1)
    players, boxes, targets = (
        ((flat & kind) != 0).sum(axis=1) for kind in (Cell.PLAYER, Cell.BOX, Cell.TARGET)
    )
    return known[flat].all(axis=1) & (players == 1) & (boxes > 0) & (boxes == targets)
