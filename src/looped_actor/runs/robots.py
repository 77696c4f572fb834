"""A run on OGBench's worlds, from its configuration: data, trainer, evaluation, cost."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from looped_actor.algorithms import Weights
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.algorithms.gciql_trainer import Judges, Nets, OfflineState, gciql_trainer
from looped_actor.algorithms.trainer import Trainer
from looped_actor.evaluation.requests import EvaluationRequest
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.models import GoalObservation, GoalValue, TwinGoalCritics
from looped_actor.models.cost import PASSES_OF_AN_UPDATE, count_parameters, fastest
from looped_actor.offline import Dataset, DatasetError, EpisodeIndex, draw, open_dataset
from looped_actor.policy.policy import Policy
from looped_actor.robots.collection import CollectionJob, collect, held_out_beside
from looped_actor.robots.evaluation import WorldPlayer, world_summary
from looped_actor.robots.graded import GRADED
from looped_actor.robots.ogbench import TASKS, dataset_name
from looped_actor.robots.values import value_facts
from looped_actor.runs.config import OfflineConfig
from looped_actor.runs.provenance import SPLITS, read_provenance
from looped_actor.runs.run import Counted, Estimate, Planned, Program, Run
from looped_actor.training.sharding import all_devices, on_one_device
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import file_checksum, write_whole
from looped_actor.utils.processes import Progress, default_workers, no_progress
from looped_actor.utils.tensors import fitted, read_weights, write_weights

DATA_FOLDER = "data"
HELD_OUT_EXAMPLES = 2048
"""Transitions of the held-out data on which the action error is measured."""
TYPICAL_TRANSITIONS = 1_000_000
"""Size of OGBench's datasets; cube-triple's has three times as many."""
VALUE_PASSES, CRITIC_PASSES = 4, 6
"""Forward passes of GCIQL's value and critics: learning, next states, targets, and the actor's gradient."""
ACTOR_PASSES = 3
"""Of the critics, for the actor's gradient alone."""
CRITICS_FILE = "critics.safetensors"
CRITICS_FORMAT = "looped-actor critics 1"


class _Built(NamedTuple):
    """Value and critics without weights."""

    shapes: Judges
    """Of the weights."""
    functions: Judges
    """Of weights, and of what is judged."""


@dataclass(frozen=True)
class ControlRun(Run):
    """The parts of a run, made from its configuration and folder; see `Run`."""

    config: OfflineConfig
    parameters_in_state = "learner.parameters.actor"

    @property
    def control(self) -> "ControlRun":
        """This plays OGBench's worlds."""
        return self

    @property
    def observation(self) -> GoalObservation:
        """A state and a goal."""
        vector = jax.ShapeDtypeStruct((self.config.shape.size,), jnp.float32)
        return GoalObservation(vector, vector)  # type: ignore[arg-type]

    def as_taken(self, action: Array) -> Array:
        """Within the bounds of OGBench's actions."""
        return jnp.clip(action, -1, 1)

    @property
    def material(self) -> pathlib.Path:
        """The folder of collected data."""
        return self.folder / DATA_FOLDER

    @property
    def recipe(self) -> CollectionJob:
        """How its data are collected."""
        data = self.config.data
        seed = self.config.seed if data.seed is None else data.seed
        return CollectionJob(self.config.task, data.transitions, seed, data.episode_transitions)

    def prepare(self, progress: Progress = no_progress) -> dict[str, str]:
        """Collect data where none is given or there yet; returns checksums by split."""
        if not self.config.data.train:
            if not self._is_made():
                for split in SPLITS:
                    self.data_path(split).unlink(missing_ok=True)
                self.note_recipe()
            if not self.data_path("train").exists():
                collect(self.recipe, self.material, workers=default_workers(), progress=progress)
        sums = {split: _checksum(self.data_path(split)) for split in SPLITS}
        if self.config.critics:
            _ = self.given  # whatever is wrong with them is said before the run begins
            write_whole(self.folder / CRITICS_FILE, self._critics_path.read_bytes())
            sums["critics"] = _checksum(self.folder / CRITICS_FILE)
        for split in SPLITS:
            self.data(split)  # whatever is wrong with it is said before the run begins
        return sums

    def data_path(self, split: str) -> pathlib.Path:
        """Where the data of a split lies."""
        given = self.config.data.train or self.material / f"{dataset_name(self.config.task)}.npz"
        path = pathlib.Path(given)
        return path if split == "train" else held_out_beside(path)

    def data(self, split: str) -> Dataset:
        """The data of a split, if it fits the world and is what the run began with."""
        path, expected = self.data_path(split), read_provenance(self.folder).get(split)
        if expected and _checksum(path) != expected:
            raise DatasetError(f"{path}: this is not the data that the run began with")
        data = open_dataset(path, self.config.data.mapped)
        shape = self.config.shape
        if (data.states.shape[1], data.actions.shape[1]) != (shape.size, shape.actions):
            raise DatasetError(
                f"{path} has states of {data.states.shape[1]} numbers and actions of "
                f"{data.actions.shape[1]}; {self.config.task} has {shape.size} and {shape.actions}"
            )
        return data

    @property
    def nets(self) -> Nets:
        """How to build the three nets."""
        shape, hidden = self.config.shape, self.config.gciql.hidden
        return Nets(
            value=lambda rngs: GoalValue(shape.size, hidden, shape.differences, rngs=rngs),
            critics=lambda rngs: TwinGoalCritics(
                shape.size, shape.actions, hidden, shape.differences, rngs=rngs
            ),
            actor=self.build,
        )

    @property
    def _critics_path(self) -> pathlib.Path:
        """Of what is given: the run's own copy, once it is begun."""
        own, given = self.folder / CRITICS_FILE, pathlib.Path(self.config.critics, CRITICS_FILE)
        return own if own.is_file() else given

    @cached_property
    def given(self) -> Judges | None:
        """Value and critics of another run, if this one learns from such."""
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
        return fitted(self.judges_like, read_weights(path, CRITICS_FORMAT), path)

    @property
    def judges_like(self) -> Judges:
        """The weights of value and critics as shapes."""
        return self._judges.shapes

    def judging(self, weights: Judges) -> Judges:
        """Value and critics of some weights, as functions of what they judge."""
        return Judges(*map(functools.partial, self._judges.functions, weights))

    @cached_property
    def _judges(self) -> _Built:
        """Value and critics, but for their weights."""
        built = [nnx.split(nnx.eval_shape(lambda net=net: net(nnx.Rngs(0)))) for net in self.nets[:2]]
        graphs, shapes = map(Judges._make, zip(*built, strict=True))

        def function(graph: Any) -> Callable[..., Array]:
            return jax.jit(lambda weights, *seen: nnx.merge(graph, weights)(*seen))

        return _Built(shapes, Judges(*map(function, graphs)))

    def keep(self, state: OfflineState) -> None:
        """Write value and critics, for actors of other arms to learn from."""
        if not self.config.critics:
            learned = state.learner.parameters
            write_weights(Judges(learned.value, learned.critics), self.folder / CRITICS_FILE, CRITICS_FORMAT)

    @property
    def trainer(self) -> Trainer:
        """What learns. Opens the training data."""
        return self._trainer

    @cached_property
    def _trainer(self) -> Trainer:
        return self._learning_from(self.data("train"))

    def planned_programs(self) -> dict[str, Planned]:
        """Training, with zeros for the data, which take no memory until they lie on a device; and a decision
        of an evaluation, whose episodes MuJoCo plays.
        """
        rows, shape = self._rows, self.config.shape

        def nothing(dtype: Any, *of: int) -> np.ndarray:
            return np.broadcast_to(np.zeros((), dtype), of)

        index = EpisodeIndex(nothing(np.int32, rows - 1), nothing(np.int32, rows))
        states, actions = (nothing(self.dtype, rows, size) for size in (shape.size, shape.actions))
        trainer = self._learning_from(Dataset(states, actions, index))
        batch, player = self.config.gciql.batch // trainer.mesh.size, self.player()
        seen = self.observations(player.decided_at_once)
        decide = functools.partial(player.trace, trainer.mesh, self.weights_like, seen)
        trained = {name: Planned(trace, batch, 1, batch) for name, trace in trainer.traces().items()}
        return trained | {"evaluate": Planned(decide, player.decided_at_once, 1)}

    @property
    def _rows(self) -> int:
        data = self.config.data
        return TYPICAL_TRANSITIONS if data.train else data.transitions

    def _learning_from(self, data: Dataset) -> Trainer:
        config, mesh = self.config, self.mesh
        assert mesh is not None
        given = config.gciql, config.goals, data, self.nets, config.iterations, mesh
        options: Any = {"mapped": config.data.mapped, "dtype": self.dtype, "given": self.given}
        return gciql_trainer(*given, **options)

    def player(self, **options: Any) -> WorldPlayer:
        """Plays the world's tasks with policies of this configuration. Close it when done."""
        config = self.config
        own = {"episodes": config.episodes, "acting": config.acting, "time_limit": config.time_limit}
        return WorldPlayer(config.task, self.definition, **(own | options))

    @cached_property
    def _player(self) -> WorldPlayer:
        return self.player()

    def evaluate(self, state: OfflineState) -> Mapping[str, Any]:
        """Play the world's tasks, and see how far actions are from those of the held-out data."""
        played = self._player.play(state.weights)
        error = self._action_error(on_one_device(state.weights), *self._held_out)
        facts = world_summary(played, self.net.max_loops) | {"held_out_action_error": float(error)}
        if self.config.critics:
            return facts
        return facts | {"value": self.value_facts(state)}

    def value_facts(self, state: OfflineState) -> dict[str, Any]:
        """How good value and critics are, on the held-out data."""
        learned = self.judging(on_one_device(Judges(*state.learner.parameters[:2])))
        return value_facts(*learned, self.data("held_out"), self.config.task)

    @cached_property
    def _held_out(self) -> tuple[GoalObservation, Array]:
        """Some transitions of the held-out data, each on the way to what followed it."""
        data, config = self.data("held_out"), self.config
        key = addressed_key(jax.random.key_data(jax.random.key(0)), Stream.EXAMPLE)
        drawn = jax.vmap(lambda i: draw(data.index, folded(key, i), config.goals, config.gciql.discount))(
            jnp.arange(HELD_OUT_EXAMPLES)
        )
        row, goal = np.asarray(drawn.row), np.asarray(drawn.actor_goal)
        state, goal, action = (
            jnp.asarray(table[rows], self.dtype)
            for table, rows in ((data.states, row), (data.states, goal), (data.actions, row))
        )
        return GoalObservation(state, goal), action

    @cached_property
    def _action_error(self) -> Callable[[Weights, GoalObservation, Array], Array]:
        """Mean squared distance of the policy's actions from those of the data."""
        definition = self.definition

        def error(weights: Weights, observation: GoalObservation, action: Array) -> Array:
            return jnp.mean((deciding(definition, weights)(observation).distribution.mode() - action) ** 2)

        return jax.jit(error)

    def play(
        self, policy: Policy, request: EvaluationRequest, progress: Progress = no_progress
    ) -> dict[str, Any]:
        """Play episodes of the world's tasks."""
        for option in ("levels", "solutions"):
            request.refuse(f"{self.config.task} has no {option}", option)
        if request.graded:
            request.refuse("--graded has goals of its own", "tasks")
        halting = policy.rule(request)
        if request.graded and self.config.task not in GRADED:
            raise UserError(f"{self.config.task} has no goals by distance; {' and '.join(GRADED)} have")
        tasks = GRADED[self.config.task] if request.graded else request.tasks or TASKS
        asked: Any = {"tasks": tasks, "workers": request.workers, "halting": halting}
        asked |= {"starting": policy.starting, "deviation": request.deviation}
        player = self.player(**asked, **({"episodes": request.count} if request.count else {}))
        try:
            most = (halting or self.net).max_loops
            facts = {
                "deviation": player.deviation,
                "seed": player.seed,
                "time_limit": player.time_limit,
                **world_summary(player.play(policy.weights, progress), most),
            }
            if request.baselines:
                facts["baselines"] = {"random": world_summary(player.play_at_random(progress), 1)}
        finally:
            player.close()
        return facts

    def program(self, board: tuple[int, int] | None = None) -> Program:
        """What an exported policy reads and returns."""
        if board is not None:
            raise UserError(f"{self.config.task} has no board: leave --board out")

        def outputs(decision: Any) -> dict[str, Array]:
            mean = decision.distribution.mean
            return {"action": self.as_taken(mean), "mean": mean}

        return Program(self.observation._asdict(), GoalObservation, outputs)

    def count(self, loops: float | None = None) -> Counted:
        """Parameters and FLOPs at a number of loops. Default: at the cap."""
        value, critics, actor = (nnx.eval_shape(lambda net=net: net(nnx.Rngs(0))) for net in self.nets)
        flops = actor.flops(self.observations(1), actor.max_loops if loops is None else loops)
        passes = PASSES_OF_AN_UPDATE + (0 if actor.halting is None else 1)  # what loops thinks first
        judging, learned = VALUE_PASSES * value.flops + CRITIC_PASSES * critics.flops, (value, critics, actor)
        if self.config.critics:
            judging, learned = ACTOR_PASSES * critics.flops, (actor,)
        parameters = sum(count_parameters(net) for net in learned)
        return Counted(parameters, flops, self.config.gciql.batch * (passes * flops + judging))

    def seconds_per_step(self, examples: int) -> float:
        """Seconds per step on one device, from timing a few examples."""
        trainer = self._small_trainer(examples)
        state = trainer.begin(self.config.seed)
        return self.config.gciql.batch / examples * fastest(lambda: trainer.iterate(state))

    def _small_trainer(self, examples: int) -> Trainer:
        """One update of a few made-up examples."""
        rows, shape, config = 1000, self.config.shape, self.config
        chance = np.random.default_rng(0)
        data = Dataset(
            chance.normal(size=(rows, shape.size)).astype(np.float32),
            chance.uniform(-1, 1, (rows, shape.actions)).astype(np.float32),
            EpisodeIndex(np.arange(rows - 1, dtype=np.int32), np.full(rows, rows - 2, np.int32)),
        )
        few = replace(config.gciql, batch=examples, updates_per_iteration=1)
        return gciql_trainer(few, config.goals, data, self.nets, 1, all_devices(1), given=self.given)

    def cost(self, devices: int) -> Estimate:
        """What the whole run costs."""
        config, shape, gciql = self.config, self.config.shape, self.config.gciql
        return self._estimate(
            devices,
            gciql.batch,
            step="a gradient step",
            steps_per_iteration=gciql.updates_per_iteration,
            updates_per_iteration=gciql.updates_per_iteration,
            experience="the data, on each device",
            experience_bytes=0 if config.data.mapped else self._rows * 4 * (shape.size + shape.actions + 2),
        )

    def close(self) -> None:
        """Release the worker processes of evaluations."""
        if "_player" in self.__dict__:  # it is made when it is first needed
            self._player.close()


def _checksum(path: pathlib.Path) -> str:
    if not path.is_file():
        raise DatasetError(
            f"{path}: there is no such file; make it with `looped-actor ogbench collect`, fetch it with "
            "`looped-actor ogbench download`, or give --data NAME.npz, with NAME-val.npz beside it"
        )
    return file_checksum(path)
