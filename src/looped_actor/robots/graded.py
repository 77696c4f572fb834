"""Goals by distance: progress shows on them long before OGBench's own tasks are solved.

Each episode has a start and a goal of its own, drawn from its seed.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from looped_actor.utils.errors import UserError

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
"""A cube's side, and how near it must be to where it should be."""
ARM, SCALE = 19, 10
"""Of a state: numbers about the arm, which come first, and units to a metre."""
HAND = slice(12, 15)
"""Of these: where its hand is."""
STILL = 0.002
"""A hand that moves less than so many metres in a step stands still; OGBench's own move by 1 to 2 cm."""


def graded_task(world: str, name: str, seed: int) -> dict[str, Any]:
    """A task as OGBench's environments take it: how the world is at the start, and how it should be."""
    goals, chance = GRADED.get(world, ()), np.random.default_rng(seed)
    if name not in goals:
        known = ", ".join(repr(goal) for goal in goals) or f"only {' and '.join(GRADED)} have any"
        raise UserError(f"{world} has no goal {name!r} by distance: {known}")
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


def subtasks_left(
    world: str, states: Float[np.ndarray, "n s"], goals: Float[np.ndarray, "n s"]
) -> Int[np.ndarray, " n"] | None:
    """How many presses, or cubes that are not where they should be, lie between states and goals.

    None for the worlds of which that is not known.
    """
    if world not in GRADED:
        return None
    if world == "puzzle-3x3":
        return buttons_between(lights(states), lights(goals)).sum(axis=1)
    return (np.linalg.norm(cubes(states) - cubes(goals), axis=-1) > CUBE).sum(axis=1)


def lights(states: Float[np.ndarray, "n s"]) -> Int[np.ndarray, "n b"]:
    """Which lights of puzzle-3x3 are on."""
    return np.asarray(states)[:, ARM:].reshape(len(states), SIDE**2, -1)[..., 1].astype(int)


def buttons_between(now: Int[np.ndarray, "n b"], wanted: Int[np.ndarray, "n b"]) -> Bool[np.ndarray, "n b"]:
    """Which buttons are to be pressed to get from some lights to others."""
    return _buttons()[(now ^ wanted) @ 2 ** np.arange(SIDE**2)]


def hands(states: Float[np.ndarray, "n s"]) -> Float[np.ndarray, "n 3"]:
    """Where the arm's hand is, in metres."""
    return np.asarray(states)[:, HAND] / SCALE


def cubes(states: Float[np.ndarray, "n s"]) -> Float[np.ndarray, "n 2 3"]:
    """Where the two cubes of cube-double are, in metres."""
    return np.asarray(states)[:, ARM:].reshape(len(states), 2, -1)[..., :3] / SCALE


def stands_still(states: Float[np.ndarray, "n s"]) -> Bool[np.ndarray, " n-1"]:
    """Of each step of an episode: whether the hand hardly moves."""
    return np.linalg.norm(np.diff(hands(states), axis=0), axis=1) < STILL


class Motion(NamedTuple):
    """What happens in an episode."""

    still: float
    """Share of steps in which the hand hardly moves."""
    right: int | None
    """Steps after which fewer subtasks are left. None where these are not known."""
    wrong: int | None
    """Steps after which more are left."""


def motion(world: str, states: Float[np.ndarray, "n s"], goal: Float[np.ndarray, " s"]) -> Motion:
    """Of an episode's states, the first one too."""
    still = float(stands_still(states).mean())
    left = subtasks_left(world, states, np.broadcast_to(goal, states.shape))
    if left is None:
        return Motion(still, None, None)
    return Motion(still, *(int((sign * np.diff(left) > 0).sum()) for sign in (-1, 1)))


@functools.cache
def _buttons() -> Bool[np.ndarray, "m b"]:
    """Which buttons make a change of lights, by its bits."""
    bits = 2 ** np.arange(SIDE**2)
    chosen = (np.arange(2**SIDE**2)[:, None] & bits) > 0
    none = np.zeros(SIDE**2, int)
    made = [pressed(none, np.flatnonzero(some)) @ bits for some in chosen]
    by_change = np.empty_like(chosen)
    by_change[made] = chosen
    return by_change
