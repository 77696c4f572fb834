"""Graded goals: goals at known distances, which show progress long before OGBench's own tasks are solved.

Start and goal of each episode are drawn from its seed.
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
"""Names of an environment's graded goals, nearest first. They are part of the seeds of their episodes."""
BUTTONS_PER_SIDE = 3
"""Buttons on each side of puzzle-3x3."""
BUTTONS = BUTTONS_PER_SIDE**2
CUBE_BOUNDS = np.array([[0.35, -0.2], [0.5, 0.2]])
"""Opposite corners of the area in which OGBench's tasks place cubes, in metres."""
CUBE_SIZE = 0.04
"""Side of a cube in metres, and the largest error of its position at the goal."""
UNITS_PER_METRE = 10
"""Scale of the positions in a state."""
ARM_SIZE = 19
"""Scalars of the arm, which come first in a state."""
EFFECTOR = slice(12, 15)
"""Scalars of the position of the arm's end effector."""
STILL_METRES = 0.002
"""Distance in a step, in metres, below which the end effector is still; 0.01 to 0.02 in OGBench's data."""


def make_graded_task(env_name: str, name: str, seed: int) -> dict[str, Any]:
    """Return a graded task as OGBench's environments take it: initial and goal configuration."""
    goals, rng = GRADED.get(env_name, ()), np.random.default_rng(seed)
    if name not in goals:
        known = ", ".join(repr(goal) for goal in goals) or f"only {' and '.join(GRADED)} have any"
        raise UserError(f"{env_name} has no goal {name!r} by distance: {known}")
    if env_name == "puzzle-3x3":
        start = rng.integers(0, 2, BUTTONS)
        buttons = rng.permutation(BUTTONS)[: int(name.split()[0])]
        goal = press(start, buttons)
        return {"task_name": name, "init_button_states": start, "goal_button_states": goal}
    start, goal = _sample_cubes(name, rng)
    return {"task_name": name, "init_xyzs": start, "goal_xyzs": goal}


def press(lights: Int[np.ndarray, " n"], buttons: Int[np.ndarray, " p"]) -> Int[np.ndarray, " n"]:
    """Return the lights of puzzle-3x3 after some buttons were pressed.

    A button toggles its own light and those next to it. Different sets of buttons have different effects on a
    board of 3 x 3, so n different buttons make a goal that is n presses away.
    """
    places = np.stack(np.divmod(np.arange(BUTTONS), BUTTONS_PER_SIDE), axis=-1)
    toggled = np.abs(places[:, None] - places[buttons]).sum(axis=-1) <= 1
    return lights ^ toggled.sum(axis=1) % 2


def _sample_cubes(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw positions of two cubes on the table, and goals: the first cube is to move, the second to stay."""
    low, high = CUBE_BOUNDS
    while True:
        start = np.c_[rng.uniform(low, high, (2, 2)), [CUBE_SIZE / 2] * 2]
        goal, other = start.copy(), start[1, :2]
        if name == "on the other":
            goal[0] = start[1] + [0, 0, CUBE_SIZE]
            places = start[:1, :2]
        else:
            angle = rng.uniform(0, 2 * np.pi)
            goal[0, :2] += float(name.split()[0]) / 100 * np.array([np.cos(angle), np.sin(angle)])
            places = np.stack([start[0, :2], goal[0, :2]])
        on_table = (goal[0, :2] >= low).all() and (goal[0, :2] <= high).all()
        if on_table and np.linalg.norm(places - other, axis=1).min() > 2 * CUBE_SIZE:
            return start, goal


def count_subtasks(
    env_name: str, states: Float[np.ndarray, "n s"], goals: Float[np.ndarray, "n s"]
) -> Int[np.ndarray, " n"] | None:
    """Return the number of subtasks between states and goals: buttons to press, or cubes to move.

    None for environments without graded goals, whose subtasks are not known.
    """
    if env_name not in GRADED:
        return None
    if env_name == "puzzle-3x3":
        return find_buttons(read_lights(states), read_lights(goals)).sum(axis=1)
    return (np.linalg.norm(read_cubes(states) - read_cubes(goals), axis=-1) > CUBE_SIZE).sum(axis=1)


def read_lights(states: Float[np.ndarray, "n s"]) -> Int[np.ndarray, "n b"]:
    """Return the lights of puzzle-3x3 in some states, 0 or 1."""
    return np.asarray(states)[:, ARM_SIZE:].reshape(len(states), BUTTONS, -1)[..., 1].astype(int)


def read_effector(states: Float[np.ndarray, "n s"]) -> Float[np.ndarray, "n 3"]:
    """Return the position of the end effector in some states, in metres."""
    return np.asarray(states)[:, EFFECTOR] / UNITS_PER_METRE


def read_cubes(states: Float[np.ndarray, "n s"]) -> Float[np.ndarray, "n 2 3"]:
    """Return the positions of both cubes of cube-double in some states, in metres."""
    return np.asarray(states)[:, ARM_SIZE:].reshape(len(states), 2, -1)[..., :3] / UNITS_PER_METRE


def find_buttons(lights: Int[np.ndarray, "n b"], goal: Int[np.ndarray, "n b"]) -> Bool[np.ndarray, "n b"]:
    """Return the buttons to press, as a mask, to change lights to those of a goal."""
    return _buttons_by_change()[(lights ^ goal) @ 2 ** np.arange(BUTTONS)]


@functools.cache
def _buttons_by_change() -> Bool[np.ndarray, "m b"]:
    """Return masks of the buttons that cause each change of lights, indexed by the change's bits."""
    bits = 2 ** np.arange(BUTTONS)
    buttons = (np.arange(2**BUTTONS)[:, None] & bits) > 0
    off = np.zeros(BUTTONS, int)
    changes = [press(off, np.flatnonzero(mask)) @ bits for mask in buttons]
    by_change = np.empty_like(buttons)
    by_change[changes] = buttons
    return by_change


def find_still_steps(states: Float[np.ndarray, "n s"]) -> Bool[np.ndarray, " n-1"]:
    """Return a mask of the steps of an episode in which the end effector is still."""
    return np.linalg.norm(np.diff(read_effector(states), axis=0), axis=1) < STILL_METRES


class Motion(NamedTuple):
    """Measures of the motion in an episode. The names are those of evaluation results."""

    still: float
    """Share of steps in which the end effector is still."""
    right: int | None
    """Steps that reduce the number of subtasks. None if subtasks are not known."""
    wrong: int | None
    """Steps that increase it."""


def measure_motion(env_name: str, states: Float[np.ndarray, "n s"], goal: Float[np.ndarray, " s"]) -> Motion:
    """Return the motion in an episode, given all of its states."""
    still = float(find_still_steps(states).mean())
    subtasks = count_subtasks(env_name, states, np.broadcast_to(goal, states.shape))
    if subtasks is None:
        return Motion(still, None, None)
    change = np.diff(subtasks)
    return Motion(still, right=int((change < 0).sum()), wrong=int((change > 0).sum()))
