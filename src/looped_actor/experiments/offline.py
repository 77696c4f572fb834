"""From a configuration to the parts of a run of offline learning: data, trainer, evaluator."""

import hashlib
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from looped_actor.algorithms import Weights, deciding
from looped_actor.batches import Progress, default_workers, no_progress
from looped_actor.devices import on_one_device
from looped_actor.evaluation.ogbench import WorldPlayer, world_summary
from looped_actor.experiments.config import OfflineConfig
from looped_actor.experiments.policies import build_net, definition_of
from looped_actor.loop import HaltingRule
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.models import GoalObservation, GoalValue, TwinGoalCritics
from looped_actor.offline import Dataset, DatasetError, draw, open_dataset
from looped_actor.offline.collection import CollectionJob, collect
from looped_actor.offline.ogbench import TASKS, dataset_name
from looped_actor.training.offline import Nets, OfflineState, OfflineTrainer

DATA_FOLDER = "data"
HELD_OUT_EXAMPLES = 2048
"""Transitions of the held-out data on which the action error is measured."""


def prepare_data(
    config: OfflineConfig, folder: pathlib.Path, progress: Progress = no_progress
) -> OfflineConfig:
    """Collect the data of a run where none is given, and write down which it is."""
    if not config.data.train and not data_path(config, folder, "train").exists():
        job = CollectionJob(
            config.task, config.data.transitions, config.seed, config.data.episode_transitions
        )
        collect(job, folder / DATA_FOLDER, workers=default_workers(), progress=progress)
    sums = {
        f"{split}_checksum": _checksum(data_path(config, folder, split)) for split in ("train", "held_out")
    }
    for split in ("train", "held_out"):
        open_data(config, folder, split)  # whatever is wrong with it is said before the run begins
    return replace(config, data=replace(config.data, **sums))


def data_path(config: OfflineConfig, folder: pathlib.Path, split: str) -> pathlib.Path:
    """Where the data of a run lies."""
    given = config.data.train or folder / DATA_FOLDER / f"{dataset_name(config.task)}.npz"
    path = pathlib.Path(given)
    return path if split == "train" else path.with_name(path.stem + "-val.npz")


def open_data(config: OfflineConfig, folder: pathlib.Path, split: str) -> Dataset:
    """The data of a run, held against its world and against what it began with."""
    path = data_path(config, folder, split)
    expected = getattr(config.data, f"{split}_checksum")
    if expected and _checksum(path) != expected:
        raise DatasetError(f"{path}: this is not the data that the run began with")
    data = open_dataset(path, config.data.mapped)
    shape = config.shape
    if (data.states.shape[1], data.actions.shape[1]) != (shape.size, shape.actions):
        raise DatasetError(
            f"{path} has states of {data.states.shape[1]} numbers and actions of {data.actions.shape[1]}; "
            f"{config.task} has {shape.size} and {shape.actions}"
        )
    return data


def _checksum(path: pathlib.Path) -> str:
    if not path.is_file():
        raise DatasetError(
            f"{path}: there is no such file; make it with `looped-actor ogbench collect`, fetch it with "
            "`looped-actor ogbench download`, or give --data NAME.npz, with NAME-val.npz beside it"
        )
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def nets_of(config: OfflineConfig) -> Nets:
    """How to build the three nets of a run."""
    shape, hidden = config.shape, config.gciql.hidden
    return Nets(
        value=lambda rngs: GoalValue(shape.size, hidden, rngs=rngs),
        critics=lambda rngs: TwinGoalCritics(shape.size, shape.actions, hidden, rngs=rngs),
        actor=lambda rngs: build_net(config, rngs),
    )


def world_player(
    config: OfflineConfig,
    *,
    episodes: int | None = None,
    tasks: tuple[int, ...] = TASKS,
    halting: HaltingRule | None = None,
    workers: int | None = None,
) -> WorldPlayer:
    """Plays a world's tasks with the policies of a configuration."""
    return WorldPlayer(
        config.task,
        definition_of(config),
        config.episodes if episodes is None else episodes,
        tasks=tasks,
        halting=halting,
        acting=config.acting,
        workers=workers,
        time_limit=config.time_limit,
    )


@dataclass(frozen=True)
class OfflineRun:
    """The parts of a run, made from its configuration and folder."""

    config: OfflineConfig
    folder: pathlib.Path
    mesh: Mesh

    @cached_property
    def trainer(self) -> OfflineTrainer:
        """What learns."""
        return OfflineTrainer(
            config=self.config.gciql,
            goals=self.config.goals,
            dataset=open_data(self.config, self.folder, "train"),
            build=nets_of(self.config),
            iterations=self.config.iterations,
            mesh=self.mesh,
            mapped=self.config.data.mapped,
            dtype=jnp.float64 if self.config.double_precision else jnp.float32,
        )

    @cached_property
    def _player(self) -> WorldPlayer:
        return world_player(self.config)

    def evaluate(self, state: OfflineState) -> Mapping[str, Any]:
        """Play the world's tasks, and see how far actions are from those of the held-out data."""
        played = self._player.play(state.weights)
        observation, action = self._held_out
        error = self._action_error(on_one_device(state.weights), observation, action)
        facts = world_summary(played, self.config.chosen_arm.max_loops)
        return facts | {"held_out_action_error": float(error)}

    @cached_property
    def _held_out(self) -> tuple[GoalObservation, Array]:
        """Some transitions of the held-out data, each on the way to what followed it."""
        data, config = open_data(self.config, self.folder, "held_out"), self.config
        key = addressed_key(jax.random.key_data(jax.random.key(0)), Stream.EXAMPLE)
        drawn = jax.vmap(lambda i: draw(data.index, folded(key, i), config.goals, config.gciql.discount))(
            jnp.arange(HELD_OUT_EXAMPLES)
        )
        row, goal = np.asarray(drawn.row), np.asarray(drawn.actor_goal)
        state, goal, action = (
            jnp.asarray(table[rows], self.trainer.dtype)
            for table, rows in ((data.states, row), (data.states, goal), (data.actions, row))
        )
        return GoalObservation(state, goal), action

    @cached_property
    def _action_error(self) -> Callable[[Weights, GoalObservation, Array], Array]:
        """Mean squared distance of the policy's actions from those of the data."""
        definition = definition_of(self.config)

        def error(weights: Weights, observation: GoalObservation, action: Array) -> Array:
            return jnp.mean((deciding(definition, weights)(observation).distribution.mode() - action) ** 2)

        return jax.jit(error)

    def close(self) -> None:
        """Let the worker processes of evaluations go."""
        self._player.close()
