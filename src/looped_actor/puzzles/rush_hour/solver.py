"""Optimal solutions of Rush Hour, and whole clusters: all boards that can be reached from one.

A move slides one vehicle any distance. The searches are in `rush_hour_kernel`, for boards whose cells and
offsets fit into 64 bits; larger ones are solved by the plain rules: the same answer, more slowly.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt64

from looped_actor.puzzles.rush_hour.rules import RushHourBoard, Vehicle
from looped_actor.puzzles.rush_hour.solver_kernel import (
    bits_per_vehicle,
    distances_to_solved,
    explore_keys,
    masks_of,
    solve_kernel,
    unpack,
)
from looped_actor.puzzles.solve_status import DEFAULT_NODE_LIMIT, SolveStatus
from looped_actor.utils.errors import UserError


class Slide(NamedTuple):
    """One move: the vehicle, 0 being the red car and the rest in the board's order at the start, and how far.

    Positive distances go right or down.
    """

    vehicle: int
    distance: int


class RushHourSolution(NamedTuple):
    """The outcome of a search; `moves` is empty unless solved."""

    status: SolveStatus
    moves: tuple[Slide, ...]
    nodes: int
    """Boards that were stored."""


class Layout(NamedTuple):
    """A board as arrays: what never changes in its cluster, and the offsets. The red car is first."""

    walls: Bool[np.ndarray, "h w"]
    horizontal: Bool[np.ndarray, " v"]
    line: Int[np.ndarray, " v"]
    """The row of a horizontal vehicle, the column of a vertical one."""
    length: Int[np.ndarray, " v"]
    offset: Int[np.ndarray, " v"]
    """The first cell on that line."""


class Cluster(NamedTuple):
    """All boards that are reachable from one another. Distances are to the nearest solved board."""

    layout: Layout
    keys: UInt64[np.ndarray, " n"]
    distance: Int[np.ndarray, " n"]
    """-1 everywhere if no board of the cluster is solved."""
    complete: bool
    """False if the limit was reached first; then nothing is known of the distances."""

    def board(self, index: int) -> RushHourBoard:
        """One of its boards."""
        offset = np.empty(len(self.layout.line), np.int64)
        unpack(self.keys[index], bits_per_vehicle(max(self.layout.walls.shape)), offset)
        return board_of(self.layout, offset)


def layout_of(board: RushHourBoard) -> Layout:
    """The arrays of a board."""
    walls = np.zeros((board.height, board.width), np.bool_)
    for position in board.walls:
        walls[position] = True
    return Layout(
        walls,
        np.array([v.horizontal for v in board.vehicles]),
        np.array([v.row if v.horizontal else v.column for v in board.vehicles], np.int64),
        np.array([v.length for v in board.vehicles], np.int64),
        np.array([v.column if v.horizontal else v.row for v in board.vehicles], np.int64),
    )


def board_of(layout: Layout, offset: np.ndarray) -> RushHourBoard:
    """The board of a layout with its vehicles at these offsets."""
    vehicles = [
        Vehicle(int(line), int(at), int(length), True)
        if horizontal
        else Vehicle(int(at), int(line), int(length), False)
        for horizontal, line, length, at in zip(
            layout.horizontal, layout.line, layout.length, offset, strict=True
        )
    ]
    walls = frozenset((int(r), int(c)) for r, c in np.argwhere(layout.walls))
    height, width = layout.walls.shape
    return RushHourBoard(height, width, walls, vehicles[0], tuple(sorted(vehicles[1:])))


def most_vehicles(shape: tuple[int, ...]) -> int:
    """How many vehicles' offsets fit into 64 bits, on a board of these rows and columns."""
    return 64 // bits_per_vehicle(max(shape))


def fits(layout: Layout) -> bool:
    """Whether a board's cells, and its vehicles' offsets, fit into 64 bits."""
    return layout.walls.size <= 64 and len(layout.line) <= most_vehicles(layout.walls.shape)


def solve(board: RushHourBoard, *, node_limit: int = DEFAULT_NODE_LIMIT) -> RushHourSolution:
    """A solution with the fewest moves, from any board."""
    if node_limit < 1:
        raise UserError(f"node_limit must be at least 1, not {node_limit}")
    layout = layout_of(board)
    if not fits(layout):
        return solve_plainly(board, node_limit=node_limit)
    status, moves, nodes = solve_kernel(*masks_of(*layout[:-1]), layout.offset, node_limit)
    slides = tuple(Slide(int(vehicle), int(distance)) for vehicle, distance in moves)
    return RushHourSolution(SolveStatus(int(status)), slides, int(nodes))


def solve_plainly(board: RushHourBoard, *, node_limit: int = DEFAULT_NODE_LIMIT) -> RushHourSolution:
    """`solve` by the plain rules: for boards of any size, and to check the fast one."""
    # Sorting reorders vehicles that pass each other in reading order, so who is who is told by their lines.
    found: dict[RushHourBoard, RushHourBoard | None] = {board: None}
    frontier = [board]
    while frontier:
        reached = []
        for here in frontier:
            if here.solved:
                return RushHourSolution(SolveStatus.SOLVED, _slides(board, found, here), len(found))
            for there in here.moves():
                if there in found:
                    continue
                if len(found) >= node_limit:
                    return RushHourSolution(SolveStatus.NOT_WITHIN_LIMIT, (), len(found))
                found[there] = here
                reached.append(there)
        frontier = reached
    return RushHourSolution(SolveStatus.UNSOLVABLE, (), len(found))


def _slides(start: RushHourBoard, came_from: dict, end: RushHourBoard) -> tuple[Slide, ...]:
    path = [end]
    while came_from[path[-1]] is not None:
        path.append(came_from[path[-1]])
    now = list(start.vehicles)
    slides = []
    for board in path[-2::-1]:
        (gone,), (come,) = set(now) - set(board.vehicles), set(board.vehicles) - set(now)
        vehicle = now.index(gone)
        slides.append(Slide(vehicle, come.row - gone.row + come.column - gone.column))
        now[vehicle] = come
    return tuple(slides)


def play(board: RushHourBoard, moves: tuple[Slide, ...]) -> list[RushHourBoard]:
    """The boards of a solution, a cell at a time, first and last included; illegal moves change nothing."""
    now, boards = list(board.vehicles), [board]
    for vehicle, distance in moves:
        for _ in range(abs(distance)):
            boards.append(boards[-1].slide(now[vehicle].cells()[0], distance > 0))
            now[vehicle] = now[vehicle].slid(1 if distance > 0 else -1)
    return boards


def explore(board: RushHourBoard, *, node_limit: int = DEFAULT_NODE_LIMIT) -> Cluster:
    """The cluster of a board, with the optimal length of every board in it."""
    layout = layout_of(board)
    if not fits(layout):
        height, width = layout.walls.shape
        problem = f"clusters are explored on boards of up to 64 cells and {most_vehicles(layout.walls.shape)}"
        raise UserError(f"{problem} vehicles; this has {height}x{width} and {len(layout.line)}")
    masks = masks_of(*layout[:-1])
    keys, count, complete, table = explore_keys(*masks, layout.offset, node_limit)
    distance = distances_to_solved(*masks, keys, count, table)
    return Cluster(layout, keys[:count], distance, bool(complete))
