"""What the object behind a run offers, whatever its kind: `kinds.run_of` makes the right one."""

import abc
import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from looped_actor.algorithms import Weights, first_memory, no_statistics
from looped_actor.codec import to_json
from looped_actor.configs.requests import EvaluationRequest
from looped_actor.errors import UserError
from looped_actor.files import UNFINISHED, read_json, write_whole
from looped_actor.loop import Packed, starting_of
from looped_actor.models.cost import (
    MOST_EXAMPLES,
    PASSES_OF_AN_UPDATE,
    count_parameters,
    fastest,
    surrogate_gradient,
    surrogate_loss,
    update_memory,
)
from looped_actor.processes import Progress, no_progress
from looped_actor.training import Trainer

if TYPE_CHECKING:
    from looped_actor.runs.control import ControlRun
    from looped_actor.runs.policy import Policy
    from looped_actor.runs.puzzle import PuzzleRun

RECIPE_FILE = "recipe.json"
"""Beside levels or data that were made for a run: how."""
Build = Callable[[nnx.Rngs], Any]
"""Makes a net from random streams."""


class Own(NamedTuple):
    """What of a user's own world is code, and so is in no file of a run."""

    build: Build
    env: Any = None
    """An environment in JAX, or a function that makes a vector environment of Gymnasium."""


class Counted(NamedTuple):
    """What can be counted without computing anything."""

    parameters: int
    """Parameters of all nets that are trained."""
    flops_per_decision: float
    flops_per_step: float
    """FLOPs of an environment step, acting and learning together, or of a gradient step."""


class Estimate(NamedTuple):
    """The cost of a run."""

    counted: Counted
    """At the cap."""
    max_loops: int
    """0 where nothing is decided."""
    step: str
    """What a step of the run is."""
    experience: str
    """What the next number is of."""
    experience_bytes: int
    """A rollout as it is kept for learning, over all devices; or a dataset, on each of them."""
    update_bytes: int
    """Memory of one minibatch's gradient on one device, as the compiler plans it."""
    state_bytes: int
    """Parameters and optimiser state, on each device."""
    iterations: int
    updates: int
    devices: int
    seconds: float
    """Estimated for this machine, at the loops that an untrained net takes; without a solver's time."""


class Planned(NamedTuple):
    """A program of a run, and how much of what it has to do on each device."""

    trace: Callable[[], Any]
    """Traces it from shapes; the result can be lowered, and compiled."""
    rows: int
    """Environments or examples that think."""
    thoughts: int
    """Of each."""
    batch: int = 1
    """Examples of a minibatch."""


class Program(NamedTuple):
    """What an exported policy reads and returns."""

    inputs: dict[str, jax.ShapeDtypeStruct]
    """Inputs of one example, by name, in the types that environments give."""
    observation: Callable[..., Any]
    """Batches of the inputs to what the policy observes."""
    outputs: Callable[[Any], dict[str, Array]]
    """A batch of decisions to arrays by name."""


@dataclass(frozen=True)
class Run(abc.ABC):
    """The parts of a run, made from its configuration, its folder and the devices."""

    config: Any
    folder: pathlib.Path
    mesh: Mesh | None = None
    """None where nothing is computed."""
    own: Own | None = None
    """The code of a user's own world; None for the paper's."""
    parameters_in_state: ClassVar[str]
    """Where in the trainer's state the policy's parameters are."""
    makes_policy: ClassVar[bool] = True
    """Whether what it learns can act."""

    @property
    def puzzle(self) -> "PuzzleRun":
        """The same, if it plays a puzzle; otherwise an error."""
        raise UserError(f"{self.folder} is of {self.config.task}: this is for puzzles")

    @property
    def control(self) -> "ControlRun":
        """The same, if it plays OGBench's worlds; otherwise an error."""
        raise UserError(f"{self.folder} is of {self.config.task}: this is for OGBench's worlds")

    def build(self, rngs: nnx.Rngs) -> Any:
        """The policy's net, with new weights."""
        return self.config.chosen_arm.build(self.config.shape, self.config.core, rngs)

    @property
    def dtype(self) -> Any:
        """What the net computes in."""
        return jnp.float64 if self.config.double_precision else jnp.float32

    @property
    @abc.abstractmethod
    def observation(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The shape of one observation, in the types that environments give."""

    def observations(self, count: int) -> PyTree[jax.ShapeDtypeStruct]:
        """The shape of a batch of observations, as the net reads them."""
        return jax.tree.map(
            lambda one: jax.ShapeDtypeStruct((count, *one.shape), jnp.float32), self.observation
        )

    @cached_property
    def net(self) -> Any:
        """The policy's net, with shapes for weights."""
        return nnx.eval_shape(lambda: self.build(nnx.Rngs(0)))

    @cached_property
    def definition(self) -> nnx.GraphDef:
        """The policy's net without weights."""
        return nnx.split(self.net)[0]

    def new_weights(self, seed: int = 0) -> Weights:
        """Those of a policy that has learned nothing."""
        return _weights_of(self.build(nnx.Rngs(seed)), no_statistics(self.features))

    @property
    def weights_like(self) -> Weights:
        """The policy's weights as shapes."""
        return _weights_of(self.net, jax.eval_shape(lambda: no_statistics(self.features)))

    @property
    def features(self) -> tuple[int, ...]:
        """The shape of the statistics that observations are scaled by."""
        return jax.tree.leaves(self.observation)[0].shape[-1:]

    def as_taken(self, action: Array) -> Array:
        """A policy's actions as the environment takes them."""
        return action

    def completed(self) -> Any:
        """The configuration as it is written down when the run begins."""
        return self.config

    @property
    @abc.abstractmethod
    def material(self) -> pathlib.Path:
        """The folder of its levels or data, where they are made for it."""

    @abc.abstractmethod
    def prepare(self, progress: Progress = no_progress) -> dict[str, str]:
        """Make the levels or data that are not there, and check them; returns their checksums by split."""

    @property
    def recipe(self) -> Any:
        """How what is in `material` is made."""
        return None

    def _is_made(self) -> bool:
        """Whether what is in `material` was made by its recipe: a killed start may have wanted another."""
        note = self.material / RECIPE_FILE
        if note.is_file():
            return read_json(note) == to_json(self.recipe)
        there = self.material.iterdir() if self.material.exists() else ()
        if not all(path.name.endswith(UNFINISHED) for path in there):
            raise UserError(
                f"{self.material} is there, and not from a run that was begun: move it away, or give "
                "another folder"
            )
        return False

    def note_recipe(self) -> None:
        """Write down by which recipe `material` is made, before it is."""
        note = json.dumps(to_json(self.recipe), indent=2) + "\n"
        write_whole(self.material / RECIPE_FILE, note.encode())

    @property
    @abc.abstractmethod
    def trainer(self) -> Trainer:
        """What learns. Opens the training data."""

    def planned_programs(self) -> dict[str, Planned]:
        """What runs on the devices, from shapes alone: to be compiled for devices that need not be here."""
        raise UserError(f"{self.config.task} is a world of your own: plans are made of the paper's tasks")

    @abc.abstractmethod
    def evaluate(self, state: Any) -> Mapping[str, Any]:
        """Facts about a state of training that JSON can hold."""

    def test(self, state: Any) -> Mapping[str, Any] | None:
        """The same about the last state, on what was kept for it; None where nothing was."""
        return None

    def keep(self, state: Any) -> None:  # noqa: B027
        """Write what was learned beside the policy, if there is such."""

    @abc.abstractmethod
    def play(
        self, policy: "Policy", request: EvaluationRequest, progress: Progress = no_progress
    ) -> dict[str, Any]:
        """Facts about a policy that JSON can hold, as asked for."""

    @abc.abstractmethod
    def program(self, board: tuple[int, int] | None = None) -> Program:
        """What an exported policy reads and returns."""

    @abc.abstractmethod
    def count(self, loops: float | None = None) -> Counted:
        """Parameters and FLOPs at a number of loops. Default: at the cap."""

    @abc.abstractmethod
    def seconds_per_step(self, examples: int) -> float:
        """Seconds per step on one device, from timing a few examples; without a solver's time."""

    def update_bytes(self, examples: int) -> int:
        """Memory that a gradient of some examples takes on one device, as the compiler plans it."""
        return update_memory(self.net, self.observations(examples)).activations

    @abc.abstractmethod
    def cost(self, devices: int) -> Estimate:
        """What the whole run costs."""

    def _estimate(
        self, devices: int, batch: int, *, steps_per_iteration: int, updates_per_iteration: int, **told: Any
    ) -> Estimate:
        """What the whole run costs, with `batch` examples in an update."""
        counted, per_device = self.count(), -(-batch // devices)
        iterations, seconds = self.config.iterations, self.seconds_per_step(min(per_device, MOST_EXAMPLES))
        return Estimate(
            counted=counted,
            max_loops=self.net.max_loops if self.makes_policy else 0,
            update_bytes=self.update_bytes(per_device),
            state_bytes=3 * 4 * counted.parameters,
            iterations=iterations,
            updates=iterations * updates_per_iteration,
            devices=devices,
            seconds=iterations * steps_per_iteration * seconds / devices,
            **told,
        )

    def close(self) -> None:  # noqa: B027
        """Release worker processes, if there are any."""


@dataclass(frozen=True)
class OnlineRun(Run):
    """What runs that learn from play share: what they cost."""

    parameters_in_state = "learner.parameters"

    @property
    def features(self) -> tuple[int, ...]:
        """The shape of the statistics that observations are scaled by."""
        return self.observation.shape if self.config.learning.cell_statistics else super().features

    def count(self, loops: float | None = None) -> Counted:
        """Parameters and FLOPs at a number of loops. Default: at the cap."""
        flops = self.net.flops(self.observations(1), self.net.max_loops if loops is None else loops)
        passes = 1 + PASSES_OF_AN_UPDATE * self.config.learning.epochs
        return Counted(count_parameters(self.net), flops, flops * passes)

    def seconds_per_step(self, examples: int) -> float:
        """Seconds per step on one device, from timing a few examples; without a solver's time."""
        net = self.build(nnx.Rngs(self.config.seed))
        definition, parameters, fixed = nnx.split(net, nnx.Param, ...)
        shape = self.observations(examples).shape
        observation = jax.random.bernoulli(jax.random.key(0), 0.3, shape).astype(jnp.float32)

        def decide(parameters: nnx.State, fixed: nnx.State, observation: Array) -> Array:
            net = nnx.merge(definition, parameters, fixed)
            return surrogate_loss(net(observation, execution=Packed()))

        acting, learning = (
            fastest(lambda work=work: work(parameters, fixed, observation)) / examples
            for work in (jax.jit(decide), jax.jit(surrogate_gradient(net, Packed())))
        )
        return acting + self.config.learning.epochs * learning

    def cost(self, devices: int) -> Estimate:
        """What the whole run costs."""
        learning, one = self.config.learning, self.observation
        each = one.size * one.dtype.itemsize + 8 * 4 + 2 + self._carried_bytes
        return self._estimate(
            devices,
            learning.minibatch,
            step="an environment step, learning included",
            steps_per_iteration=learning.steps_per_iteration,
            updates_per_iteration=learning.updates_per_iteration,
            experience="a rollout, over all devices",
            experience_bytes=learning.steps_per_iteration * each,
        )

    @property
    def _carried_bytes(self) -> int:
        """Of what one environment carries from one decision to the next."""
        memory = functools.partial(first_memory, starting_of(self.net), self.definition)
        carried = jax.eval_shape(memory, self.weights_like, self.observations(1))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(carried))


def _weights_of(net: Any, statistics: Any) -> Weights:
    """A net's weights, or their shapes, with statistics of what it observes."""
    _, parameters, fixed = nnx.split(net, nnx.Param, ...)
    return Weights(parameters, fixed, statistics)
