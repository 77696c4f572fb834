"""The solver of Boxoban as a teacher."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt8

from looped_actor.envs.teacher import SolverLabels
from looped_actor.puzzles.boxoban.optimal_moves import demonstrate_boxoban, label_boxoban
from looped_actor.puzzles.search import DEFAULT_NODE_LIMIT
from looped_actor.puzzles.teachers import cells_of, distinct_boards, map_in_threads
from looped_actor.utils.processes import default_workers


@dataclass(frozen=True)
class BoxobanTeacher:
    """Labels states with their optimal moves. Each state is solved by itself."""

    node_limit: int = DEFAULT_NODE_LIMIT
    """States after which a search gives up."""

    def label(self, observation: UInt8[np.ndarray, "n h w 4"]) -> SolverLabels:
        cells, place = distinct_boards(cells_of(observation))
        parts = map_in_threads(
            lambda part: label_boxoban(part, self.node_limit), np.array_split(cells, default_workers())
        )
        optimal, remaining = (np.concatenate(column) for column in zip(*parts, strict=True))
        return SolverLabels(optimal[place], remaining[place])

    def demonstrate(self, observation: UInt8[np.ndarray, "n h w 4"], steps: int) -> Int[np.ndarray, "n s"]:
        cells, place = distinct_boards(cells_of(observation))
        parts = map_in_threads(
            lambda part: demonstrate_boxoban(part, steps, self.node_limit),
            np.array_split(cells, default_workers()),
        )
        return np.concatenate(parts)[place]
