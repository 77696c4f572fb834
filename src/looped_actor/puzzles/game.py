"""The parts of a game that code for all games needs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from looped_actor.envs.base import LevelEnvironment, LevelSource
from looped_actor.envs.teacher import Teacher
from looped_actor.puzzles.drawing import Shape, TerminalCell
from looped_actor.puzzles.grid import Board, Direction, Position
from looped_actor.puzzles.search import PackedSolution


class ActionGroup(NamedTuple):
    """Actions that have the same effect on a board, and their name."""

    name: str
    actions: tuple[int, ...]


B = TypeVar("B", bound=Board)


@dataclass(frozen=True, kw_only=True)
class Game(Generic[B]):
    """A game as data: the functions and classes of its folder. The folder's `game.py` lists them."""

    name: str

    board: type[B]
    """Class of the positions."""
    kinds: tuple[int, ...]
    """All sums that a cell can hold. The index of a sum is its code in files: append, never reorder."""
    valid: Callable[[np.ndarray], NDArray[np.bool_]]
    """Return whether each array of cell sums, shape [n, h, w], is a board."""

    planes: int
    """Planes of an observation, one for each bit of a cell sum."""
    time_limit: int
    """Steps after which an episode is truncated."""
    num_actions: Callable[[int, int], int]
    """Return the number of actions on a board of this height and width."""
    step: Callable[[B, int], tuple[B, float]]
    """Return the board after an action, and the reward, by the plain rules."""
    environment: Callable[[LevelSource, int], LevelEnvironment]
    """Return the JAX environment on some levels, with a time limit."""
    name_actions: Callable[[B], list[ActionGroup]]
    """Return all actions, grouped by their effect on this board."""
    locate_action: Callable[[B, int], tuple[Position, Direction] | None]
    """Return cell and direction of an action's arrow in pictures; None if there is nothing to move."""

    solve: Callable[[np.ndarray, int], PackedSolution]
    """Return an optimal solution of a board of cell sums. The search gives up after a number of states."""
    replay: Callable[[B, Iterable[Any]], list[B]]
    """Return all boards of a solution, the first and the last included, one environment step between two."""
    teacher: Callable[[], Teacher]
    """Return the teacher, which labels states with the solver."""
    distance: Literal["moves", "pushes"]
    """Unit in which the analysis measures the distance of a state from solved."""

    recipe: type[Any]
    """Options of the generator: a frozen dataclass. Its `facts` are everything that decides the levels."""
    generate_batch: Callable[[tuple[Any, int]], dict[str, np.ndarray]]
    """Return the levels among one batch of candidates, from a recipe and the number of the batch."""
    candidates_per_batch: int

    draw_action: Callable[[B, np.random.Generator], int]
    """Return a random action, for the random baseline."""
    play_greedily: Callable[[B, int], int | None]
    """Return the steps in which a greedy player solves a board within a time limit, or None."""

    draw: Callable[[B], list[Shape]]
    """Return a board as shapes in units of a cell, back to front; floor, grid and margin are added."""
    terminal_rows: Callable[[B], list[list[TerminalCell]]]
    """Return a board as coloured text, row by row."""
