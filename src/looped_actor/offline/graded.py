"""Goals by distance: progress shows on them long before OGBench's own tasks are solved.

Each episode has a start and a goal of its own, drawn from its seed.
"""

from typing import Any

import numpy as np
from jaxtyping import Int

GRADED = {
    "cube-double": ("08 cm aside", "25 cm aside", "on the other"),
    "puzzle-3x3": ("1 press", *(f"{presses} presses" for presses in range(2, 8))),
}
"""Names of the goals of a world, the nearest first."""
SIDE = 3
"""Buttons along each side of puzzle-3x3."""
TABLE = np.array([[0.35, -0.2], [0.5, 0.2]])
"""Between which corners OGBench's tasks put cubes, in metres."""
CUBE = 0.04
"""A cube's side."""


def graded_task(world: str, name: str, seed: int) -> dict[str, Any]:
    """A task as OGBench's environments take it: how the world is at the start, and how it should be."""
    goals, chance = GRADED.get(world, ()), np.random.default_rng(seed)
    if name not in goals:
        known = ", ".join(repr(goal) for goal in goals) or f"only {' and '.join(GRADED)} have any"
        raise ValueError(f"{world} has no goal {name!r} by distance: {known}")
    if world == "puzzle-3x3":
        start = chance.integers(0, 2, SIDE**2)
        buttons = chance.permutation(SIDE**2)[: int(name.split()[0])]
        return {
            "task_name": name,
            "init_button_states": start,
            "goal_button_states": pressed(start, buttons),
        }
    start, goal = _cubes(name, chance)
    return {"task_name": name, "init_xyzs": start, "goal_xyzs": goal}


def pressed(states: Int[np.ndarray, " n"], buttons: Int[np.ndarray, " p"]) -> Int[np.ndarray, " n"]:
    """Which lights are on after some buttons were pressed.

    A button switches itself and its neighbours. On three by three no two sets of buttons do the same, so
    a goal is as many presses away as were drawn.
    """
    lights = states.reshape(SIDE, SIDE).copy()
    for row, column in zip(*np.divmod(buttons, SIDE), strict=True):
        for r, c in (
            (row, column),
            (row - 1, column),
            (row + 1, column),
            (row, column - 1),
            (row, column + 1),
        ):
            if 0 <= r < SIDE and 0 <= c < SIDE:
                lights[r, c] ^= 1
    return lights.ravel()


def _cubes(name: str, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two cubes on the table, and where they should be: one of them goes somewhere, the other stays."""
    low, high = TABLE
    while True:
        start = np.c_[chance.uniform(low, high, (2, 2)), [CUBE / 2] * 2]
        goal, other = start.copy(), start[1, :2]
        if name == "on the other":
            goal[0] = start[1] + [0, 0, CUBE]
            places = start[:1, :2]
        else:
            way = chance.uniform(0, 2 * np.pi)
            goal[0, :2] += float(name.split()[0]) / 100 * np.array([np.cos(way), np.sin(way)])
            places = np.stack([start[0, :2], goal[0, :2]])
        on_table = (goal[0, :2] >= low).all() and (goal[0, :2] <= high).all()
        if on_table and np.linalg.norm(places - other, axis=1).min() > 2 * CUBE:
            return start, goal
