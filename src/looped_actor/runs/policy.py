"""Finished policies: objects that act at once, and files that no one has to trust.

A policy is `policy.safetensors` and `config.json`. Loading reads numbers and names, never code. Every name
and shape is held against the net that the configuration describes, or that the user builds.
"""

import contextlib
import copy
import functools
import os
import pathlib
import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jaxtyping import Array, Key, PyTree

from looped_actor.algorithms import Acted, Weights, deciding
from looped_actor.checks import shown
from looped_actor.configs.requests import HaltingChange
from looped_actor.configs.runs import CONFIG_FILE, write_config
from looped_actor.devices import on_one_device
from looped_actor.errors import UserError
from looped_actor.loop import (
    Execution,
    FixedLoops,
    HaltingRule,
    Memory,
    Packed,
    PolicyKL,
    Start,
    starting_of,
)
from looped_actor.models import ActorCriticOutput, ActorOutput
from looped_actor.models.cost import count_parameters
from looped_actor.names import WEIGHTS_FILE
from looped_actor.runs.base import Run
from looped_actor.weights import write_weights

POLICY_FOLDER = "policy"
FORMAT = "looped-actor policy 1"


class Policy:
    """A trained policy, ready to act.

    ```python
    policy = looped_actor.load_policy("runs/first/policy")
    acted = policy.act(observation)  # one observation, or a batch; NumPy in, NumPy out
    acted.action, acted.loops
    decision = policy(observations)  # a batch; all that the net computes, as JAX arrays
    decision.distribution.log_prob(actions), decision.value, decision.loop.loops
    ```

    An observation is what the environment gives: a board as planes, `[rows, columns, planes]`, the array of
    a world of your own, or for robot manipulation a `GoalObservation` of state and goal, whose decisions
    have no value. Each shape of input, halting rule and execution is compiled once, at its first call.

    Where thoughts are carried on, what an episode carries goes from one call to the next:

    ```python
    memory = None
    while not over:
        acted = policy.act(observation, memory=memory)
        memory = acted.memory  # None where nothing is carried, so this is right for every policy
    ```
    """

    def __init__(self, run: Run, weights: Weights, name: str = "policy"):
        self.run, self.weights, self.name = run, weights, name
        self._draws, self._tree = 0, jax.tree.structure(weights)
        self._warned = False
        self.starting = starting_of(run.net)
        self._decide = jax.jit(self._decided, static_argnums=(4, 5, 6))
        self._act = jax.jit(self._acted, static_argnums=(4, 5, 6))

    def __repr__(self) -> str:
        facts: dict[str, Any] = {"task": self.config.task, "arm": self.config.arm}
        if hasattr(self.config, "board"):
            facts["board"] = self.config.board
        if self.halting is not None:
            facts["max_loops"] = self.halting.max_loops
        facts["parameters"] = count_parameters(self.run.net)
        return f"Policy({self.name!r}, {', '.join(f'{name}={value!r}' for name, value in facts.items())})"

    @property
    def config(self) -> Any:
        """The configuration of the run that trained it."""
        return self.run.config

    @property
    def folder(self) -> pathlib.Path:
        """Where it was loaded from."""
        return self.run.folder

    @property
    def halting(self) -> HaltingRule | None:
        """The rule that it was trained with; None where it does not loop."""
        return self.run.net.halting

    def __call__(
        self,
        observation: PyTree,
        *,
        halting: HaltingRule | None = None,
        execution: Execution | None = None,
        expected_loops: Array | None = None,
        memory: Memory | None = None,
        record: bool = False,
    ) -> ActorOutput | ActorCriticOutput:
        """Decide for a batch of observations.

        Args:
          observation: the batch.
          halting: another rule than in training.
          execution: how the loops of the batch run. Default: `Packed()`.
          expected_loops: a guess of each example's depth. Only ever changes the time it takes.
          memory: what each starts from. Default: as an episode begins.
          record: also return the latent after every loop.
        """
        _check_choices(halting, execution)
        observation, batched = self._checked(observation)
        if not batched:
            raise UserError("this takes a batch of observations; for a single one there is `act`")
        _check_memory(memory, observation)
        with self.precision:
            rule, way = halting or self.halting, execution or Packed()
            return self._decide(self._leaves, observation, expected_loops, memory, rule, way, record)

    def act(
        self,
        observation: PyTree,
        *,
        key: Key[Array, ""] | None = None,
        memory: Memory | None = None,
        halting: HaltingRule | None = None,
        execution: Execution | None = None,
    ) -> Acted:
        """Choose actions as the environment takes them, as NumPy arrays with the loops they took.

        Warns once if an observation holds NaN or infinite numbers.

        Args:
          observation: one, or a batch.
          key: draws actions from the policy. Default: the most probable ones.
          memory: what the last call of the same episodes returned as its `memory`. Default: episodes begin.
            In a batch, `memory.restart(ended)` marks those that begin while others go on.
          halting: another rule than in training.
          execution: how the loops of a batch run. Default: `Packed()`.
        """
        _check_choices(halting, execution, key)
        observation, batched = self._checked(observation)
        if not batched:
            observation = jax.tree.map(lambda leaf: leaf[None], observation)
        _check_memory(memory, observation)
        with self.precision:
            rule, way = halting or self.halting, execution or Packed()
            given = self._leaves, observation, key, memory, rule, way, self.starting
            acted, memory = self._act(*given)
            acted = jax.device_get(acted)._replace(memory=memory)  # which stays where it is computed with
        if batched:
            return acted
        return acted._replace(action=acted.action[0], loops=acted.loops[0], stop=acted.stop[0])

    def predict(
        self, observation: PyTree, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, Any]:
        """Actions, and the state for the next call: the call of Stable-Baselines3, for its helpers.

        Args:
          observation: one, or a batch.
          state: what the last call returned. None: episodes begin.
          episode_start: which episodes begin, of a batch.
          deterministic: take the most probable actions.
        """
        key = None
        if not deterministic:
            key, self._draws = jax.random.fold_in(jax.random.key(0), self._draws), self._draws + 1
        if state is not None and episode_start is not None:
            state = state.restart(np.asarray(episode_start, bool))
        acted = self.act(observation, key=key, memory=state)
        return np.asarray(acted.action), acted.memory

    def rule(self, change: HaltingChange) -> HaltingRule | None:
        """Its halting rule with changes; None where none was asked for."""
        asked = {name: getattr(change, name) for name in ("max_loops", "min_loops", "threshold")}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if not changes:
            return None
        if self.halting is None:
            raise UserError(f"{self.config.arm} does not loop: its depth cannot be changed")
        if isinstance(self.halting, FixedLoops) and changes.keys() == {"max_loops"}:
            return FixedLoops(changes["max_loops"])
        rule: Any = self.halting
        if isinstance(rule, FixedLoops):
            rule = getattr(self.config, "halting", PolicyKL())
        if "max_loops" in changes:
            changes.setdefault("min_loops", min(rule.min_loops, changes["max_loops"]))
        return replace(rule, **changes)

    def with_start(self, starting: Start | None) -> "Policy":
        """The same policy whose thoughts start elsewhere than in training; None: as they do."""
        if starting is None or starting == self.starting:
            return self
        if self.halting is None:
            raise UserError(f"{self.config.arm} does not loop: there is no thought to start elsewhere")
        other = copy.copy(self)
        other.starting = starting
        return other

    def with_weights(self, weights: Weights) -> "Policy":
        """The same net with other weights; what was compiled is kept."""
        other = copy.copy(self)
        other.weights = weights
        other.__dict__.pop("_leaves", None)
        return other

    def save(self, folder: str | os.PathLike) -> None:
        """Write it for others to load."""
        save_policy(self.config, self.weights, folder)

    @functools.cached_property
    def _leaves(self) -> list[Array]:
        """The weights on one device, flat: a call hands them over without looking at their names."""
        with self.precision:
            return jax.tree.leaves(on_one_device(self.weights))

    @property
    def precision(self) -> Any:
        """The context in which its programs are traced and called."""
        return jax.enable_x64(True) if self.config.double_precision else contextlib.nullcontext()

    def _decided(
        self,
        leaves: list[Array],
        observation: PyTree,
        expected_loops: Array | None,
        memory: Memory | None,
        halting: HaltingRule | None,
        execution: Execution,
        record: bool = False,
    ) -> Any:
        decide: Any = deciding(
            self.run.definition, jax.tree.unflatten(self._tree, leaves), halting, execution
        )
        return decide(observation, expected_loops=expected_loops, memory=memory, record=record)

    def _acted(
        self,
        leaves: list[Array],
        observation: PyTree,
        key: Key[Array, ""] | None,
        memory: Memory | None,
        halting: HaltingRule | None,
        execution: Execution,
        starting: Start,
    ) -> tuple[Acted, Memory | None]:
        decision = self._decided(leaves, observation, None, memory, halting, execution)
        policy, loop = decision.distribution, decision.loop
        action = self.run.as_taken(policy.mode() if key is None else policy.sample(key))
        memory = starting.begin(lambda: loop.latent) if memory is None else memory
        memory = None if memory is None else memory.after(loop.latent)
        return Acted(action, loop.loops, loop.stop, loop.executed), memory

    def _checked(self, observation: PyTree) -> tuple[PyTree, bool]:
        """Observations as arrays, and whether they are a batch; or an error that says what is expected."""
        if type(observation) is tuple and len(observation) in (2, 5) and isinstance(observation[-1], dict):
            raise UserError(
                "an observation is given as the tuple that reset() or step() of an environment returns: give "
                "its first part, as in `observation, info = env.reset()`"
            )
        wanted, structure = jax.tree.flatten(self.run.observation)
        leaves, found = jax.tree.flatten(observation)
        if found != structure:
            leaves = [observation] if len(wanted) == 1 else []
        try:
            leaves = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in leaves]
        except ValueError:  # lists of different lengths
            leaves = []
        batched = {_batched(leaf, one) for leaf, one in zip(leaves, wanted, strict=False)}
        of_one_size = len(self.run.features) > 1 and leaves and leaves[0].shape[-3:] != self.run.features
        batched = {None} if of_one_size else batched
        if len(leaves) != len(wanted) or batched not in ({True}, {False}):
            shapes = ", ".join(str(getattr(leaf, "shape", leaf)) for leaf in leaves) or type(observation)
            sides = ["any"] * (len(wanted[0].shape) - 1) if len(wanted) == 1 else []
            shape = f"({', '.join([*sides, str(wanted[0].shape[-1])])})"
            kind = "arrays" if len(wanted) == 1 else "GoalObservation(state, goal) of vectors"
            raise UserError(
                f"an observation of shape {shapes} is not what this policy reads: {kind} of shape {shape}, "
                "or a batch of them, with numbers in it"
            )
        cast = list(map(self._cast, leaves, wanted))
        return jax.tree.unflatten(structure, cast), True in batched

    def _cast(self, leaf: Any, one: jax.ShapeDtypeStruct) -> Any:
        """Return an observation in the type that the program is compiled for; warn once if it is not finite.

        Numbers that an environment's integers cannot hold become float32, which is what the net computes in.
        """
        if isinstance(leaf, core.Tracer):
            return leaf
        if leaf.dtype.kind == "f" and not self._warned and not np.isfinite(leaf).all():
            self._warned = True
            warnings.warn(
                "an observation holds NaN or infinite numbers: the action for it means nothing (said once)",
                RuntimeWarning,
                stacklevel=4,
            )
        if leaf.dtype == one.dtype or self.config.double_precision:
            return leaf
        if one.dtype.kind == "f":
            return leaf.astype(one.dtype)
        with np.errstate(invalid="ignore"):
            held = np.asarray(leaf).astype(one.dtype)
        return held if np.array_equal(held, leaf) else leaf.astype(np.float32)


def _check_choices(halting: Any, execution: Any, key: Any = None) -> None:
    """Raise an error if one of these is given as something that the program cannot take."""
    if key is not None:
        typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if not (typed and key.shape == ()) and getattr(key, "dtype", None) != np.uint32:  # the older kind
            raise UserError(
                f"key is {shown(key)}: give jax.random.key(0) to draw actions, or None for the most probable"
            )
    if halting is not None and not isinstance(halting, HaltingRule):
        raise UserError(
            f"halting is {shown(halting)}: give a rule, as FixedLoops(32), or PolicyKL(max_loops=32) to stop "
            "earlier"
        )
    if execution is not None and not isinstance(execution, Execution):
        raise UserError(f"execution is {shown(execution)}: give one such as Packed() or EarlyExit()")


def _check_memory(memory: Any, observation: PyTree) -> None:
    """Raise an error if it is not what an earlier call of as many episodes returned."""
    rows = len(jax.tree.leaves(observation)[0])
    if memory is not None and not (isinstance(memory, Memory) and np.shape(memory.fresh) == (rows,)):
        raise UserError(f"memory must be what the last call for the same {rows} episodes returned, or None")


def _batched(leaf: Any, one: jax.ShapeDtypeStruct) -> bool | None:
    """Whether there is a batch axis before one observation; None where it is neither."""
    fits = leaf.dtype.kind in "biuf" and leaf.ndim and leaf.shape[-1] == one.shape[-1] and 0 not in leaf.shape
    return {0: False, 1: True}.get(leaf.ndim - len(one.shape)) if fits else None


def save_policy(config: Any, weights: Weights, folder: str | os.PathLike) -> None:
    """Write a policy for others to load."""
    folder = pathlib.Path(folder)
    write_config(config, folder / CONFIG_FILE)
    write_weights(weights, folder / WEIGHTS_FILE, FORMAT)


def finished_policy(path: str | os.PathLike) -> pathlib.Path | None:
    """Where a policy lies: in this folder, or in that of the run that this is; None where there is none."""
    folder = pathlib.Path(path)
    return next((f for f in (folder, folder / POLICY_FOLDER) if (f / WEIGHTS_FILE).is_file()), None)
