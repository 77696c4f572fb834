"""Policies: objects that act, and files that are safe to load.

A policy is `policy.safetensors` and `config.json`. Loading reads numbers and names, never code; every name
and shape is compared with the net that the configuration describes, or that the user builds.
"""

import copy
import functools
import os
import pathlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import core
from jaxtyping import Array, Key, PyTree

from looped_actor.algorithms import Action, Weights, init_carry, make_policy, zero_statistics
from looped_actor.evaluation.options import LoopOptions
from looped_actor.loop import Carry, Categorical, Execution, FixedLoops, HaltingRule, Packed, PolicyKL
from looped_actor.models import PolicyOutput
from looped_actor.models.cost import count_parameters
from looped_actor.names import CONFIG_FILE, WEIGHTS_FILE
from looped_actor.training.sharding import to_one_device
from looped_actor.utils.checks import shown
from looped_actor.utils.codec import write_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.tensors import write_weights

POLICY_FOLDER = "policy"
TEST_FILE = "test.json"
"""In the folder of a run: results of its policy on the test levels."""
FORMAT = "looped-actor policy 1"


@dataclass(frozen=True, eq=False)
class PolicySpec:
    """A policy without its weights."""

    config: Any
    """Configuration of the run that trained it; config.json holds it."""
    task: str
    arm: str
    learner: str
    """Name of the algorithm."""
    build: Callable[[nnx.Rngs], Any]
    """Makes the net from random streams."""
    observation: PyTree[jax.ShapeDtypeStruct]
    """Shape of one observation, in the types that environments give."""
    statistics_shape: tuple[int, ...]
    """Shape of the statistics by which observations are normalised."""
    to_env: Callable[[Array], Array] = lambda action: action
    """Actions of the policy to actions as the environment takes them."""
    make_env: Callable[..., Any] | None = None
    """Makes the Gymnasium environment of a policy."""
    find_levels: Callable[[Any], Any] | None = None
    """Finds the test levels of a policy."""

    @cached_property
    def net(self) -> Any:
        """The net, with shapes for weights."""
        return nnx.eval_shape(lambda: self.build(nnx.Rngs(0)))

    @cached_property
    def definition(self) -> nnx.GraphDef:
        """The net without its weights."""
        return nnx.split(self.net)[0]

    @property
    def halting(self) -> HaltingRule | None:
        """Halting rule of training; None for nets that do not loop."""
        return self.net.halting

    @property
    def max_loops(self) -> int:
        """Cap, or fixed depth."""
        return self.net.max_loops

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return count_parameters(self.net)

    @cached_property
    def weights_like(self) -> Weights:
        """Shapes of the weights."""
        return _weights_of(self.net, jax.eval_shape(lambda: zero_statistics(self.statistics_shape)))

    def init_weights(self, seed: int = 0) -> Weights:
        """Return the weights of an untrained policy."""
        return _weights_of(self.build(nnx.Rngs(seed)), zero_statistics(self.statistics_shape))

    def observations(self, count: int) -> PyTree[jax.ShapeDtypeStruct]:
        """Return the shape of a batch of observations, as the net reads them."""
        return jax.tree.map(
            lambda one: jax.ShapeDtypeStruct((count, *one.shape), jnp.float32), self.observation
        )

    @property
    def board(self) -> tuple[int, int] | None:
        """Rows and columns of the boards in training; None if observations are not boards."""
        shapes = jax.tree.leaves(self.observation)
        return shapes[0].shape[:2] if len(shapes) == 1 and len(shapes[0].shape) == 3 else None

    @property
    def plays_one_size(self) -> bool:
        """True if boards of other sizes cannot be played."""
        return self.arm == "drc" or len(self.statistics_shape) > 1

    def inputs(self, board: tuple[int, int] | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the arrays of one observation by name; of boards of another size if `board` is given."""
        leaves = jax.tree.leaves(self.observation)
        inputs = {"observation": leaves[0]} if len(leaves) == 1 else self.observation._asdict()
        if board is None:
            return inputs
        if self.board is None:
            raise UserError(f"{self.task} has no board: leave --board out")
        if board != self.board and self.plays_one_size:
            raise UserError(f"this policy plays boards of {self.board}, and no others")
        if min(board) < 1:
            raise UserError(f"a board of {board[0]} x {board[1]} has no cells")
        return {"observation": jax.ShapeDtypeStruct((*board, leaves[0].shape[-1]), leaves[0].dtype)}

    def to_observation(self, arrays: Sequence[Any]) -> Any:
        """Return the observation of which these are the arrays, in the order of `inputs`."""
        return jax.tree.unflatten(jax.tree.structure(self.observation), arrays)

    def outputs(self, output: PolicyOutput) -> dict[str, Array]:
        """Return the arrays of an output by name: action, logits or mean, and value."""
        distribution = output.distribution
        outputs = {"action": self.to_env(distribution.mode())}
        if isinstance(distribution, Categorical):
            outputs["logits"] = distribution.logits
        else:
            outputs["mean"] = distribution.mode()
        return outputs if output.value is None else outputs | {"value": output.value}

    def with_loop(self, options: LoopOptions) -> HaltingRule | None:
        """Return the halting rule with changes; None if there are none."""
        changes: dict[str, Any] = {
            name: value
            for name in ("max_loops", "min_loops", "threshold")
            if (value := getattr(options, name)) is not None
        }
        if not changes:
            return None
        if self.halting is None:
            raise UserError(f"{self.arm} does not loop: its depth cannot be changed")
        rule: Any = self.halting
        if isinstance(rule, FixedLoops):
            if changes.keys() == {"max_loops"}:
                return FixedLoops(changes["max_loops"])
            rule = PolicyKL(max_loops=max(rule.loops, 2))
        if "max_loops" in changes:
            changes.setdefault("min_loops", min(rule.min_loops, changes["max_loops"]))
        return replace(rule, **changes)


def _weights_of(net: Any, statistics: Any) -> Weights:
    """Return a net's weights, or their shapes, with statistics of observations."""
    _, parameters, fixed = nnx.split(net, nnx.Param, ...)
    return Weights(parameters, fixed, statistics)


class Policy:
    """A trained policy.

    ```python
    policy = looped_actor.load_policy("runs/first/policy")
    action = policy.act(observation)  # one observation, or a batch; NumPy in, NumPy out
    action.action, action.loops
    output = policy(observations)  # a batch; everything that the net computes, as JAX arrays
    output.distribution.log_prob(actions), output.value, output.loop.loops
    ```

    An observation has the form in which the environment gives it: a board as planes, `[rows, columns,
    planes]`, the array of a custom environment, or for robots a `GoalObservation` of state and goal, whose
    policies have no value. Each shape of input, halting rule and execution is compiled at its first call.

    Policies may carry their latent from one decision of an episode to the next. The loop is the same for all:

    ```python
    carry = None
    while not done:
        action = policy.act(observation, carry=carry)
        carry = action.carry
    ```

    Args:
      spec: everything but the weights.
      weights: the weights.
      name: shown in results.
      folder: where the policy was loaded from; evaluations look for test levels there.
      code: build function and environment of a custom environment.
    """

    def __init__(
        self,
        spec: PolicySpec,
        weights: Weights,
        name: str = "policy",
        folder: pathlib.Path | None = None,
        code: Any = None,
    ):
        self.spec, self.weights, self.name = spec, weights, name
        self.folder, self.code = folder or pathlib.Path(), code
        self.carry_latent: bool = spec.net.carry_latent
        self._draws, self._warned = 0, False
        self._decide = jax.jit(self._decide_on, static_argnums=(4, 5, 6))
        self._act = jax.jit(self._act_on, static_argnums=(4, 5, 6))

    def __repr__(self) -> str:
        facts: dict[str, Any] = {"task": self.spec.task, "arm": self.spec.arm}
        if self.spec.board is not None:
            facts["board"] = self.spec.board
        if self.halting is not None:
            facts["max_loops"] = self.halting.max_loops
        facts["parameters"] = self.spec.parameters
        return f"Policy({self.name!r}, {', '.join(f'{name}={value!r}' for name, value in facts.items())})"

    @property
    def config(self) -> Any:
        """Configuration of the run that trained it."""
        return self.spec.config

    def make_env(self, **options: Any) -> Any:
        """Return the policy's environment for Gymnasium, with its test levels if it plays a puzzle.

        Args:
          options: options of the environment, such as `render_mode`.
        """
        if self.spec.make_env is None:
            raise UserError(f"a policy of {self.spec.task} does not know how to make its environment")
        return self.spec.make_env(self, **options)

    @property
    def levels(self) -> Any:
        """Test levels of the run that trained it, as a `LevelBank`."""
        if self.spec.find_levels is None:
            raise UserError(f"{self.spec.task} is not played on levels")
        return self.spec.find_levels(self)

    @property
    def halting(self) -> HaltingRule | None:
        """Halting rule of training; None if the policy does not loop."""
        return self.spec.halting

    def __call__(
        self,
        observation: PyTree,
        *,
        halting: HaltingRule | None = None,
        execution: Execution | None = None,
        expected_loops: Array | None = None,
        carry: Carry | None = None,
        record: bool = False,
    ) -> PolicyOutput:
        """Return the output for a batch of observations.

        Args:
          observation: the batch.
          halting: replaces the halting rule of training.
          execution: how the loops of the batch run. Default: `Packed()`.
          expected_loops: a guess of each example's depth. Only ever changes the time it takes.
          carry: carry of the last call for the same episodes. Default: episodes begin.
          record: also return the latent after every loop.
        """
        _check_options(halting, execution)
        observation, batched = self._check(observation)
        if not batched:
            raise UserError("this takes a batch of observations; for a single one there is `act`")
        carry = self._check_carry(carry, observation)
        rule, execution = halting or self.halting, execution or Packed()
        return self._decide(self._leaves, observation, expected_loops, carry, rule, execution, record)

    def act(
        self,
        observation: PyTree,
        *,
        key: Key[Array, ""] | None = None,
        carry: Carry | None = None,
        halting: HaltingRule | None = None,
        execution: Execution | None = None,
    ) -> Action:
        """Choose actions. Warns once if an observation holds NaN or infinite numbers.

        Args:
          observation: one, or a batch.
          key: draws actions from the policy. Default: the most probable ones.
          carry: `carry` of the last call for the same episodes. Default: episodes begin. In a batch,
            `carry.restart(done)` marks those that begin while others continue.
          halting: replaces the halting rule of training.
          execution: how the loops of a batch run. Default: `Packed()`.
        """
        _check_options(halting, execution, key)
        observation, batched = self._check(observation)
        if not batched:
            observation = jax.tree.map(lambda leaf: leaf[None], observation)
        carry = self._check_carry(carry, observation)
        rule, execution = halting or self.halting, execution or Packed()
        action = self._act(self._leaves, observation, key, carry, rule, execution, self.carry_latent)
        carry = action.carry  # stays on the device
        action = jax.device_get(action._replace(carry=()))._replace(carry=carry)
        if batched:
            return action
        return action._replace(action=action.action[0], loops=action.loops[0], stop=action.stop[0])

    def predict(
        self, observation: PyTree, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, Any]:
        """Return actions and the state for the next call, as policies of Stable-Baselines3 do.

        Args:
          observation: one, or a batch.
          state: state of the last call. None: episodes begin.
          episode_start: episodes of the batch that begin.
          deterministic: take the most probable actions.
        """
        key = None
        if not deterministic:
            key, self._draws = jax.random.fold_in(jax.random.key(0), self._draws), self._draws + 1
        if state is not None and episode_start is not None:
            state = state.restart(np.asarray(episode_start, bool))
        action = self.act(observation, key=key, carry=state)
        return np.asarray(action.action), action.carry

    def with_carry(self, carry_latent: bool | None) -> "Policy":
        """Return the policy with or without carrying its latent; None: as in training."""
        if carry_latent is None or carry_latent == self.carry_latent:
            return self
        if self.halting is None:
            raise UserError(f"{self.spec.arm} does not loop: there is no latent to carry")
        other = copy.copy(self)
        other.carry_latent = carry_latent
        return other

    def with_weights(self, weights: Weights) -> "Policy":
        """Return the policy with other weights; compiled programs are shared."""
        other = copy.copy(self)
        other.weights = weights
        other.__dict__.pop("_leaves", None)
        return other

    def save(self, folder: str | os.PathLike) -> None:
        """Write the policy into a folder, for `load_policy`."""
        save_policy(self.config, self.weights, folder)

    @functools.cached_property
    def _leaves(self) -> list[Array]:
        """Weights on one device, as a flat list: calls do not look at their names."""
        return jax.tree.leaves(to_one_device(self.weights))

    def _decide_on(
        self,
        leaves: list[Array],
        observation: PyTree,
        expected_loops: Array | None,
        carry: Carry | None,
        halting: HaltingRule | None,
        execution: Execution,
        record: bool = False,
    ) -> PolicyOutput:
        weights = jax.tree.unflatten(jax.tree.structure(self.weights), leaves)
        policy = make_policy(self.spec.definition, weights, halting, execution)
        return policy(observation, expected_loops=expected_loops, carry=carry, record=record)

    def _act_on(
        self,
        leaves: list[Array],
        observation: PyTree,
        key: Key[Array, ""] | None,
        carry: Carry | None,
        halting: HaltingRule | None,
        execution: Execution,
        carry_latent: bool,
    ) -> Action:
        output = self._decide_on(leaves, observation, None, carry, halting, execution)
        distribution, loop = output.distribution, output.loop
        assert loop is not None
        action = distribution.mode() if key is None else distribution.sample(key)
        if carry is None:
            weights = jax.tree.unflatten(jax.tree.structure(self.weights), leaves)
            carry = init_carry(self.spec.definition, weights, observation, carry_latent)
        return Action(
            action=self.spec.to_env(action),
            loops=loop.loops,
            stop=loop.stop,
            executed=loop.executed,
            carry=carry.update(loop.latent),
        )

    def _check(self, observation: PyTree) -> tuple[PyTree, bool]:
        """Return observations as arrays, and whether they are a batch; or raise an error that says what is
        expected."""
        if type(observation) is tuple and len(observation) in (2, 5) and isinstance(observation[-1], dict):
            raise UserError(
                "an observation is given as the tuple that reset() or step() of an environment returns: give "
                "its first part, as in `observation, info = env.reset()`"
            )
        wanted, structure = jax.tree.flatten(self.spec.observation)
        leaves, found = jax.tree.flatten(observation)
        if found != structure:
            leaves = [observation] if len(wanted) == 1 else []
        try:
            leaves = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in leaves]
        except ValueError:  # lists of different lengths
            leaves = []
        batched = {_is_batched(leaf, one) for leaf, one in zip(leaves, wanted, strict=False)}
        statistics = self.spec.statistics_shape
        one_size = len(statistics) > 1 and leaves and leaves[0].shape[-3:] != statistics
        batched = {None} if one_size else batched
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
        if leaf.dtype == one.dtype or jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            return leaf
        if one.dtype.kind == "f":
            return leaf.astype(one.dtype)
        with np.errstate(invalid="ignore"):
            cast = np.asarray(leaf).astype(one.dtype)
        return cast if np.array_equal(cast, leaf) else leaf.astype(np.float32)

    def _check_carry(self, carry: Any, observation: PyTree) -> Carry | None:
        """Return the carry if an earlier call for as many episodes can have returned it."""
        if carry is None:
            return None
        rows = len(jax.tree.leaves(observation)[0])
        if not isinstance(carry, Carry) or np.shape(carry.reset) != (rows,):
            raise UserError(f"carry must be that of the last call for the same {rows} episodes, or None")
        return None if carry.is_empty else carry  # an empty one needs no program of its own


def _check_options(halting: Any, execution: Any, key: Any = None) -> None:
    """Raise an error if an option is of the wrong type."""
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


def _is_batched(leaf: Any, one: jax.ShapeDtypeStruct) -> bool | None:
    """Return whether there is a batch axis before one observation; None if the shape fits neither."""
    fits = leaf.dtype.kind in "biuf" and leaf.ndim and leaf.shape[-1] == one.shape[-1] and 0 not in leaf.shape
    return {0: False, 1: True}.get(leaf.ndim - len(one.shape)) if fits else None


def save_policy(config: Any, weights: Weights, folder: str | os.PathLike) -> None:
    """Write a policy into a folder, for `load_policy`."""
    folder = pathlib.Path(folder)
    write_json(config, folder / CONFIG_FILE)
    write_weights(weights, folder / WEIGHTS_FILE, FORMAT)


def find_policy(path: str | os.PathLike) -> pathlib.Path | None:
    """Return the folder of a policy: this one, or the one in the folder of a run; None if there is none."""
    folder = pathlib.Path(path)
    return next((f for f in (folder, folder / POLICY_FOLDER) if (f / WEIGHTS_FILE).is_file()), None)
