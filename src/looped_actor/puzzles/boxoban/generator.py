"""Boxoban levels of any size and number of boxes, by reverse play.

A random walk carves a room. Boxes are put on targets, and then pulled away by random pulls. Pulls are pushes
played backwards, so the level can be solved. The solver certifies it, and the lengths of its solution are
kept.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.boxoban.solver import MAX_BOXES, solve_cells
from looped_actor.puzzles.grid import MAX_SIDE
from looped_actor.puzzles.random_numbers import draw_below, make_random_state
from looped_actor.puzzles.search import SolveStatus
from looped_actor.utils.compiled import compiled
from looped_actor.utils.errors import UserError

CANDIDATES_PER_BATCH = 200
NODE_LIMIT = 300_000
"""States after which the solver gives up; the level is then dropped."""


@dataclass(frozen=True)
class BoxobanRecipe:
    """Options of the generator. Equal recipes give equal levels."""

    height: int = 10
    """Rows, including the outer walls."""
    width: int = 10
    """Columns, including the outer walls."""
    boxes: int = 4
    """Number of boxes, and of targets."""
    min_pulls: int = 5
    """Minimum number of drags in reverse play. Each drag moves a random box by one to three cells."""
    max_pulls: int = 60
    """Maximum number of drags: more give longer solutions."""
    floor: float = 0.6
    """Minimum share of the inner cells that is floor."""
    direct_share: float = 1.0
    """Share kept of the direct levels, in which every push brings a box nearer to its nearest target. Most
    levels are direct, and a greedy player solves them: a smaller share makes a harder bank."""
    seed: int = 0
    """Seed of all levels."""

    def __post_init__(self) -> None:
        if not (4 <= self.height <= MAX_SIDE and 4 <= self.width <= MAX_SIDE):
            raise UserError(f"boards of 4x4 to 64x64 are generated, not {self.height}x{self.width}")
        if not 0.1 <= self.floor <= 1:
            raise UserError(f"floor is a share of 0.1 to 1, not {self.floor}")
        if not 0 <= self.direct_share <= 1:
            raise UserError(f"direct_share is a share of 0 to 1, not {self.direct_share}")
        cells = int(self.floor * (self.height - 2) * (self.width - 2))
        most = min(MAX_BOXES, cells // 3)
        if not 1 <= self.boxes <= most:
            raise UserError(f"{self.boxes} boxes; 1 to {most} have room on {cells} cells of floor")
        if not 1 <= self.min_pulls <= self.max_pulls:
            raise UserError(
                f"no number of pulls is at least {self.min_pulls} (or 1) and at most {self.max_pulls}"
            )
        if not 0 <= self.seed < 2**63:
            raise UserError("seed must be 0 to 2**63 - 1")

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that decides the levels, in the order in which banks name it."""
        fields = asdict(self)
        seed = fields.pop("seed")
        return {**fields, "node_limit": NODE_LIMIT, "seed": seed}


def generate_batch(task: tuple[BoxobanRecipe, int]) -> dict[str, np.ndarray]:
    """Return the levels among one batch of candidates.

    Columns: cells, and moves and pushes of the optimal solution.
    """
    recipe, batch = task
    kept, moves, pushes = [], [], []
    for candidate in range(batch * CANDIDATES_PER_BATCH, (batch + 1) * CANDIDATES_PER_BATCH):
        cells = _make_candidate(
            recipe.height,
            recipe.width,
            recipe.boxes,
            recipe.min_pulls,
            recipe.max_pulls,
            recipe.floor,
            recipe.seed,
            candidate,
        )
        if (cells == Cell.BOX | Cell.TARGET).any():
            continue  # as in the public collection, no box begins on a target
        solution = solve_cells(cells, NODE_LIMIT)
        if solution.status != SolveStatus.SOLVED.value:
            continue
        direct = len(solution.pushes) == _direct_pushes(cells)
        if direct and _draw_share(recipe.seed, candidate) >= recipe.direct_share:
            continue
        kept.append(cells)
        moves.append(len(solution.moves))
        pushes.append(len(solution.pushes))
    shape = (len(kept), recipe.height, recipe.width)
    return {
        "cells": np.array(kept, np.uint8).reshape(shape),
        "moves": np.array(moves, np.uint16),
        "pushes": np.array(pushes, np.uint16),
    }


def _direct_pushes(cells: np.ndarray) -> int:
    """Return the sum of the distances of all boxes to their nearest targets."""
    boxes, targets = (np.argwhere(cells & kind) for kind in (Cell.BOX, Cell.TARGET))
    return int(np.abs(boxes[:, None] - targets[None]).sum(axis=-1).min(axis=1).sum())


def _draw_share(seed: int, candidate: int) -> float:
    return float(np.random.default_rng((seed, candidate)).random())


_WALL, _BOX, _TARGET, _PLAYER = int(Cell.WALL), int(Cell.BOX), int(Cell.TARGET), int(Cell.PLAYER)


@compiled
def _make_candidate(height, width, boxes, min_pulls, max_pulls, floor, seed, candidate):
    random = make_random_state(seed, candidate)
    cells = np.full((height, width), _WALL, np.uint8)
    _carve(random, cells, floor)
    free = np.flatnonzero(cells.ravel() == 0)
    # The first cells of a random order: targets with their boxes, then the player.
    for i in range(boxes + 1):
        j = i + draw_below(random, free.shape[0] - i)
        free[i], free[j] = free[j], free[i]
        cells.ravel()[free[i]] = _BOX | _TARGET if i < boxes else _PLAYER
    pulls = min_pulls + draw_below(random, max_pulls - min_pulls + 1)
    for _ in range(pulls):
        _pull(random, cells)
    return cells


@compiled
def _carve(random, cells, floor):
    """Turn walls to floor along a random walk of short corridors and small chambers."""
    height, width = cells.shape
    wanted = int(np.ceil(floor * (height - 2) * (width - 2)))
    row, column = 1 + draw_below(random, height - 2), 1 + draw_below(random, width - 2)
    carved = 0
    while carved < wanted:
        direction, length = draw_below(random, 4), 1 + draw_below(random, 3)
        chamber = draw_below(random, 3) == 0
        for _ in range(length):
            for r in range(row, min(row + 1 + chamber, height - 1)):
                for c in range(column, min(column + 1 + chamber, width - 1)):
                    carved += cells[r, c] != 0
                    cells[r, c] = 0
            row = min(max(row + (direction == 2) - (direction == 0), 1), height - 2)
            column = min(max(column + (direction == 1) - (direction == 3), 1), width - 2)


@compiled
def _pull(random, cells):
    """Drag a random box by one to three cells, among all pulls that the player can walk to."""
    height, width = cells.shape
    flat = cells.ravel()
    player = np.flatnonzero(flat & _PLAYER)[0]
    reachable = np.zeros(height * width, np.bool_)
    stack = np.empty(height * width, np.int64)
    stack[0], top = player, 1
    reachable[player] = True
    while top > 0:
        top -= 1
        at = stack[top]
        for step in (-width, 1, width, -1):  # the border is wall, so no step leaves the board
            if not reachable[at + step] and not flat[at + step] & (_WALL | _BOX):
                reachable[at + step] = True
                stack[top] = at + step
                top += 1
    # A pull is a box and a step: the player stands next to the box and has a free cell behind it to step to.
    options = np.empty((height * width * 4, 2), np.int64)
    count = 0
    for box in np.flatnonzero(flat & _BOX):
        for step in (-width, 1, width, -1):
            if reachable[box + step] and not flat[box + 2 * step] & (_WALL | _BOX):
                options[count, 0], options[count, 1] = box, step
                count += 1
    if count == 0:
        return
    chosen = draw_below(random, count)
    box, step = options[chosen, 0], options[chosen, 1]
    flat[player] ^= _PLAYER
    flat[box + step] ^= _PLAYER
    for _ in range(1 + draw_below(random, 3)):
        if flat[box + 2 * step] & (_WALL | _BOX):
            break
        flat[box + 2 * step] ^= _PLAYER
        flat[box + step] ^= _BOX | _PLAYER
        flat[box] ^= _BOX
        box += step
