"""The solver of Rush Hour as a teacher."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt8

from looped_actor.envs.teacher import SolverLabels
from looped_actor.puzzles.rush_hour.optimal_moves import demonstrate_cluster, label_cluster
from looped_actor.puzzles.rush_hour.solver import max_vehicles
from looped_actor.puzzles.rush_hour.solver_kernel import vehicles_of
from looped_actor.puzzles.search import DEFAULT_NODE_LIMIT
from looped_actor.puzzles.teachers import cells_of, distinct_boards, map_in_threads
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class RushHourTeacher:
    """Labels states with their optimal steps. All states of a cluster are solved at once."""

    node_limit: int = DEFAULT_NODE_LIMIT
    """Boards of a cluster after which a search gives up."""

    def label(self, observation: UInt8[np.ndarray, "n h w 7"]) -> SolverLabels:
        cells, place = distinct_boards(cells_of(observation))
        optimal = np.zeros((len(cells), 2 * cells[0].size), bool)
        remaining = np.full(len(cells), -1, np.int32)

        def label(rows: np.ndarray) -> None:
            optimal[rows], remaining[rows] = label_cluster(cells[rows], self.node_limit)

        map_in_threads(label, _group_by_layout(cells))
        return SolverLabels(optimal[place], remaining[place])

    def demonstrate(self, observation: UInt8[np.ndarray, "n h w 7"], steps: int) -> Int[np.ndarray, "n s"]:
        cells, place = distinct_boards(cells_of(observation))
        actions = np.full((len(cells), steps), -1, np.int32)

        def demonstrate(rows: np.ndarray) -> None:
            actions[rows] = demonstrate_cluster(cells[rows], steps, self.node_limit)

        map_in_threads(demonstrate, _group_by_layout(cells))
        return actions[place]


def _group_by_layout(cells: UInt8[np.ndarray, "n h w"]) -> list[np.ndarray]:
    """Return groups of rows whose boards may share a cluster.

    These have equal walls, and equal vehicles on equal lines.
    """
    _, layout = np.unique(np.stack([_layout_key(board) for board in cells]), axis=0, return_inverse=True)
    order = np.argsort(layout, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(layout[order])) + 1)


def _layout_key(cells: UInt8[np.ndarray, "h w"]) -> np.ndarray:
    """Return everything about a board that no slide changes, as a row of numbers."""
    walls, horizontal, line, length, _ = vehicles_of(cells)
    if cells.size > 64 or len(line) > max_vehicles(cells.shape):
        raise UserError(
            f"boards of up to 64 cells and {max_vehicles(cells.shape)} vehicles can be taught, "
            f"not {cells.shape[0]}x{cells.shape[1]} and {len(line)}"
        )
    key = np.zeros(4 * cells.size, np.uint8)
    parts = np.concatenate([walls.ravel(), [len(line)], horizontal, line, length])
    key[: len(parts)] = parts
    return key
