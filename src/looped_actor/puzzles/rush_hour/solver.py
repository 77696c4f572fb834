"""Optimal solutions of Rush Hour, and clusters: all boards that can be reached from one.

A move slides one vehicle any distance. The searches are compiled, in `solver_kernel`, for boards whose cells
and offsets fit into 64 bits. Larger boards are solved by the plain rules: the same answer, more slowly.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8, UInt64

from looped_actor.puzzles.rush_hour.rules import RushHourBoard, Vehicle
from looped_actor.puzzles.rush_hour.solver_kernel import (
    bits_per_vehicle,
    distances_to_solved,
    explore_keys,
    masks_of,
    solve_kernel,
    unpack,
)
from looped_actor.puzzles.search import DEFAULT_NODE_LIMIT, PackedSolution, SolveStatus
from looped_actor.utils.errors import UserError


class Slide(NamedTuple):
    """One move."""

    vehicle: int
    """0 is the red car; the others are numbered in the order of the board at the start."""
    distance: int
    """Cells to the right or down; negative to the left or up."""


class RushHourSolution(NamedTuple):
    """Result of a search. Moves are empty unless solved."""

    status: SolveStatus
    moves: tuple[Slide, ...]
    nodes: int
    """Boards that were stored."""


def solve(board: RushHourBoard, *, node_limit: int = DEFAULT_NODE_LIMIT) -> RushHourSolution:
    """Return a solution with the fewest moves."""
    if node_limit < 1:
        raise UserError(f"node_limit must be at least 1, not {node_limit}")
    layout = layout_of(board)
    if not fits(layout):
        return solve_plainly(board, node_limit=node_limit)
    status, moves, nodes = solve_kernel(*masks_of(*layout[:-1]), layout.offset, node_limit)
    slides = tuple(Slide(int(vehicle), int(distance)) for vehicle, distance in moves)
    return RushHourSolution(SolveStatus(int(status)), slides, int(nodes))


def solve_cells(cells: UInt8[np.ndarray, "h w"], node_limit: int = DEFAULT_NODE_LIMIT) -> PackedSolution:
    """Return the result of `solve` for a board of cell sums, as arrays."""
    board = RushHourBoard.from_cells(cells)
    solution = solve(board, node_limit=node_limit)
    number = np.int8 if len(board.vehicles) <= 128 else np.int16
    return PackedSolution(
        status=solution.status.value,
        moves=np.array(solution.moves, number).reshape(-1, 2),
        pushes=np.empty((0, 2), np.uint8),
        nodes=solution.nodes,
    )


def solve_plainly(board: RushHourBoard, *, node_limit: int = DEFAULT_NODE_LIMIT) -> RushHourSolution:
    """Return a solution with the fewest moves, by the plain rules: for boards of any size, and for tests."""
    came_from: dict[RushHourBoard, RushHourBoard | None] = {board: None}
    frontier = [board]
    while frontier:
        reached = []
        for here in frontier:
            if here.solved:
                return RushHourSolution(SolveStatus.SOLVED, _slides_to(here, came_from), len(came_from))
            for there in here.neighbours():
                if there in came_from:
                    continue
                if len(came_from) >= node_limit:
                    return RushHourSolution(SolveStatus.NOT_WITHIN_LIMIT, (), len(came_from))
                came_from[there] = here
                reached.append(there)
        frontier = reached
    return RushHourSolution(SolveStatus.UNSOLVABLE, (), len(came_from))


def _slides_to(end: RushHourBoard, came_from: dict[RushHourBoard, RushHourBoard | None]) -> tuple[Slide, ...]:
    path, before = [end], came_from[end]
    while before is not None:
        path.append(before)
        before = came_from[before]
    now = list(path.pop().vehicles)
    slides = []
    for board in reversed(path):
        # Boards sort their vehicles anew, so the one that moved is found by comparison.
        (old,), (new,) = set(now) - set(board.vehicles), set(board.vehicles) - set(now)
        vehicle = now.index(old)
        slides.append(Slide(vehicle, new.row - old.row + new.column - old.column))
        now[vehicle] = new
    return tuple(slides)


def replay(board: RushHourBoard, moves: Iterable[Any]) -> list[RushHourBoard]:
    """Return all boards of a solution, one cell of a slide between two, the first and the last included.

    Moves are (vehicle, distance), as `Slide`s or as rows of an array. Impossible moves change nothing.
    """
    now, boards = list(board.vehicles), [board]
    for vehicle, distance in moves:
        vehicle, distance = int(vehicle), int(distance)
        for _ in range(abs(distance)):
            boards.append(boards[-1].slide(now[vehicle].cells()[0], distance > 0))
            now[vehicle] = now[vehicle].shift(1 if distance > 0 else -1)
    return boards


class Layout(NamedTuple):
    """A board as arrays: the constants of its cluster, and the offsets. The red car is first."""

    walls: Bool[np.ndarray, "h w"]
    horizontal: Bool[np.ndarray, " v"]
    line: Int[np.ndarray, " v"]
    """Row of a horizontal vehicle, column of a vertical one."""
    length: Int[np.ndarray, " v"]
    offset: Int[np.ndarray, " v"]
    """First cell on that line."""


class Cluster(NamedTuple):
    """All boards that can be reached from one another."""

    layout: Layout
    keys: UInt64[np.ndarray, " n"]
    """Offsets of each board, packed."""
    distance: Int[np.ndarray, " n"]
    """Moves from each board to the nearest solved one; -1 if no board of the cluster is solved."""
    complete: bool
    """False if the limit was reached first; the distances are then meaningless."""

    def board(self, index: int) -> RushHourBoard:
        """Return one of the boards."""
        offset = np.empty(len(self.layout.line), np.int64)
        unpack(self.keys[index], bits_per_vehicle(max(self.layout.walls.shape)), offset)
        return board_of(self.layout, offset)


def explore(board: RushHourBoard, *, node_limit: int = DEFAULT_NODE_LIMIT) -> Cluster:
    """Return the cluster of a board, with the optimal length of every board in it."""
    layout = layout_of(board)
    if not fits(layout):
        height, width = layout.walls.shape
        problem = f"clusters are explored on boards of up to 64 cells and {max_vehicles(layout.walls.shape)}"
        raise UserError(f"{problem} vehicles; this has {height}x{width} and {len(layout.line)}")
    masks = masks_of(*layout[:-1])
    keys, count, complete, table = explore_keys(*masks, layout.offset, node_limit)
    distance = distances_to_solved(*masks, keys, count, table)
    return Cluster(layout=layout, keys=keys[:count], distance=distance, complete=bool(complete))


def layout_of(board: RushHourBoard) -> Layout:
    """Return a board as arrays."""
    walls = np.zeros((board.height, board.width), np.bool_)
    for position in board.walls:
        walls[position] = True
    return Layout(
        walls=walls,
        horizontal=np.array([v.horizontal for v in board.vehicles]),
        line=np.array([v.row if v.horizontal else v.column for v in board.vehicles], np.int64),
        length=np.array([v.length for v in board.vehicles], np.int64),
        offset=np.array([v.column if v.horizontal else v.row for v in board.vehicles], np.int64),
    )


def board_of(layout: Layout, offset: np.ndarray) -> RushHourBoard:
    """Return the board of a layout with its vehicles at these offsets."""
    vehicles = []
    for horizontal, line, length, at in zip(
        layout.horizontal, layout.line, layout.length, offset, strict=True
    ):
        row, column = (line, at) if horizontal else (at, line)
        vehicles.append(
            Vehicle(row=int(row), column=int(column), length=int(length), horizontal=bool(horizontal))
        )
    height, width = layout.walls.shape
    return RushHourBoard(
        height=height,
        width=width,
        walls=frozenset((int(row), int(column)) for row, column in np.argwhere(layout.walls)),
        red=vehicles[0],
        others=tuple(sorted(vehicles[1:])),
    )


def max_vehicles(shape: tuple[int, ...]) -> int:
    """Return the number of vehicles whose offsets fit into 64 bits, on a board of this height and width."""
    return 64 // bits_per_vehicle(max(shape))


def fits(layout: Layout) -> bool:
    """Return whether a board's cells, and its vehicles' offsets, fit into 64 bits."""
    return layout.walls.size <= 64 and len(layout.line) <= max_vehicles(layout.walls.shape)
