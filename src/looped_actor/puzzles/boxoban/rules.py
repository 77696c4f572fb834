"""Boxoban (Sokoban): the rules in plain Python, and levels as text.

This is the obvious version: what `boxoban_jax` computes for thousands of boards at once is held to it.
"""

from dataclasses import dataclass, replace
from enum import IntFlag

import numpy as np
from jaxtyping import Bool, UInt8
from numpy.typing import NDArray

from looped_actor.puzzles.grid import Direction, LevelError, Position, rectangle, step_from


class Cell(IntFlag):
    """What is on a cell. A board as an array holds the sum of these for each cell.

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

_TEXT = {cell: symbol for symbol, cell in SYMBOLS.items()}


@dataclass(frozen=True)
class BoxobanBoard:
    """A position of the game. Whatever lies outside of the board is wall."""

    height: int
    width: int
    walls: frozenset[Position]
    targets: frozenset[Position]
    boxes: frozenset[Position]
    player: Position

    def is_wall(self, position: Position) -> bool:
        """Whether nothing can ever be there."""
        inside = 0 <= position[0] < self.height and 0 <= position[1] < self.width
        return not inside or position in self.walls

    def move(self, direction: Direction) -> "BoxobanBoard":
        """Walk one cell, pushing the box that stands there; where that is impossible, stay."""
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
        """Whether every box is on a target."""
        return self.boxes <= self.targets

    def at(self, position: Position) -> Cell:
        """What is on a cell."""
        sets = {Cell.WALL: self.walls, Cell.BOX: self.boxes, Cell.TARGET: self.targets}
        cell = Cell.PLAYER if position == self.player else Cell(0)
        for kind, members in sets.items():
            if position in members:
                cell |= kind
        return cell

    def __str__(self) -> str:
        grid = ((_TEXT[self.at((r, c))] for c in range(self.width)) for r in range(self.height))
        return "\n".join("".join(row) for row in grid)

    def to_cells(self) -> NDArray[np.uint8]:
        """The board as an array of `Cell` sums."""
        cells = np.zeros((self.height, self.width), np.uint8)
        sets = ((Cell.WALL, self.walls), (Cell.TARGET, self.targets), (Cell.BOX, self.boxes))
        for kind, members in (*sets, (Cell.PLAYER, {self.player})):
            if members:
                rows, columns = zip(*members, strict=True)
                cells[rows, columns] |= int(kind)
        return cells

    @classmethod
    def from_cells(cls, cells: UInt8[np.ndarray, "h w"], *, source: str = "board") -> "BoxobanBoard":
        """The board that an array of `Cell` sums describes, or an error that says what is wrong with it."""
        if problem := first_problem(cells):
            raise LevelError(problem, source=source)

        def holding(kind: Cell) -> frozenset[Position]:
            return frozenset((int(r), int(c)) for r, c in np.argwhere(cells & kind))

        (player,) = holding(Cell.PLAYER)
        height, width = cells.shape
        return cls(height, width, holding(Cell.WALL), holding(Cell.TARGET), holding(Cell.BOX), player)

    @classmethod
    def parse(cls, text: str, *, source: str = "level", line: int = 1) -> "BoxobanBoard":
        """The board that rows of `SYMBOLS` describe; `source` and `line` are named in errors."""
        rows = text.strip("\n").split("\n")
        height, width = rectangle(rows, source=source, line=line)
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


def first_problem(cells: UInt8[np.ndarray, "h w"]) -> str | None:
    """What keeps an array of `Cell` sums from being a board, or None."""
    known = np.isin(cells, [int(cell) for cell in SYMBOLS.values()])
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
    """Whether each array is a board: `first_problem` for many at once."""
    known = np.zeros(256, bool)
    known[[int(cell) for cell in SYMBOLS.values()]] = True
    flat = cells.reshape(len(cells), -1)
    players, boxes, targets = (
        ((flat & kind) != 0).sum(axis=1) for kind in (Cell.PLAYER, Cell.BOX, Cell.TARGET)
    )
    return known[flat].all(axis=1) & (players == 1) & (boxes > 0) & (boxes == targets)
