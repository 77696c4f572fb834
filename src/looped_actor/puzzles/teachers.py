"""The solvers as teachers: which actions are optimal in a state, as a policy sees it.

An action is optimal if a shortest solution begins with it, counted in steps of the environment. So a step
of Rush Hour slides a vehicle by one cell here, while the solver's moves slide it any distance.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8

from looped_actor.puzzles.boxoban.optimal_moves import advise_boxoban, demonstrate_boxoban
from looped_actor.puzzles.rush_hour.optimal_moves import advise_cluster, demonstrate_cluster, vehicles_of
from looped_actor.puzzles.rush_hour.solver import most_vehicles
from looped_actor.puzzles.solve_status import DEFAULT_NODE_LIMIT
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import default_workers


class Advice(NamedTuple):
    """What a solver says of some states."""

    optimal: Bool[np.ndarray, "n a"]
    """The actions with which a shortest solution begins; none where there is no solution, or none is
    known."""
    remaining: Int[np.ndarray, " n"]
    """Steps of a shortest solution; -1 where there is none, or none is known."""


def cells_of(observation: UInt8[np.ndarray, "n h w k"]) -> UInt8[np.ndarray, "n h w"]:
    """Planes, as the environments of both games give them, as cell sums."""
    return (observation << np.arange(observation.shape[-1], dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)


def planes_of(cells: UInt8[np.ndarray, "n h w"], kinds: int) -> UInt8[np.ndarray, "n h w k"]:
    """Cell sums as planes."""
    return cells[..., None] >> np.arange(kinds, dtype=np.uint8) & 1


@dataclass(frozen=True)
class BoxobanTeacher:
    """Knows the optimal moves of Boxoban."""

    node_limit: int = DEFAULT_NODE_LIMIT
    """States after which a search gives up."""

    def advise(self, observation: UInt8[np.ndarray, "n h w 4"]) -> Advice:
        """The optimal moves of each state."""
        cells, place = distinct_boards(cells_of(observation))
        parts = _over_threads(lambda some: advise_boxoban(some, self.node_limit), cells)
        optimal, remaining = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Advice(optimal[place], remaining[place])

    def demonstrate(self, observation: UInt8[np.ndarray, "n h w 4"], steps: int) -> Int[np.ndarray, "n s"]:
        """The first moves of a shortest solution of each state, and -1 after its end."""
        cells, place = distinct_boards(cells_of(observation))
        parts = _over_threads(lambda some: demonstrate_boxoban(some, steps, self.node_limit), cells)
        return np.concatenate(parts)[place]


@dataclass(frozen=True)
class RushHourTeacher:
    """Knows the optimal steps of Rush Hour: of all states of a cluster at once."""

    node_limit: int = DEFAULT_NODE_LIMIT
    """Boards of a cluster after which a search gives up."""

    def advise(self, observation: UInt8[np.ndarray, "n h w 7"]) -> Advice:
        """The optimal steps of each state."""
        cells, place = distinct_boards(cells_of(observation))
        optimal = np.zeros((len(cells), 2 * cells[0].size), bool)
        remaining = np.full(len(cells), -1, np.int32)

        def advise(rows: np.ndarray) -> None:
            optimal[rows], remaining[rows] = advise_cluster(cells[rows], self.node_limit)

        self._over_clusters(advise, cells)
        return Advice(optimal[place], remaining[place])

    def demonstrate(self, observation: UInt8[np.ndarray, "n h w 7"], steps: int) -> Int[np.ndarray, "n s"]:
        """The first steps of a shortest solution of each state, and -1 after its end."""
        cells, place = distinct_boards(cells_of(observation))
        actions = np.full((len(cells), steps), -1, np.int32)

        def demonstrate(rows: np.ndarray) -> None:
            actions[rows] = demonstrate_cluster(cells[rows], steps, self.node_limit)

        self._over_clusters(demonstrate, cells)
        return actions[place]

    def _over_clusters(self, work: Callable[[np.ndarray], None], cells: UInt8[np.ndarray, "n h w"]) -> None:
        """Work on the rows of all boards that may belong to one cluster: same vehicles on the same lines."""
        kinds = np.stack([_layout_key(board) for board in cells])
        _, kind = np.unique(kinds, axis=0, return_inverse=True)
        order = np.argsort(kind, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(kind[order])) + 1)
        with ThreadPoolExecutor(default_workers()) as threads:
            list(threads.map(work, groups))


def _layout_key(cells: UInt8[np.ndarray, "h w"]) -> np.ndarray:
    """What never changes in a cluster, as a row of numbers."""
    walls, horizontal, line, length, _ = vehicles_of(cells)
    if cells.size > 64 or len(line) > most_vehicles(cells.shape):
        raise UserError(
            f"boards of up to 64 cells and {most_vehicles(cells.shape)} vehicles can be taught, "
            f"not {cells.shape[0]}x{cells.shape[1]} and {len(line)}"
        )
    key = np.zeros(4 * cells.size, np.uint8)
    parts = np.concatenate([walls.ravel(), [len(line)], horizontal, line, length])
    key[: len(parts)] = parts
    return key


def distinct_boards(
    cells: UInt8[np.ndarray, "n h w"],
) -> tuple[UInt8[np.ndarray, "m h w"], Int[np.ndarray, " n"]]:
    """Boards without repetition, and where each of the given ones is among them."""
    distinct, place = np.unique(cells.reshape(len(cells), -1), axis=0, return_inverse=True)
    return distinct.reshape(-1, *cells.shape[1:]), place.reshape(-1)


def _over_threads(work: Callable, cells: UInt8[np.ndarray, "n h w"]) -> list:
    """Work on parts of the boards, one for each core, in order."""
    parts = np.array_split(cells, default_workers())
    with ThreadPoolExecutor(len(parts)) as threads:
        return list(threads.map(work, parts))
