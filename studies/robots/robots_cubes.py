"""Stages that episodes of cube-double reach, and the directions that critics and actor prefer.

python studies/robots/robots_cubes.py runs/cube --data data/cube-double-play-v0-val.npz --out cubes.json

The run's actor learned from `--critics`; the data are its validation data. Graded goals are played, in which
one cube is to move: does the effector come as near to it as the effectors of the data that carry a cube, is
the cube lifted, is it ever above its place, is the episode solved? And from states of the data, with goals in
which one cube is elsewhere: does the horizontal move with the highest Q lead to that cube while the effector
is free, and to the cube's place while it is carried (within 30 degrees), and does the actor's?
"""

import argparse
import pathlib
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track
from robots_stuck import AWAY, EXAMPLES, Episode, Examples, count_correct, load_run, play_one

from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.reproduction.record import write_record
from looped_actor.robots.graded import (
    ARM_SIZE,
    CUBE_SIZE,
    GRADED,
    UNITS_PER_METRE,
    find_still_steps,
    read_cubes,
    read_effector,
)
from looped_actor.robots.ogbench import RobotEnv

STAGES = ("reached", "lifted", "over_its_place", "solved")
MOVERS = ("q", "actor", "any_direction")
LIFTED = CUBE_SIZE / 2
"""Height above its first place, in metres, from which a cube is lifted."""


def move_cubes(states: np.ndarray, cube: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the states with one cube of each at another place."""
    changed = states.copy()
    cubes = changed[:, ARM_SIZE:].reshape(len(states), 2, -1)
    cubes[np.arange(len(states)), cube, :3] = UNITS_PER_METRE * places
    return changed


def find_carried(states: np.ndarray) -> np.ndarray:
    """Return a mask of the cubes in the air: higher than one that lies on the other."""
    return read_cubes(states)[..., 2] > 1.5 * CUBE_SIZE + LIFTED


def make_examples(data: np.ndarray, carrying: bool) -> Examples:
    """Draw states with a free effector in the air, or with a carried cube, and goals with that cube
    elsewhere.

    The correct direction is that to the cube, or with a carried cube that to its place.
    """
    rng, height = np.random.default_rng(int(carrying)), read_effector(data)[:, 2]
    carried, rows = find_carried(data), np.arange(EXAMPLES)
    chosen = carried.any(axis=1)
    if not carrying:
        chosen = ~chosen & (height > np.quantile(height[~chosen], 0.6))
    states = data[rng.choice(np.flatnonzero(chosen), EXAMPLES)]
    cube = find_carried(states).argmax(axis=1) if carrying else rng.integers(0, 2, EXAMPLES)
    cubes = read_cubes(data)[:, 0]
    lying = cubes[cubes[:, 2] < CUBE_SIZE]
    here, there = read_cubes(states)[rows, cube], lying[rng.integers(0, len(lying), EXAMPLES)]
    # The arm of a goal is that of a state in which nothing is carried.
    rest = data[rng.choice(np.flatnonzero(~carried.any(axis=1)), EXAMPLES)]
    goals = move_cubes(states, cube, there)
    goals[:, :ARM_SIZE] = rest[:, :ARM_SIZE]
    gap = ((there if carrying else here) - read_effector(states))[:, :2]
    distance = np.linalg.norm(gap, axis=1)
    moves = np.linalg.norm((there - here)[:, :2], axis=1) > 2 * CUBE_SIZE
    return Examples(
        states=states,
        goals=goals,
        correct=np.ones((EXAMPLES, 1), bool),
        directions=(gap / distance[:, None])[:, None],
        away=(distance > AWAY) & moves,
    )


class Course(NamedTuple):
    """Progress of an episode with the cube that had to move."""

    stages: dict[str, bool]
    nearest: float
    """Smallest distance of the effector from the cube, in metres."""


def measure_course(episode: Episode, near: float) -> Course:
    """Return the progress of an episode; an effector that is `near` has reached the cube."""
    cubes, goal = read_cubes(episode.states), read_cubes(episode.goal[None])[0]
    cube = int(np.linalg.norm(cubes[0] - goal, axis=-1).argmax())
    moved = cubes[:, cube]
    distance = np.linalg.norm((moved - goal[cube])[:, :2], axis=-1)
    nearest = float(np.linalg.norm(read_effector(episode.states) - moved, axis=-1).min())
    stages = {
        "reached": nearest < near,
        "lifted": bool((moved[:, 2] > moved[0, 2] + LIFTED).any()),
        "over_its_place": bool((distance < CUBE_SIZE).any()),
        "solved": episode.solved,
    }
    return Course(stages, nearest)


def draw_bars(axis: Any, shares: dict[str, dict[str, float]], label: str) -> None:
    """Draw a group for each of the inner names, with a bar for each of the outer ones."""
    width = 0.8 / len(shares)
    for number, ((name, row), colour) in enumerate(zip(shares.items(), COLOURS, strict=False)):
        places = np.arange(len(row)) + (number - (len(shares) - 1) / 2) * width
        axis.bar(places, list(row.values()), width, color=colour, label=name.replace("_", " "))
    names = next(iter(shares.values()))
    axis.set_xticks(range(len(names)), [name.replace("_", " ") for name in names])
    axis.set_ylabel(label)
    axis.set_ylim(0, 1.03)
    axis.legend()


def draw(played: dict[str, Any], known: dict[str, Any], path: pathlib.Path) -> None:
    """Draw the stages that episodes reach, and the shares of correct moves."""
    figure, ((stages, moves),) = new_axes(2, width=5, height=4)
    reached = {
        goal: {stage: results[stage] / results["episodes"] for stage in STAGES}
        for goal, results in played.items()
    }
    draw_bars(stages, reached, "share of episodes")
    correct = {name: {state: shares[name] for state, shares in known.items()} for name in MOVERS}
    draw_bars(moves, correct, "share of states with a correct move")
    save_figure(figure, path)


def main() -> None:
    """Measure, draw, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--deviation", type=float, default=0.1)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    (_, critics), act = load_run(options.run)
    with np.load(options.data) as file:
        data, actions = file["observations"], file["actions"]
    carried = find_carried(data)
    distance = np.linalg.norm(read_effector(data)[:, None] - read_cubes(data), axis=-1)
    near = float(np.quantile(distance[carried], 0.95))
    known = {}
    for name, carrying in (("to a cube", False), ("with a cube to its place", True)):
        usual = np.median(actions[carried.any(axis=1) == carrying], axis=0)
        known[name] = count_correct(critics, act, make_examples(data, carrying), usual)
    env, played = RobotEnv("cube-double"), {}
    for goal in GRADED["cube-double"]:
        every = [
            play_one(env, act, goal, number, options.deviation)
            for number in track(range(options.episodes), f"{goal}: episodes")
        ]
        courses = [measure_course(episode, near) for episode in every]
        still = float(np.concatenate([find_still_steps(episode.states) for episode in every]).mean())
        counts = {stage: sum(course.stages[stage] for course in courses) for stage in STAGES}
        nearest = float(np.median([course.nearest for course in courses]))
        played[goal] = {"episodes": len(every), **counts, "median_nearest": nearest, "still": still}
    draw(played, known, options.out)
    write_record(options.out, {"hand_and_cube_that_it_carries": near, "goes": known, "episodes": played})


if __name__ == "__main__":
    main()
