"""Runs on OGBench's robot environments: data, trainer, evaluation."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from looped_actor.algorithms import GCIQL, CriticParams, Nets, OfflineState, Weights, make_policy
from looped_actor.evaluation.options import EvaluationOptions
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.models import GoalObservation, GoalValue, TwinGoalCritics
from looped_actor.offline import Dataset, DatasetError, open_dataset, sample_rows
from looped_actor.policy.policy import Policy, PolicySpec
from looped_actor.robots.collection import CollectionJob, collect, validation_path
from looped_actor.robots.critics import critic_results
from looped_actor.robots.evaluation import RobotPlayer, summarize_robots
from looped_actor.robots.graded import GRADED
from looped_actor.robots.ogbench import TASKS, dataset_name, make_env
from looped_actor.runs.config import RobotConfig
from looped_actor.runs.provenance import SPLITS, read_provenance
from looped_actor.runs.run import Run
from looped_actor.training import Trainer
from looped_actor.training.sharding import to_one_device
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import file_checksum, write_whole
from looped_actor.utils.processes import Progress, default_workers, no_progress
from looped_actor.utils.tensors import fit_tensors, read_weights, write_weights

DATA_FOLDER = "data"
HELD_OUT_EXAMPLES = 2048
"""Transitions of the validation data on which the action error is measured."""
CRITICS_FILE = "critics.safetensors"
CRITICS_FORMAT = "looped-actor critics 1"


class _CriticFunctions(NamedTuple):
    """Value and critics without weights."""

    shapes: CriticParams
    functions: CriticParams
    """Functions of weights, states, goals, and for critics actions."""


@dataclass(frozen=True, eq=False)
class RobotRun(Run):
    """The parts of a run on robot data; see `Run`."""

    config: RobotConfig

    def build(self, rngs: nnx.Rngs) -> Any:
        if self.config.arm is None:
            raise UserError(
                f"{self.folder}: this is of critics alone, and there is no policy in it; `looped-actor train "
                f"{self.config.task} --critics RUN` learns one from the {CRITICS_FILE} of such a run"
            )
        return self.config.arm.build(self.config.shapes, rngs, self.config.recipe_details.initial)

    @property
    def observation(self) -> GoalObservation:
        """A state and a goal."""
        vector = jax.ShapeDtypeStruct((self.config.shapes.size,), jnp.float32)
        return GoalObservation(vector, vector)  # type: ignore[arg-type]

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        return (self.config.shapes.size,)

    def to_env(self, action: Array) -> Array:
        return jnp.clip(action, -1, 1)

    def complete_config(self) -> RobotConfig:
        return self.config if self.config.arm is None else super().complete_config()

    def make_env(self, policy: Policy, **options: Any) -> Any:
        return make_env(self.config.task, **options)

    @property
    def material(self) -> pathlib.Path:
        return self.folder / DATA_FOLDER

    @property
    def material_recipe(self) -> CollectionJob:
        data = self.config.data
        seed = self.config.seed if data.seed is None else data.seed
        return CollectionJob(self.config.task, data.transitions, seed, data.episode_transitions)

    def prepare(self, progress: Progress = no_progress) -> dict[str, str]:
        if not self.config.data.train:
            if not self.is_made():
                for split in SPLITS:
                    self.data_path(split).unlink(missing_ok=True)
                self.note_recipe()
            if not self.data_path("train").exists():
                collect(self.material_recipe, self.material, workers=default_workers(), progress=progress)
        sums = {split: _checksum(self.data_path(split)) for split in SPLITS}
        if self.config.critics:
            _ = self.given_critics  # raises errors before the run begins
            write_whole(self.folder / CRITICS_FILE, self._critics_path.read_bytes())
            sums["critics"] = _checksum(self.folder / CRITICS_FILE)
        for split in SPLITS:
            self.data(split)  # raises errors before the run begins
        return sums

    def data_path(self, split: str) -> pathlib.Path:
        """Return the file of a split."""
        path = pathlib.Path(self.config.data.train or self.material / f"{dataset_name(self.config.task)}.npz")
        return path if split == "train" else validation_path(path)

    def data(self, split: str) -> Dataset:
        """Return the data of a split, if they fit the environment and are those that the run began with."""
        path, expected = self.data_path(split), read_provenance(self.folder).get(split)
        if expected and _checksum(path) != expected:
            raise DatasetError(f"{path}: this is not the data that the run began with")
        data = open_dataset(path, self.config.data.on_disk)
        shapes = self.config.shapes
        if (data.states.shape[1], data.actions.shape[1]) != (shapes.size, shapes.actions):
            raise DatasetError(
                f"{path} has states of {data.states.shape[1]} numbers and actions of "
                f"{data.actions.shape[1]}; {self.config.task} has {shapes.size} and {shapes.actions}"
            )
        return data

    @property
    def nets(self) -> Nets:
        """Functions that build the three nets."""
        shapes, hidden = self.config.shapes, self.config.algorithm.hidden
        return Nets(
            value=lambda rngs: GoalValue(shapes.size, hidden, shapes.differences, rngs=rngs),
            critics=lambda rngs: TwinGoalCritics(
                shapes.size, shapes.actions, hidden, shapes.differences, rngs=rngs
            ),
            actor=None if self.config.arm is None else self.build,
        )

    @property
    def _critics_path(self) -> pathlib.Path:
        """File of given critics: the run's own copy, once it is begun."""
        own, given = self.folder / CRITICS_FILE, pathlib.Path(self.config.critics, CRITICS_FILE)
        return own if own.is_file() else given

    @cached_property
    def given_critics(self) -> CriticParams | None:
        """Value and critics of another run; None if this run learns its own."""
        if not self.config.critics:
            return None
        path, expected = self._critics_path, read_provenance(self.folder).get("critics")
        if not path.is_file():
            raise UserError(
                f"{self.config.critics}: there is no {CRITICS_FILE} in it; a run on {self.config.task} that "
                "learns its critics writes it when it ends"
            )
        if expected and _checksum(path) != expected:
            raise UserError(f"{path}: these are not the critics that the run began with")
        return fit_tensors(self.critics_like, read_weights(path, CRITICS_FORMAT), path)

    @property
    def critics_like(self) -> CriticParams:
        """Shapes of the weights of value and critics."""
        return self._critic_functions.shapes

    def critic_functions(self, weights: CriticParams) -> CriticParams:
        """Return value and critics as functions of states, goals and actions."""
        return CriticParams(*map(functools.partial, self._critic_functions.functions, weights))

    @cached_property
    def _critic_functions(self) -> _CriticFunctions:
        nets = [nnx.split(nnx.eval_shape(lambda net=net: net(nnx.Rngs(0)))) for net in self.nets[:2]]
        graphs, shapes = map(CriticParams._make, zip(*nets, strict=True))

        def function(graph: Any) -> Callable[..., Array]:
            return jax.jit(lambda weights, *inputs: nnx.merge(graph, weights)(*inputs))

        return _CriticFunctions(shapes, CriticParams(*map(function, graphs)))

    def save_extras(self, state: OfflineState) -> None:
        """Write value and critics, from which actors of other arms can learn."""
        if not self.config.critics:
            learned = state.learner.parameters
            critics = CriticParams(learned.value, learned.critics)
            write_weights(critics, self.folder / CRITICS_FILE, CRITICS_FORMAT)

    @cached_property
    def trainer(self) -> Trainer:
        return self.trainer_on(self.data("train"))

    def trainer_on(self, data: Dataset, **changes: Any) -> Trainer:
        """Return the algorithm on any data."""
        config, mesh = self.config, self.mesh
        assert mesh is not None
        options: Any = {
            "config": config.algorithm,
            "goals": config.goals,
            "dataset": data,
            "build": self.nets,
            "iterations": config.iterations,
            "mesh": mesh,
            "on_disk": config.data.on_disk,
            "critics": self.given_critics,
            "execution": config.execution,
            "dtype": self.dtype,
        }
        return GCIQL(**(options | changes))

    @cached_property
    def _player(self) -> RobotPlayer:
        return robot_player(self.spec)

    def evaluate(self, state: OfflineState) -> Mapping[str, Any]:
        """Play the tasks, and compare actions with those of the validation data; of critics, rank those
        data."""
        if self.config.arm is None:
            return self._critic_results(state)
        played = self._player.play(state.weights)
        error = self._action_error(to_one_device(state.weights), *self._held_out)
        results = summarize_robots(played, self.spec.max_loops) | {"held_out_action_error": float(error)}
        if self.config.critics:
            return results
        return results | {"value": self._critic_results(state)}

    def _critic_results(self, state: OfflineState) -> dict[str, Any]:
        learned = to_one_device(CriticParams(*state.learner.parameters[:2]))
        return critic_results(*self.critic_functions(learned), self.data("held_out"), self.config.task)

    @cached_property
    def _held_out(self) -> tuple[GoalObservation, Array]:
        """Transitions of the validation data, each with a later state of its episode as goal."""
        data, config = self.data("held_out"), self.config
        key = addressed_key(jax.random.key_data(jax.random.key(0)), Stream.EXAMPLE)
        rows = jax.vmap(
            lambda i: sample_rows(data.index, folded(key, i), config.goals, config.algorithm.discount)
        )(jnp.arange(HELD_OUT_EXAMPLES))
        row, goal = np.asarray(rows.row), np.asarray(rows.actor_goal)
        state, goal, action = (
            jnp.asarray(table[rows], self.dtype)
            for table, rows in ((data.states, row), (data.states, goal), (data.actions, row))
        )
        return GoalObservation(state, goal), action

    @cached_property
    def _action_error(self) -> Callable[[Weights, GoalObservation, Array], Array]:
        """Mean squared distance of the policy's actions from those of the data."""
        definition = self.spec.definition

        def error(weights: Weights, observation: GoalObservation, action: Array) -> Array:
            return jnp.mean((make_policy(definition, weights)(observation).distribution.mode() - action) ** 2)

        return jax.jit(error)

    def close(self) -> None:
        if "_player" in self.__dict__:  # it is made when it is first needed
            self._player.close()


def robot_player(spec: PolicySpec, **options: Any) -> RobotPlayer:
    """Return a player of the environment's tasks with policies of a spec. Close it when done."""
    config = spec.config
    defaults = {
        "episodes": config.episodes,
        "acting": config.acting,
        "time_limit": config.time_limit,
        "carry_latent": spec.net.carry_latent,
    }
    return RobotPlayer(spec.task, spec.definition, **(defaults | options))


def evaluate_on_tasks(
    policy: Policy, options: EvaluationOptions, progress: Progress = no_progress
) -> dict[str, Any]:
    """Play episodes of the environment's tasks, or of goals at graded distances."""
    task = policy.spec.task
    for option in ("levels", "solutions"):
        options.refuse(f"{task} has no {option}", option)
    if options.graded:
        options.refuse("--graded has its own goals", "tasks")
        if task not in GRADED:
            raise UserError(f"{task} has no goals by distance; {' and '.join(GRADED)} have")
    halting = policy.spec.with_loop(options)
    changes: Any = {
        "tasks": GRADED[task] if options.graded else options.tasks or TASKS,
        "workers": options.workers,
        "halting": halting,
        "carry_latent": policy.carry_latent,
        "deviation": options.deviation,
    }
    changes |= {"episodes": options.count} if options.count else {}
    player = robot_player(policy.spec, **changes)
    try:
        played = player.play(policy.weights, progress)
        results = {
            "deviation": player.deviation,
            "seed": player.seed,
            "time_limit": player.time_limit,
            **summarize_robots(played, (halting or policy.spec).max_loops),
        }
        if options.baselines:
            results["baselines"] = {"random": summarize_robots(player.play_at_random(progress), 1)}
    finally:
        player.close()
    return results


def _checksum(path: pathlib.Path) -> str:
    if not path.is_file():
        raise DatasetError(
            f"{path}: there is no such file; make it with `looped-actor robots collect`, fetch it with "
            "`looped-actor robots download`, or give --data NAME.npz, with NAME-val.npz next to it"
        )
    return file_checksum(path)
