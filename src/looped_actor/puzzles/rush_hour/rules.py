"""The rules of Rush Hour in plain Python, with rewards, and boards as text and as arrays.

This is the obvious version: tests compare `rules_jax` and the environment with it.
"""

import string
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8
from numpy.typing import NDArray

from looped_actor.puzzles.grid import Board, Direction, LevelError, Position, check_rows, step_from

TIME_LIMIT = 150
"""Steps of an episode."""
STEP_REWARD = -0.1
SOLVED_REWARD = 10.0


class Cell(IntFlag):
    """Contents of a cell. A board as an array holds the sum of these for each cell.

    The order is that of the observation planes. Vehicles and walls occupy a cell. A link leads to the next
    cell of the same vehicle.
    """

    OCCUPIED = 1
    RED = 2
    WALL = 4
    HORIZONTAL = 8
    VERTICAL = 16
    LINK_RIGHT = 32
    LINK_DOWN = 64


_CAR = Cell.OCCUPIED | Cell.HORIZONTAL
KINDS = (
    Cell(0),
    Cell.OCCUPIED | Cell.WALL,
    _CAR | Cell.LINK_RIGHT,
    _CAR,
    Cell.OCCUPIED | Cell.VERTICAL | Cell.LINK_DOWN,
    Cell.OCCUPIED | Cell.VERTICAL,
    _CAR | Cell.RED | Cell.LINK_RIGHT,
    _CAR | Cell.RED,
)
"""All that a cell can be: empty, wall, and for each sort of vehicle a cell with a link and the last cell.

The order is part of the format of banks.
"""

EMPTY_SYMBOLS = "o."
WALL_SYMBOL = "x"
RED_SYMBOL = "A"
VEHICLE_SYMBOLS = [c for c in string.ascii_uppercase[1:] + string.ascii_lowercase if c not in "ox"]


class Vehicle(NamedTuple):
    """A car or a truck."""

    row: int
    """Row of its first cell, from the top left."""
    column: int
    length: int
    horizontal: bool

    def cells(self) -> list[Position]:
        """Return its cells, first to last."""
        along = Direction.RIGHT if self.horizontal else Direction.DOWN
        return [step_from((self.row, self.column), along, k) for k in range(self.length)]

    def shift(self, distance: int) -> "Vehicle":
        """Return the vehicle moved along its line; forward if positive."""
        if self.horizontal:
            return self._replace(column=self.column + distance)
        return self._replace(row=self.row + distance)


@dataclass(frozen=True)
class RushHourBoard(Board):
    """A position of the game. The red car leaves to the right."""

    height: int
    width: int
    walls: frozenset[Position]
    red: Vehicle
    others: tuple[Vehicle, ...]
    """Sorted by their first cells, row by row."""

    @property
    def vehicles(self) -> tuple[Vehicle, ...]:
        """All vehicles, the red car first."""
        return (self.red, *self.others)

    @property
    def solved(self) -> bool:
        """True if the red car is at the right border."""
        return self.red.column + self.red.length == self.width

    @cached_property
    def occupied(self) -> frozenset[Position]:
        """Cells of walls and vehicles."""
        return self.walls.union(*(vehicle.cells() for vehicle in self.vehicles))

    def _free(self, position: Position) -> bool:
        inside = 0 <= position[0] < self.height and 0 <= position[1] < self.width
        return inside and position not in self.occupied

    def slide(self, cell: Position, forward: bool) -> "RushHourBoard":
        """Slide the vehicle on a cell by one, right or down if `forward`.

        If that is impossible, return the same board.
        """
        for vehicle in self.vehicles:
            cells = vehicle.cells()
            if cell in cells:
                distance = 1 if forward else -1
                entered = vehicle.shift(distance).cells()[-1 if forward else 0]
                return self._with(vehicle, vehicle.shift(distance)) if self._free(entered) else self
        return self

    def _with(self, old: Vehicle, new: Vehicle) -> "RushHourBoard":
        if old == self.red:
            return replace(self, red=new)
        return replace(self, others=tuple(sorted(new if v == old else v for v in self.others)))

    def neighbours(self) -> Iterator["RushHourBoard"]:
        """Yield all boards one move away. A move slides one vehicle any distance."""
        for vehicle in self.vehicles:
            for forward in (False, True):
                board, cell = self, vehicle.cells()[0]
                while True:
                    further = board.slide(cell, forward)
                    if further is board:
                        break
                    yield further
                    board, cell = further, step_from(cell, direction_of(vehicle, forward))

    @property
    def distance_to_exit(self) -> int:
        """Cells between the red car and the right border."""
        return self.width - self.red.column - self.red.length

    @property
    def potential(self) -> int:
        """Minus the blockers, minus the distance to the exit; rewards include its change."""
        return -self.blockers - self.distance_to_exit

    @property
    def blockers(self) -> int:
        """Occupied cells between the red car and the right border."""
        ahead = range(self.red.column + self.red.length, self.width)
        return sum(not self._free((self.red.row, column)) for column in ahead)

    def __str__(self) -> str:
        return "\n".join("".join(row) for row in self._rows())

    @property
    def flat_text(self) -> str:
        """The board as text on one line, as databases write it."""
        return "".join("".join(row) for row in self._rows())

    def _rows(self) -> list[list[str]]:
        grid = [["."] * self.width for _ in range(self.height)]
        for row, column in self.walls:
            grid[row][column] = WALL_SYMBOL
        if len(self.others) > len(VEHICLE_SYMBOLS):
            raise LevelError(f"{len(self.others)} vehicles; text has letters for {len(VEHICLE_SYMBOLS)}")
        for symbol, vehicle in zip([RED_SYMBOL, *VEHICLE_SYMBOLS], self.vehicles, strict=False):
            for row, column in vehicle.cells():
                grid[row][column] = symbol
        return grid

    def to_cells(self) -> NDArray[np.uint8]:
        cells = np.zeros((self.height, self.width), np.uint8)
        for position in self.walls:
            cells[position] = Cell.OCCUPIED | Cell.WALL
        for vehicle in self.vehicles:
            kind = Cell.OCCUPIED | (Cell.HORIZONTAL if vehicle.horizontal else Cell.VERTICAL)
            kind |= Cell.RED if vehicle == self.red else 0
            *linked, last = vehicle.cells()
            for position in linked:
                cells[position] = kind | (Cell.LINK_RIGHT if vehicle.horizontal else Cell.LINK_DOWN)
            cells[last] = kind
        return cells

    @classmethod
    def from_cells(cls, cells: UInt8[np.ndarray, "h w"], *, source: str = "board") -> "RushHourBoard":
        if not valid(cells[None])[0]:
            raise LevelError("cells that do not link up to vehicles, or not one red car", source=source)
        height, width = cells.shape
        walls, red, others = set(), [], []
        covered: set[Position] = set()
        for row in range(height):
            for column in range(width):
                cell = Cell(int(cells[row, column]))
                if cell & Cell.WALL:
                    walls.add((row, column))
                elif cell and (row, column) not in covered:
                    vehicle = _read_vehicle(cells, row, column)
                    covered.update(vehicle.cells())
                    (red if cell & Cell.RED else others).append(vehicle)
        return cls(
            height=height,
            width=width,
            walls=frozenset(walls),
            red=red[0],
            others=tuple(sorted(others)),
        )

    @classmethod
    def parse(cls, text: str, *, source: str = "level", line: int = 1) -> "RushHourBoard":
        """Return the board that letters describe, in rows or, if it is square, on one line.

        `A` is the red car, `o` and `.` are empty, `x` is a wall, any other letter is a vehicle. Errors name
        `source` and the line.
        """
        rows = text.strip("\n").split("\n")
        on_one_line = len(rows) == 1
        if on_one_line:
            side = int(len(rows[0]) ** 0.5)
            if side * side != len(rows[0]) or not side:
                problem = f"{len(rows[0])} cells on one line are no square board"
                raise LevelError(problem, source=source, line=line)
            rows = [rows[0][i * side : (i + 1) * side] for i in range(side)]
        height, width = check_rows(rows, source=source, line=line)
        walls, found = set(), dict[str, list[Position]]()
        for row, symbols in enumerate(rows):
            for column, symbol in enumerate(symbols):
                if symbol == WALL_SYMBOL:
                    walls.add((row, column))
                elif symbol == RED_SYMBOL or symbol in VEHICLE_SYMBOLS:
                    found.setdefault(symbol, []).append((row, column))
                elif symbol not in EMPTY_SYMBOLS:
                    problem = f"{symbol!r} is no letter, 'o' or '.'"
                    raise LevelError(problem, source=source, line=line + (0 if on_one_line else row))
        vehicles = {}
        for symbol, cells in found.items():
            (row, column), horizontal = cells[0], cells[0][0] == cells[-1][0]
            vehicles[symbol] = Vehicle(row, column, len(cells), horizontal)
            if len(cells) < 2 or vehicles[symbol].cells() != cells:
                problem = f"the cells of {symbol!r} are no vehicle: two or more in one straight line"
                raise LevelError(problem, source=source, line=line + (0 if on_one_line else row))
        red = vehicles.pop(RED_SYMBOL, None)
        if red is None or not red.horizontal:
            problem = f"there is no horizontal red car {RED_SYMBOL!r}"
            raise LevelError(problem, source=source, line=line)
        return cls(
            height=height,
            width=width,
            walls=frozenset(walls),
            red=red,
            others=tuple(sorted(vehicles.values())),
        )


def step(board: RushHourBoard, action: int) -> tuple[RushHourBoard, float]:
    """Return the board after an action, `2 x cell + forward`, and the reward."""
    after = board.slide(divmod(action // 2, board.width), forward=action % 2 == 1)
    return after, STEP_REWARD + after.potential - board.potential + SOLVED_REWARD * after.solved


def direction_of(vehicle: Vehicle, forward: bool) -> Direction:
    """Return the direction in which a vehicle slides."""
    if vehicle.horizontal:
        return Direction.RIGHT if forward else Direction.LEFT
    return Direction.DOWN if forward else Direction.UP


def _read_vehicle(cells: np.ndarray, row: int, column: int) -> Vehicle:
    """Return the vehicle whose first cell this is."""
    horizontal = bool(cells[row, column] & Cell.HORIZONTAL)
    link, direction = (Cell.LINK_RIGHT, Direction.RIGHT) if horizontal else (Cell.LINK_DOWN, Direction.DOWN)
    length = 1
    while cells[step_from((row, column), direction, length - 1)] & link:
        length += 1
    return Vehicle(row, column, length, horizontal)


def valid(cells: UInt8[np.ndarray, "n h w"]) -> Bool[np.ndarray, " n"]:
    """Return whether each array of `Cell` sums is a board.

    Every cell is of a known kind, every link leads to a cell of the same vehicle, every vehicle has a link,
    and one horizontal vehicle is red.
    """
    known = np.zeros(256, bool)
    known[[int(kind) for kind in KINDS]] = True
    ok = known[cells].all(axis=(1, 2))
    starts = dict[int, np.ndarray]()
    for axis, link, kind in ((2, Cell.LINK_RIGHT, Cell.HORIZONTAL), (1, Cell.LINK_DOWN, Cell.VERTICAL)):
        linked = (cells & link) != 0
        before = np.roll(linked, 1, axis)
        following = np.roll(cells, -1, axis)
        # `roll` wraps around: nothing lies across the border.
        edge, first = (slice(None),) * axis + (-1,), (slice(None),) * axis + (0,)
        before[first], following[edge] = False, 0
        of_kind = (cells & kind) != 0
        joined = (following & (kind | Cell.RED)) == (cells & (kind | Cell.RED))
        ok &= (~linked | (of_kind & joined)).all(axis=(1, 2))
        ok &= (~of_kind | linked | before).all(axis=(1, 2))
        starts[kind] = of_kind & ~before
    reds = ((cells & Cell.RED) != 0) & starts[Cell.HORIZONTAL]
    return ok & (reds.sum(axis=(1, 2)) == 1)
