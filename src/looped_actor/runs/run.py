"""Runs: from a configuration to the parts of a run. `registry.run_of` makes the right kind."""

import abc
import json
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from looped_actor.loop.microbatch import default_microbatch, default_slots
from looped_actor.policy.policy import Policy, PolicySpec
from looped_actor.training import Trainer
from looped_actor.utils.codec import to_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import UNFINISHED, read_json, write_whole
from looped_actor.utils.processes import Progress, no_progress

RECIPE_FILE = "recipe.json"
"""In the folder of levels or data that were made for a run: how they were made."""
Build = Callable[[nnx.Rngs], Any]
"""Makes a net from random streams."""


class CustomCode(NamedTuple):
    """Code of a custom environment, which is in no file of a run."""

    build: Build
    env: Any = None
    """An environment in JAX, or a function that makes a vector environment of Gymnasium."""


@dataclass(frozen=True, eq=False)
class Run(abc.ABC):
    """The parts of a run, made from its configuration, its folder and the devices."""

    config: Any
    folder: pathlib.Path
    mesh: Mesh | None = None
    """None if nothing is computed."""
    code: CustomCode | None = None
    """Code of a custom environment; None for the paper's tasks."""

    @cached_property
    def spec(self) -> PolicySpec:
        """The policy without its weights."""
        return PolicySpec(
            config=self.config,
            task=self.config.task,
            arm=self.config.trained,
            learner=self.config.learner,
            build=self.build,
            observation=self.observation,
            statistics_shape=self.statistics_shape,
            to_env=self.to_env,
            make_env=self.make_env,
            find_levels=self.find_levels,
        )

    @abc.abstractmethod
    def build(self, rngs: nnx.Rngs) -> Any:
        """Return the net of the policy with new weights."""

    @property
    @abc.abstractmethod
    def observation(self) -> PyTree[jax.ShapeDtypeStruct]:
        """Shape of one observation, in the types that environments give."""

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """Shape of the statistics by which observations are normalised."""
        shape = jax.tree.leaves(self.observation)[0].shape
        return shape if self.config.recipe_details.cell_statistics else shape[-1:]

    def to_env(self, action: Array) -> Array:
        """Return actions of the policy as the environment takes them."""
        return action

    @abc.abstractmethod
    def make_env(self, policy: Policy, **options: Any) -> Any:
        """Return the environment of a policy for Gymnasium."""

    def find_levels(self, policy: Policy) -> Any:
        """Return the test levels of a policy."""
        raise UserError(f"{self.config.task} is not played on levels")

    @property
    def dtype(self) -> Any:
        """Type of parameters in training: float32, unless JAX_ENABLE_X64 is set."""
        return jnp.float64 if jax.config.jax_enable_x64 else jnp.float32  # type: ignore[attr-defined]

    def complete_config(self) -> Any:
        """Return the configuration with everything that is resolved when the run begins."""
        net, device = self.spec.net, None if self.mesh is None else self.mesh.devices.flat[0]
        if net.halting is None:
            return self.config
        weights, observation = self.spec.weights_like, self.spec.observations(1)
        output = jax.eval_shape(lambda w, o: self._latent(w, o), weights, observation)
        return replace(
            self.config,
            microbatch=self.config.microbatch or default_microbatch(output.size, device),
            slots=self.config.slots or default_slots(output.size, device),
        )

    def _latent(self, weights: Any, observation: Any) -> Any:
        from looped_actor.algorithms import make_policy

        output = make_policy(self.spec.definition, weights)(observation)
        assert output.loop is not None
        return output.loop.latent

    @property
    @abc.abstractmethod
    def material(self) -> pathlib.Path:
        """Folder of the levels or data that are made for the run."""

    @abc.abstractmethod
    def prepare(self, progress: Progress = no_progress) -> dict[str, str]:
        """Make the levels or data that are missing, check all of them, and return their checksums by
        split."""

    @property
    def material_recipe(self) -> Any:
        """Recipe of the levels or data in `material`."""
        return None

    def is_made(self) -> bool:
        """Return whether the files in `material` were made by its recipe: a killed start may have wanted
        another."""
        note = self.material / RECIPE_FILE
        if note.is_file():
            return read_json(note) == to_json(self.material_recipe)
        there = self.material.iterdir() if self.material.exists() else ()
        if not all(path.name.endswith(UNFINISHED) for path in there):
            raise UserError(
                f"{self.material} is there, and not from a run that was begun: move it away, or give "
                "another folder"
            )
        return False

    def note_recipe(self) -> None:
        """Write the recipe of `material`, before making it."""
        note = json.dumps(to_json(self.material_recipe), indent=2) + "\n"
        write_whole(self.material / RECIPE_FILE, note.encode())

    @cached_property
    @abc.abstractmethod
    def trainer(self) -> Trainer:
        """The algorithm on its environments or data. Opens the training data."""

    @abc.abstractmethod
    def evaluate(self, state: Any) -> Mapping[str, Any]:
        """Return evaluation results of a training state, as JSON."""

    def test(self, state: Any) -> Mapping[str, Any] | None:
        """Return results of the final state on the test levels; None if there are none."""
        return None

    def save_extras(self, state: Any) -> None:  # noqa: B027
        """Write what was learned in addition to the policy."""

    def close(self) -> None:  # noqa: B027
        """Release worker processes."""
