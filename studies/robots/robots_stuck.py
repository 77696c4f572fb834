"""Still end effectors in puzzle-3x3, and the directions that critics and actor prefer.

python studies/robots/robots_stuck.py runs/press --data data/puzzle-3x3-play-v0-val.npz --out stuck.json

The run's actor learned from `--critics`; the data are its validation data. From states with the effector in
the air, towards goals some presses away: does V prefer the lights after a correct press to those after a
wrong one, does the horizontal move with the highest Q lead to a correct button (within 30 degrees), and does
the actor's? Then episodes are played, and the effector is compared with the data: its distance from a button,
and its height.
"""

import argparse
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

from looped_actor import load_policy
from looped_actor.analysis.drawing import COLOURS, FAINT, INK, new_axes, save_figure
from looped_actor.models import GoalObservation
from looped_actor.reproduction.record import write_record
from looped_actor.robots.evaluation import add_noise
from looped_actor.robots.graded import (
    ARM_SIZE,
    BUTTONS,
    find_buttons,
    find_still_steps,
    press,
    read_effector,
    read_lights,
)
from looped_actor.robots.ogbench import RobotEnv, episode_seed
from looped_actor.runs.config import RobotConfig
from looped_actor.runs.folder import read_run
from looped_actor.runs.robots import RobotRun

PRESSES = range(1, 6)
EXAMPLES = 3000
DIRECTIONS = 16
WITHIN = np.cos(np.pi / 6)
"""Cosine of 30 degrees."""
AWAY = 0.05
"""Distance from a correct button, in metres, from which a move is judged by its direction."""


def with_lights(states: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the states with other lights."""
    changed = states.copy()
    buttons = changed[:, ARM_SIZE:].reshape(len(states), BUTTONS, -1)
    buttons[..., 0], buttons[..., 1] = 1 - wanted, wanted
    changed[:, ARM_SIZE:] = buttons.reshape(len(states), -1)
    return changed


def locate_buttons(states: np.ndarray) -> np.ndarray:
    """Return the median position of the effector when each button is pressed."""
    buttons = find_buttons(read_lights(states[:-1]), read_lights(states[1:]))
    once, effector = buttons.sum(axis=1) == 1, read_effector(states[:-1])
    return np.stack([np.median(effector[once & buttons[:, b], :2], axis=0) for b in range(BUTTONS)])


class Examples(NamedTuple):
    """States, and goals that are some presses away."""

    states: np.ndarray
    goals: np.ndarray
    correct: np.ndarray
    """Mask of the buttons to press."""
    directions: np.ndarray
    """Unit vectors to each button."""
    away: np.ndarray
    """Mask of the examples whose correct buttons are all more than `AWAY` off."""


def make_examples(data: Any, places: np.ndarray, presses: int) -> Examples:
    """Draw examples from the data, with the effector higher than in most states."""
    rng = np.random.default_rng(presses)
    height = read_effector(data)[:, 2]
    states = data[rng.choice(np.flatnonzero(height > np.quantile(height, 0.6)), EXAMPLES)]
    chosen = np.array([rng.permutation(BUTTONS)[:presses] for _ in range(EXAMPLES)])
    lights = np.array([press(now, some) for now, some in zip(read_lights(states), chosen, strict=True)])
    correct = (chosen[..., None] == np.arange(BUTTONS)).any(axis=1)
    gap = places - read_effector(states)[:, None, :2]
    distance = np.linalg.norm(gap, axis=-1)
    return Examples(
        states=states,
        goals=with_lights(data[rng.integers(0, len(data), EXAMPLES)], lights),
        correct=correct,
        directions=gap / distance[..., None],
        away=np.where(correct, distance, np.inf).min(1) > AWAY,
    )


def lead_to_correct(moves: np.ndarray, examples: Examples) -> np.ndarray:
    """Return a mask of the horizontal moves, any number for each example, that lead to a correct button."""
    unit = moves / np.linalg.norm(moves, axis=-1, keepdims=True)
    cosine = np.einsum("n...c,nbc->n...b", unit, examples.directions)
    correct = examples.correct.reshape(len(moves), *[1] * (moves.ndim - 2), -1)
    return (np.where(correct, cosine, -1).max(axis=-1) > WITHIN)[examples.away]


def moves_around(usual: np.ndarray, states: int) -> tuple[np.ndarray, np.ndarray]:
    """Return horizontal moves in all directions, and their actions, whose other numbers are as usual."""
    angles = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    moves = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    actions = np.tile(usual, (DIRECTIONS, states, 1))
    actions[..., :2], actions[..., 2] = moves[:, None], 0
    return moves, actions


def count_correct(
    critics: Callable, act: Callable | None, examples: Examples, usual: np.ndarray
) -> dict[str, float]:
    """Return the shares of correct moves: of those with the highest Q, of all directions, and of the
    actor."""
    moves, actions = moves_around(usual, len(examples.states))
    best = np.array([critics(examples.states, examples.goals, one).min(axis=0) for one in actions]).argmax(0)
    every = np.broadcast_to(moves, (len(examples.states), *moves.shape))
    shares = {
        "q": lead_to_correct(moves[best], examples),
        "any_direction": lead_to_correct(every, examples),
    }
    if act is not None:
        shares["actor"] = lead_to_correct(act(examples.states, examples.goals)[:, :2], examples)
    return {name: float(share.mean()) for name, share in shares.items()}


def measure_knowledge(
    value: Callable,
    critics: Callable,
    data: Any,
    usual: np.ndarray,
    places: np.ndarray,
    act: Callable | None = None,
) -> dict[int, dict[str, float]]:
    """Return the shares of correct choices of V, Q and the actor, by presses. Yaw and gripper are as
    usual."""
    by_presses = {}
    for presses in PRESSES:
        examples = make_examples(data, places, presses)
        rng = np.random.default_rng(0)

        def value_after(candidates: np.ndarray, examples: Examples = examples, rng: Any = rng) -> np.ndarray:
            buttons = [rng.choice(np.flatnonzero(row), 1) for row in candidates]
            lights = read_lights(examples.states)
            after = [press(now, some) for now, some in zip(lights, buttons, strict=True)]
            return np.asarray(value(with_lights(examples.states, np.array(after)), examples.goals))

        shares = count_correct(critics, act, examples, usual)
        prefers = value_after(examples.correct) > value_after(~examples.correct)
        by_presses[presses] = {
            "v_prefers_a_right_press": float(prefers.mean()),
            "q_goes_to_a_right_button": shares["q"],
            "any_direction": shares["any_direction"],
        }
        if act is not None:
            by_presses[presses]["actor_goes_to_a_right_button"] = shares["actor"]
    return by_presses


class Steps(NamedTuple):
    """All steps of some episodes."""

    distance: np.ndarray
    """Distance from the nearest button, in metres."""
    height: np.ndarray
    still: np.ndarray
    down: np.ndarray
    """Vertical part of the action: -1 is down."""


def read_steps(states: np.ndarray, actions: np.ndarray, places: np.ndarray) -> Steps:
    """Return the steps of one episode."""
    after = read_effector(states[1:])
    distance = np.linalg.norm(after[:, None, :2] - places, axis=-1).min(axis=1)
    return Steps(distance, after[:, 2], find_still_steps(states), actions[:, 2])


class Episode(NamedTuple):
    """An episode that was played."""

    states: np.ndarray
    actions: np.ndarray
    """Actions of the actor, without noise."""
    goal: np.ndarray
    solved: bool


def play_one(env: RobotEnv, act: Callable, task: str, number: int, deviation: float) -> Episode:
    """Play an episode of a task, by its number."""
    seed = episode_seed(0, task, number)
    rng, (state, goal) = np.random.default_rng(seed), env.reset(task, seed)
    states, actions = [state], []
    while True:
        actions.append(act(states[-1][None], goal[None])[0])
        step = env.step(add_noise(actions[-1], deviation, rng))
        states.append(step.state)
        if step.success or step.done:
            return Episode(np.array(states), np.array(actions), goal, bool(step.success))


def play(
    act: Callable, task: str, episodes: int, deviation: float, places: np.ndarray, low: float
) -> tuple[Steps, dict[str, Any]]:
    """Play episodes of a task, and return their steps and results."""
    env, every, solved, landings = RobotEnv("puzzle-3x3"), [], 0, []
    for number in track(range(episodes), f"{task}: episodes"):
        played = play_one(env, act, task, number, deviation)
        states, goal = played.states, played.goal
        solved += played.solved
        every.append(read_steps(states, played.actions, places))
        below = states[read_effector(states)[:, 2] < low][:1]
        if below.size:
            (correct,) = find_buttons(read_lights(below), read_lights(goal[None]))
            distance = np.linalg.norm(read_effector(below)[:, :2] - places[correct], axis=-1)
            landings.append(float(distance.min()) if distance.size else 0.0)
    steps = Steps(*(np.concatenate(parts) for parts in zip(*every, strict=True)))
    below = steps.height < low
    return steps, {
        "episodes": episodes,
        "solved": solved,
        "still": float(steps.still.mean()),
        "lower_than_all_data": float(below.mean()),
        "still_steps_that_are_lower": float(below[steps.still].mean()) if steps.still.any() else None,
        "episodes_that_come_so_low": len(landings),
        "metres_from_a_right_button_then": [round(one, 3) for one in landings],
        "height_asked_for_there": float(steps.down[below].mean()) if below.any() else None,
    }


def draw(known: dict[int, Any], steps: Steps, data: Steps, task: str, path: pathlib.Path) -> None:
    """Draw effectors and those of the data, and knowledge by presses."""
    figure, ((where, what),) = new_axes(2, width=5, height=4)
    rng = np.random.default_rng(0)
    shown = rng.choice(len(data.distance), min(6000, len(data.distance)), replace=False)
    dots = {"s": 3, "rasterized": True}
    where.scatter(100 * data.distance[shown], 100 * data.height[shown], color=FAINT, label="the data", **dots)
    for still, colour, label in ((False, COLOURS[1], "moves"), (True, COLOURS[0], "still")):
        these = steps.still == still
        x, y = 100 * steps.distance[these], 100 * steps.height[these]
        where.scatter(x, y, color=colour, label=label, **dots)
    where.set_xlabel("centimetres from the nearest button")
    where.set_ylabel("height of the end effector, centimetres")
    where.set_title(f"Episodes of {task}")
    where.legend(markerscale=3)
    lines = {
        "v_prefers_a_right_press": ("V prefers a correct press", COLOURS[2], "-"),
        "q_goes_to_a_right_button": ("Q prefers a correct direction", COLOURS[1], "-"),
        "actor_goes_to_a_right_button": ("the actor takes one", COLOURS[0], "-"),
        "any_direction": ("all directions", INK, ":"),
    }
    for key, (label, colour, style) in lines.items():
        what.plot(
            list(known), [row[key] for row in known.values()], style, color=colour, marker="o", label=label
        )
    what.set_xlabel("presses between state and goal")
    what.set_ylabel("share of states, effector in the air")
    what.set_xticks(list(known))
    what.set_ylim(0, 1.03)
    what.legend()
    save_figure(figure, path)


def load_run(folder: pathlib.Path) -> tuple[Any, Callable]:
    """Return the value and critics that a run's actor learned from, and the actor's mean action."""
    config, policy = read_run(folder), load_policy(folder)
    assert isinstance(config, RobotConfig)
    run = RobotRun(config, folder)
    assert run.given_critics is not None

    def act(states: np.ndarray, goals: np.ndarray) -> np.ndarray:
        return np.asarray(policy.act(GoalObservation(states, goals)).action)

    return run.critic_functions(run.given_critics), act


def main() -> None:
    """Measure, draw, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["1 press", "2 presses"])
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--deviation", type=float, default=0.1)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    (value, critics), act = load_run(options.run)
    with np.load(options.data) as file:
        data, actions = file["observations"], file["actions"]
    places, low = locate_buttons(data), float(read_effector(data)[:, 2].min())
    known = measure_knowledge(value, critics, data, np.median(actions, axis=0), places, act)
    played = {
        task: play(act, task, options.episodes, options.deviation, places, low) for task in options.tasks
    }
    hardest = options.tasks[-1]
    draw(known, played[hardest][0], read_steps(data, actions[1:], places), hardest, options.out)
    results = {task: result for task, (_, result) in played.items()}
    write_record(options.out, {"lowest_hand_of_the_data": low, "by_presses": known, "episodes": results})


if __name__ == "__main__":
    main()
