"""How far episodes of cube-double get, and which way its critics and its actor would go.

python benchmarks/robots_cubes.py runs/cube --data data/cube-double-play-v0-val.npz --out cubes.json

Of a run whose actor learned from `--critics`, and the data that were held out from it. Goals by distance are
played, in which one cube is to move: does the hand come to it as near as the hands of the data that carry
one, is it lifted, is it ever above its place, is the episode solved? And from states of the data, with goals
in which one cube is elsewhere: does the horizontal move that Q likes best lead to that cube while the hand is
free, and to the place where it should be while it is carried (within 30 degrees), and does the actor's?
"""

import argparse
import pathlib
from typing import Any, NamedTuple

import numpy as np
from record import write_record
from rich.progress import track
from robots_stuck import AWAY, EXAMPLES, Episode, Examples, goes, judges_and_actor, play_one

from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.robots.graded import ARM, CUBE, GRADED, SCALE, cubes, hands, stands_still
from looped_actor.robots.ogbench import Arena

STAGES = ("reached", "lifted", "over_its_place", "solved")
GOES = ("q", "actor", "any_direction")
LIFTED = CUBE / 2
"""How far above where it lay a cube is lifted, in metres."""


def elsewhere(states: np.ndarray, cube: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The same states with one cube of each at another place."""
    changed = states.copy()
    changed[:, ARM:].reshape(len(states), 2, -1)[np.arange(len(states)), cube, :3] = SCALE * places
    return changed


def carried(states: np.ndarray) -> np.ndarray:
    """Which cubes are in the air: higher than one that lies on the other."""
    return cubes(states)[..., 2] > 1.5 * CUBE + LIFTED


def examples(data: np.ndarray, carrying: bool) -> Examples:
    """States with a free hand above the table or one that carries a cube, and goals with that cube elsewhere.

    What is right with a free hand is the way to the cube, and with a cube the way to its place.
    """
    chance, height = np.random.default_rng(int(carrying)), hands(data)[:, 2]
    fit = carried(data).any(axis=1)
    if not carrying:
        fit = ~fit & (height > np.quantile(height[~fit], 0.6))
    states = data[chance.choice(np.flatnonzero(fit), EXAMPLES)]
    cube = carried(states).argmax(axis=1) if carrying else chance.integers(0, 2, EXAMPLES)
    lying = cubes(data)[:, 0][cubes(data)[:, 0, 2] < CUBE]
    here, there = cubes(states)[np.arange(EXAMPLES), cube], lying[chance.integers(0, len(lying), EXAMPLES)]
    # The arm of a goal is that of a state in which nothing is carried.
    rest = data[chance.choice(np.flatnonzero(~carried(data).any(axis=1)), EXAMPLES)]
    goals = elsewhere(states, cube, there)
    goals[:, :ARM] = rest[:, :ARM]
    gap = ((there if carrying else here) - hands(states))[:, :2]
    far = np.linalg.norm(gap, axis=1)
    moves = np.linalg.norm((there - here)[:, :2], axis=1) > 2 * CUBE
    right = np.ones((EXAMPLES, 1), bool)
    return Examples(states, goals, right, (gap / far[:, None])[:, None], (far > AWAY) & moves)


class Course(NamedTuple):
    """What an episode came to, of the cube that had to move."""

    stages: dict[str, bool]
    nearest: float
    """How near the hand came to it, in metres."""


def course_of(episode: Episode, near: float) -> Course:
    """Of an episode; a hand that is `near` has reached the cube."""
    seen, wanted = cubes(episode.states), cubes(episode.goal[None])[0]
    cube = int(np.linalg.norm(seen[0] - wanted, axis=-1).argmax())
    moved = seen[:, cube]
    off = np.linalg.norm((moved - wanted[cube])[:, :2], axis=-1)
    nearest = float(np.linalg.norm(hands(episode.states) - moved, axis=-1).min())
    stages = {
        "reached": nearest < near,
        "lifted": bool((moved[:, 2] > moved[0, 2] + LIFTED).any()),
        "over_its_place": bool((off < CUBE).any()),
        "solved": episode.solved,
    }
    return Course(stages, nearest)


def bars(axes: Any, shares: dict[str, dict[str, float]], label: str) -> None:
    """A group for each of the inner names, in it a bar for each of the outer ones."""
    width = 0.8 / len(shares)
    for number, ((name, row), colour) in enumerate(zip(shares.items(), COLOURS, strict=False)):
        places = np.arange(len(row)) + (number - (len(shares) - 1) / 2) * width
        axes.bar(places, list(row.values()), width, color=colour, label=name.replace("_", " "))
    names = next(iter(shares.values()))
    axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set_ylabel(label)
    axes.set_ylim(0, 1.03)
    axes.legend()


def picture(played: dict[str, Any], known: dict[str, Any], path: pathlib.Path) -> None:
    """How far episodes get, and what is known."""
    figure, ((far, what),) = new_axes(2, width=5, height=4)
    came = {
        goal: {stage: facts[stage] / facts["episodes"] for stage in STAGES} for goal, facts in played.items()
    }
    bars(far, came, "share of episodes")
    goes_there = {name: {state: shares[name] for state, shares in known.items()} for name in GOES}
    bars(what, goes_there, "share of states in which it goes there")
    save_figure(figure, path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("run", type=pathlib.Path)
    options.add_argument("--data", type=pathlib.Path, required=True)
    options.add_argument("--episodes", type=int, default=20)
    options.add_argument("--deviation", type=float, default=0.1)
    options.add_argument("--out", type=pathlib.Path, required=True)
    given = options.parse_args()
    (_, critics), act = judges_and_actor(given.run)
    with np.load(given.data) as file:
        data, actions = file["observations"], file["actions"]
    air = carried(data)
    off = np.linalg.norm(hands(data)[:, None] - cubes(data), axis=-1)
    near = float(np.quantile(off[air], 0.95))
    known = {
        name: goes(
            critics, act, examples(data, carrying), np.median(actions[air.any(axis=1) == carrying], axis=0)
        )
        for name, carrying in (("to a cube", False), ("with a cube to its place", True))
    }
    arena, played = Arena("cube-double"), {}
    for goal in GRADED["cube-double"]:
        every = [
            play_one(arena, act, goal, number, given.deviation)
            for number in track(range(given.episodes), f"{goal}: episodes")
        ]
        courses = [course_of(episode, near) for episode in every]
        still = float(np.concatenate([stands_still(episode.states) for episode in every]).mean())
        counts = {stage: sum(course.stages[stage] for course in courses) for stage in STAGES}
        nearest = float(np.median([course.nearest for course in courses]))
        played[goal] = {"episodes": len(every), **counts, "median_nearest": nearest, "still": still}
    picture(played, known, given.out)
    write_record(str(given.out), {"hand_and_cube_that_it_carries": near, "goes": known, "episodes": played})


if __name__ == "__main__":
    main()
