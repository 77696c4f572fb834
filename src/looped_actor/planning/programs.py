"""Programs of a run, traced from shapes, to compile for devices that need not be attached."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from looped_actor.offline import Dataset, EpisodeIndex
from looped_actor.puzzles.banks import DeviceLevels
from looped_actor.puzzles.catalogue import game_named
from looped_actor.runs.puzzle import PuzzleRun
from looped_actor.runs.robots import RobotRun, robot_player
from looped_actor.runs.run import Run
from looped_actor.utils.errors import UserError

PAPER_LEVELS = 900_000
"""Training levels of Boxoban in the paper."""
PAPER_TRANSITIONS = 1_000_000
"""Transitions of OGBench's datasets; cube-triple's has three times as many."""
DECISIONS_PER_LEVEL = 60
"""Assumed for evaluations."""


class TracedProgram(NamedTuple):
    """A program of a run, and its amount of work on each device."""

    trace: Callable[[], Any]
    """Traces the program; the result can be lowered and compiled."""
    rows: int
    """Environments, levels or examples that the policy decides for."""
    decisions: int
    """Decisions for each of them."""
    batch: int = 1
    """Examples of a minibatch."""


def planned_programs(run: Run) -> dict[str, TracedProgram]:
    """Return the programs of a run on its mesh by name: training, and one batch of an evaluation."""
    if isinstance(run, PuzzleRun):
        return _puzzle_programs(run)
    if isinstance(run, RobotRun):
        return _robot_programs(run)
    raise UserError(f"{run.config.task} is a custom environment: only the paper's tasks can be planned")


def _puzzle_programs(run: PuzzleRun) -> dict[str, TracedProgram]:
    config, mesh = run.config, run.mesh
    assert mesh is not None
    algorithm, levels = config.algorithm, config.levels
    trainer = run.trainer_on(_empty_levels(run, PAPER_LEVELS if levels.train else levels.train_count))
    rows, batch = algorithm.num_envs // mesh.size, algorithm.minibatch // mesh.size
    programs = {
        name: TracedProgram(trace, rows, algorithm.rollout_steps + 1, batch)
        for name, trace in trainer.traces().items()
    }
    evaluated = 2 * levels.evaluate_count + levels.held_out_count
    player = run.player_on(_empty_levels(run, evaluated))
    player = replace(player, batch=min(player.batch, -(-levels.evaluate_count // mesh.size)))
    trace = functools.partial(player.trace, run.spec.weights_like)
    return programs | {"evaluate": TracedProgram(trace, player.batch, DECISIONS_PER_LEVEL)}


def _empty_levels(run: PuzzleRun, count: int) -> DeviceLevels:
    """Return levels of zeros that take no memory."""
    rows, columns = run.config.board
    packed = np.broadcast_to(np.uint8(0), (count, (rows * columns + 1) // 2))
    return DeviceLevels(packed, game_named(run.config.task).kinds, (rows, columns))


def _robot_programs(run: RobotRun) -> dict[str, TracedProgram]:
    mesh = run.mesh
    assert mesh is not None
    batch = run.config.algorithm.batch // mesh.size
    trainer = run.trainer_on(_empty_dataset(run))
    programs = {name: TracedProgram(trace, batch, 1, batch) for name, trace in trainer.traces().items()}
    if run.config.arm is None:
        return programs
    player = robot_player(run.spec)
    rows = player.rows_of_half
    trace = functools.partial(player.trace, mesh, run.spec.weights_like, run.spec.observations(rows))
    return programs | {"evaluate": TracedProgram(trace, rows, 1)}


def _empty_dataset(run: RobotRun) -> Dataset:
    """Return a dataset of zeros that takes no memory, until it is put on a device."""
    rows, shapes = dataset_rows(run), run.config.shapes

    def zeros(dtype: Any, *shape: int) -> np.ndarray:
        return np.broadcast_to(np.zeros((), dtype), shape)

    return Dataset(
        states=zeros(run.dtype, rows, shapes.size),
        actions=zeros(run.dtype, rows, shapes.actions),
        index=EpisodeIndex(zeros(np.int32, rows - 1), zeros(np.int32, rows)),
    )


def dataset_rows(run: RobotRun) -> int:
    """Return the number of transitions that a run learns from; those of given data are assumed."""
    data = run.config.data
    return PAPER_TRANSITIONS if data.train else data.transitions
