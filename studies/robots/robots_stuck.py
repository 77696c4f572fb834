"""Where the hand stands still in puzzle-3x3, and which way its critics and its actor would go.

python benchmarks/robots_stuck.py runs/press --data data/puzzle-3x3-play-v0-val.npz --out stuck.json

Of a run whose actor learned from `--critics`, and the data that were held out from it. From states with the
hand in the air, towards goals some presses away: does V prefer the lights after a right press to those after
a wrong one, does the horizontal move that Q likes best lead to a right button (within 30 degrees), and does
the actor's? Then episodes are played, and the hand is compared with the data: how far from a button, and how
high.
"""

import argparse
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from record import write_record
from rich.progress import track

from looped_actor import load_policy
from looped_actor.analysis.drawing import COLOURS, FAINT, INK, new_axes, save_figure
from looped_actor.models import GoalObservation
from looped_actor.robots.evaluation import shaken
from looped_actor.robots.graded import ARM, SIDE, buttons_between, hands, lights, pressed, stands_still
from looped_actor.robots.ogbench import Arena, episode_seed
from looped_actor.runs.folder import read_run
from looped_actor.runs.registry import run_of

BUTTONS = SIDE**2
PRESSES = range(1, 6)
EXAMPLES = 3000
DIRECTIONS = 16
WITHIN = np.cos(np.pi / 6)
"""Thirty degrees."""
AWAY = 0.05
"""In metres: nearer to a right button than this, a move is not judged by its direction."""


def with_lights(states: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The same states with other lights."""
    changed = states.copy()
    buttons = changed[:, ARM:].reshape(len(states), BUTTONS, -1)
    buttons[..., 0], buttons[..., 1] = 1 - wanted, wanted
    changed[:, ARM:] = buttons.reshape(len(states), -1)
    return changed


def places_of_buttons(states: np.ndarray) -> np.ndarray:
    """Where the hand is when a button gives, in the middle of all times that it does."""
    buttons = buttons_between(lights(states[:-1]), lights(states[1:]))
    once = buttons.sum(axis=1) == 1
    return np.stack([np.median(hands(states[:-1])[once & buttons[:, b], :2], axis=0) for b in range(BUTTONS)])


class Examples(NamedTuple):
    """States on the way to goals that are some presses away."""

    states: np.ndarray
    goals: np.ndarray
    right: np.ndarray
    """Which buttons are to be pressed."""
    way: np.ndarray
    """Unit vectors to each button."""
    away: np.ndarray
    """Whether every right button is some centimetres off."""


def examples(data: Any, places: np.ndarray, presses: int) -> Examples:
    """Drawn from the data, with the hand higher than in most of its states."""
    chance = np.random.default_rng(presses)
    height = hands(data)[:, 2]
    states = data[chance.choice(np.flatnonzero(height > np.quantile(height, 0.6)), EXAMPLES)]
    chosen = np.array([chance.permutation(BUTTONS)[:presses] for _ in range(EXAMPLES)])
    wanted = np.array([pressed(now, some) for now, some in zip(lights(states), chosen, strict=True)])
    goals = with_lights(data[chance.integers(0, len(data), EXAMPLES)], wanted)
    right = (chosen[..., None] == np.arange(BUTTONS)).any(axis=1)
    gap = places - hands(states)[:, None, :2]
    far = np.linalg.norm(gap, axis=-1)
    return Examples(states, goals, right, gap / far[..., None], np.where(right, far, np.inf).min(1) > AWAY)


def towards_a_right_one(moves: np.ndarray, given: Examples) -> np.ndarray:
    """Whether horizontal moves, of any number for each example, lead to a right button."""
    unit = moves / np.linalg.norm(moves, axis=-1, keepdims=True)
    cosine = np.einsum("n...c,nbc->n...b", unit, given.way)
    right = given.right.reshape(len(moves), *[1] * (moves.ndim - 2), -1)
    return (np.where(right, cosine, -1).max(axis=-1) > WITHIN)[given.away]


def moves_around(usual: np.ndarray, states: int) -> tuple[np.ndarray, np.ndarray]:
    """Horizontal moves in all directions, and the actions that make them, which else are as usual."""
    angles = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    moves = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    actions = np.tile(usual, (DIRECTIONS, states, 1))
    actions[..., :2], actions[..., 2] = moves[:, None], 0
    return moves, actions


def goes(critics: Callable, act: Callable | None, given: Examples, usual: np.ndarray) -> dict[str, float]:
    """How often the move that Q likes best leads to what is right, any move does, and the actor's does."""
    moves, actions = moves_around(usual, len(given.states))
    liked = np.array([critics(given.states, given.goals, one).min(axis=0) for one in actions]).argmax(0)
    every = np.broadcast_to(moves, (len(given.states), *moves.shape))
    shares = {
        "q": towards_a_right_one(moves[liked], given),
        "any_direction": towards_a_right_one(every, given),
    }
    if act is not None:
        shares["actor"] = towards_a_right_one(act(given.states, given.goals)[:, :2], given)
    return {name: float(share.mean()) for name, share in shares.items()}


def what_is_known(
    value: Callable,
    critics: Callable,
    data: Any,
    usual: np.ndarray,
    places: np.ndarray,
    act: Callable | None = None,
) -> dict[int, dict[str, float]]:
    """By presses: what V, Q and the actor know, as shares of the examples. Turn and gripper are the usual."""
    by_presses = {}
    for presses in PRESSES:
        given = examples(data, places, presses)
        chance = np.random.default_rng(0)

        def after(candidates: np.ndarray, given: Examples = given, chance: Any = chance) -> np.ndarray:
            one = [chance.choice(np.flatnonzero(row), 1) for row in candidates]
            then = [pressed(now, some) for now, some in zip(lights(given.states), one, strict=True)]
            return np.asarray(value(with_lights(given.states, np.array(then)), given.goals))

        shares = goes(critics, act, given, usual)
        by_presses[presses] = {
            "v_prefers_a_right_press": float((after(given.right) > after(~given.right)).mean()),
            "q_goes_to_a_right_button": shares["q"],
            "any_direction": shares["any_direction"],
        }
        if act is not None:
            by_presses[presses]["actor_goes_to_a_right_button"] = shares["actor"]
    return by_presses


class Steps(NamedTuple):
    """All steps of some episodes."""

    off: np.ndarray
    """From the nearest button, in metres."""
    height: np.ndarray
    still: np.ndarray
    down: np.ndarray
    """What the action says of the height: -1 is down."""


def steps_of(states: np.ndarray, actions: np.ndarray, places: np.ndarray) -> Steps:
    """Of one episode."""
    after = hands(states[1:])
    off = np.linalg.norm(after[:, None, :2] - places, axis=-1).min(axis=1)
    return Steps(off, after[:, 2], stands_still(states), actions[:, 2])


class Episode(NamedTuple):
    """One that was played."""

    states: np.ndarray
    actions: np.ndarray
    """What the actor asked for, before noise."""
    goal: np.ndarray
    solved: bool


def play_one(arena: Arena, act: Callable, task: str, number: int, deviation: float) -> Episode:
    """An episode of a task, by its number."""
    seed = episode_seed(0, task, number)
    chance, (state, goal) = np.random.default_rng(seed), arena.begin(task, seed)
    states, actions = [state], []
    while True:
        actions.append(act(states[-1][None], goal[None])[0])
        step = arena.step(shaken(actions[-1], deviation, chance))
        states.append(step.state)
        if step.success or step.over:
            return Episode(np.array(states), np.array(actions), goal, bool(step.success))


def play(
    act: Callable, task: str, episodes: int, deviation: float, places: np.ndarray, low: float
) -> tuple[Steps, dict[str, Any]]:
    """Episodes of a task: their steps, and what they come to."""
    arena, every, solved, landings = Arena("puzzle-3x3"), [], 0, []
    for number in track(range(episodes), f"{task}: episodes"):
        played = play_one(arena, act, task, number, deviation)
        seen, goal = played.states, played.goal
        solved += played.solved
        every.append(steps_of(seen, played.actions, places))
        below = seen[hands(seen)[:, 2] < low][:1]
        if below.size:
            (right,) = buttons_between(lights(below), lights(goal[None]))
            off = np.linalg.norm(hands(below)[:, :2] - places[right], axis=-1)
            landings.append(float(off.min()) if off.size else 0.0)
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


def picture(known: dict[str, Any], steps: Steps, data: Steps, task: str, path: pathlib.Path) -> None:
    """Hands beside the data, and what is known by presses."""
    figure, ((where, what),) = new_axes(2, width=5, height=4)
    chance = np.random.default_rng(0)
    shown = chance.choice(len(data.off), min(6000, len(data.off)), replace=False)
    where.scatter(
        100 * data.off[shown], 100 * data.height[shown], s=3, rasterized=True, color=FAINT, label="the data"
    )
    for still, colour, label in ((False, COLOURS[1], "moves"), (True, COLOURS[0], "stands still")):
        these = steps.still == still
        where.scatter(
            100 * steps.off[these], 100 * steps.height[these], s=3, rasterized=True, color=colour, label=label
        )
    where.set_xlabel("centimetres from the nearest button")
    where.set_ylabel("height of the hand, centimetres")
    where.set_title(f"Episodes of {task}")
    where.legend(markerscale=3)
    lines = {
        "v_prefers_a_right_press": ("V prefers a right press", COLOURS[2], "-"),
        "q_goes_to_a_right_button": ("Q goes to a right button", COLOURS[1], "-"),
        "actor_goes_to_a_right_button": ("the actor goes to one", COLOURS[0], "-"),
        "any_direction": ("any direction does", INK, ":"),
    }
    for key, (label, colour, style) in lines.items():
        what.plot(
            list(known), [row[key] for row in known.values()], style, color=colour, marker="o", label=label
        )
    what.set_xlabel("presses between state and goal")
    what.set_ylabel("share of states, hand in the air")
    what.set_xticks(list(known))
    what.set_ylim(0, 1.03)
    what.legend()
    save_figure(figure, path)


def judges_and_actor(folder: pathlib.Path) -> tuple[Any, Callable]:
    """Value and critics that a run's actor learned from, and the actor's mean."""
    own, policy = run_of(read_run(folder), folder).control, load_policy(folder)

    def act(states: np.ndarray, goals: np.ndarray) -> np.ndarray:
        return np.asarray(policy.act(GoalObservation(states, goals)).action)

    return own.judging(own.given), act


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("run", type=pathlib.Path)
    options.add_argument("--data", type=pathlib.Path, required=True)
    options.add_argument("--tasks", nargs="+", default=["1 press", "2 presses"])
    options.add_argument("--episodes", type=int, default=20)
    options.add_argument("--deviation", type=float, default=0.1)
    options.add_argument("--out", type=pathlib.Path, required=True)
    given = options.parse_args()
    judges, act = judges_and_actor(given.run)
    with np.load(given.data) as file:
        data, actions = file["observations"], file["actions"]
    places, low = places_of_buttons(data), float(hands(data)[:, 2].min())
    known = what_is_known(*judges, data, np.median(actions, axis=0), places, act)
    played = {task: play(act, task, given.episodes, given.deviation, places, low) for task in given.tasks}
    hardest = given.tasks[-1]
    picture(known, played[hardest][0], steps_of(data, actions[1:], places), hardest, given.out)
    facts = {task: facts for task, (_, facts) in played.items()}
    write_record(str(given.out), {"lowest_hand_of_the_data": low, "by_presses": known, "episodes": facts})


if __name__ == "__main__":
    main()
