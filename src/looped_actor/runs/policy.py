"""Finished policies as files: `policy.safetensors` and `config.json`, which no one has to trust.

Loading reads numbers and names, never code. Every name and shape is held against the net that the
configuration describes.
"""

import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx
from jaxtyping import Array, PyTree

from looped_actor.algorithms import Weights, deciding, no_statistics
from looped_actor.codec import ConfigError
from looped_actor.files import write_whole
from looped_actor.loop import FixedLoops, HaltingRule, PolicyKL
from looped_actor.models import ActorCriticOutput, ActorOutput
from looped_actor.runs.config import CONFIG_FILE, RunConfig, read_config, write_config
from looped_actor.runs.requests import HaltingChange
from looped_actor.training.checkpoint import named_leaves

POLICY_FOLDER = "policy"
WEIGHTS_FILE = "policy.safetensors"
FORMAT = "looped-actor policy 1"


class PolicyError(ValueError):
    """A policy file that cannot be used, and why."""


class Policy:
    """A policy that was trained, ready to act.

    ```python
    policy = looped_actor.load_policy("runs/first/policy")
    decision = policy(observation)  # a batch, as the environments give it
    decision.distribution.mode(), decision.value, decision.loop.loops
    ```

    An observation is a batch of boards as planes, `[b, rows, columns, planes]`, or for robot manipulation a
    `GoalObservation` of states and goals, whose decisions have no value. Options of a call are those of
    `Actor`: another halting rule, another execution.
    """

    def __init__(
        self, config: RunConfig, weights: Weights, folder: pathlib.Path | None = None, name: str = "policy"
    ):
        self.config, self.weights = config, weights
        self.folder, self.name = folder or pathlib.Path(), name
        self.definition = definition_of(config)

    def __call__(self, observation: PyTree, **options: Any) -> ActorOutput | ActorCriticOutput:
        """Decide for a batch of observations."""
        return deciding(self.definition, self.weights)(jax.tree.map(jnp.asarray, observation), **options)

    @property
    def halting(self) -> HaltingRule | None:
        """The rule that it was trained with; None where it does not loop."""
        return self.config.chosen_arm.halting

    def rule(self, change: HaltingChange) -> HaltingRule | None:
        """Its halting rule with changes; None where none was asked for."""
        asked = {name: getattr(change, name) for name in ("max_loops", "min_loops", "threshold")}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if not changes:
            return None
        if self.halting is None:
            raise ValueError(f"{self.config.arm} does not loop: its depth cannot be changed")
        if isinstance(self.halting, FixedLoops) and changes.keys() == {"max_loops"}:
            return FixedLoops(changes["max_loops"])
        rule = self.halting if isinstance(self.halting, PolicyKL) else self.config.halting
        if "max_loops" in changes:
            changes.setdefault("min_loops", min(rule.min_loops, changes["max_loops"]))
        return replace(rule, **changes)


class Program(NamedTuple):
    """What an exported policy reads and returns."""

    inputs: dict[str, jax.ShapeDtypeStruct]
    """Of one example, by name, in the types that environments give."""
    observation: Callable[..., Any]
    """Batches of the inputs to what the policy observes."""
    outputs: Callable[[Any], dict[str, Array]]
    """A batch of decisions to arrays by name."""


def build_net(config: RunConfig, rngs: nnx.Rngs) -> Any:
    """The net of a configuration, with new weights."""
    return config.chosen_arm.build(config.shape, config.core, rngs)


def definition_of(config: RunConfig) -> nnx.GraphDef:
    """The net of a configuration, without weights."""
    return nnx.split(abstract_net(config))[0]


def abstract_net(config: RunConfig) -> Any:
    """The net of a configuration as shapes."""
    return nnx.eval_shape(lambda: build_net(config, nnx.Rngs(0)))


def weights_like(config: RunConfig) -> Weights:
    """The weights of a configuration's policy as shapes."""
    _, parameters, fixed = nnx.split(abstract_net(config), nnx.Param, ...)
    return Weights(parameters, fixed, jax.eval_shape(lambda: no_statistics(config.shape.features)))


def save_policy(config: RunConfig, weights: Weights, folder: str | os.PathLike) -> None:
    """Write a policy for others to load."""
    folder = pathlib.Path(folder)
    named = {name: np.asarray(leaf) for name, leaf in named_leaves(weights).items()}
    write_config(config, folder / CONFIG_FILE)
    write_whole(folder / WEIGHTS_FILE, safetensors.numpy.save(named, metadata={"format": FORMAT}))


def finished_policy(path: str | os.PathLike) -> pathlib.Path | None:
    """Where a policy lies: in this folder, or in that of the run that this is; None where there is none."""
    folder = pathlib.Path(path)
    return next((f for f in (folder, folder / POLICY_FOLDER) if (f / WEIGHTS_FILE).is_file()), None)


def load_policy(path: str | os.PathLike) -> Policy:
    """Load a policy that `looped-actor train` has written: its folder, or the folder of the run.

    Nothing in the files is executed. Raises `PolicyError` where a file is missing, damaged, or does not
    fit its configuration.
    """
    folder = finished_policy(path)
    if folder is None:
        raise PolicyError(f"{path}: there is no {WEIGHTS_FILE} here; a run writes its policy when it ends")
    file = folder / WEIGHTS_FILE
    try:
        config = read_config(folder / CONFIG_FILE)
    except ConfigError as error:
        raise PolicyError(str(error)) from None
    try:
        with safetensors.safe_open(file, framework="numpy") as opened:
            said = (opened.metadata() or {}).get("format")
            there = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, ValueError, TypeError, OSError) as error:
        raise PolicyError(f"{file}: this is no safetensors file, or it is damaged ({error})") from None
    if said != FORMAT:
        raise PolicyError(f"{file}: format {said!r}; this version reads {FORMAT!r}")
    return Policy(config, fitted(config, there, file), pathlib.Path(path), str(path))


def fitted(config: RunConfig, there: Mapping[str, np.ndarray], source: pathlib.Path) -> Weights:
    """Named arrays as the weights of a configuration's policy, if they are just that."""
    like = weights_like(config)
    wanted = named_leaves(like)
    for name in [*wanted, *there]:
        if name not in wanted:
            raise PolicyError(f"{source}: unexpected tensor {name}")
        expected, found = tuple(wanted[name].shape), there[name].shape if name in there else "missing"
        if expected != found:
            raise PolicyError(f"{source}: {name} is {found}; for its {CONFIG_FILE} it must be {expected}")
        if there[name].dtype.kind != "f" or not np.isfinite(there[name]).all():
            raise PolicyError(f"{source}: {name} holds what is not a finite floating-point number")
    leaves = [jnp.asarray(there[name]) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
