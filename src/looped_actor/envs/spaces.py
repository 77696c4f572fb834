"""Observation and action spaces as data, for nets, checks and files that outlive the environment."""

import re
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from jaxtyping import Array, Shaped

from looped_actor.envs.base import Environment
from looped_actor.loop import Categorical, Distribution
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class Observations:
    """Arrays of one shape; the last axis holds features."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise UserError(f"shape is {list(self.shape)}; it must have at least one axis, and no empty one")
        _check_dtype(self.dtype)

    @property
    def one(self) -> jax.ShapeDtypeStruct:
        """Shape of a single observation."""
        return jax.ShapeDtypeStruct(self.shape, jnp.dtype(self.dtype))


@dataclass(frozen=True)
class DiscreteActions:
    """Discrete actions."""

    count: int
    first: int = 0
    """Number by which the environment calls the first action."""

    def __post_init__(self) -> None:
        at_least_one(self, "count")

    def to_env(self, action: Shaped[Array, "*b"]) -> Shaped[Array, "*b"]:
        """Return the actions of a policy as the environment takes them."""
        return action + self.first


@dataclass(frozen=True)
class ContinuousActions:
    """Vectors of actions. A bound of None means unbounded."""

    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise UserError(f"there are {len(self.low)} lower and {len(self.high)} upper bounds of actions")
        _check_dtype(self.dtype)

    def to_env(self, action: Shaped[Array, "*b n"]) -> Shaped[Array, "*b n"]:
        """Return the actions of a policy, clipped to the bounds."""
        low = jnp.array([-jnp.inf if bound is None else bound for bound in self.low])
        high = jnp.array([jnp.inf if bound is None else bound for bound in self.high])
        return jnp.clip(action, low, high).astype(self.dtype)


Actions = DiscreteActions | ContinuousActions


def _check_dtype(name: str) -> None:
    if not re.fullmatch(r"bool|u?int(8|16|32|64)|float(16|32|64)", name):
        raise UserError(f"dtype is {name!r}; it must be a type of numbers, such as float32 or uint8")


def check_head(policy: Distribution, actions: Actions) -> None:
    """Raise an error if a policy's actions are not those of the environment."""
    discrete = isinstance(policy, Categorical)
    found = policy.logits.shape[-1] if discrete else jax.eval_shape(lambda p: p.mode(), policy).shape[-1]
    wanted = actions.count if isinstance(actions, DiscreteActions) else len(actions.low)
    if discrete != isinstance(actions, DiscreteActions) or found != wanted:
        raise UserError(
            f"the policy is a {type(policy).__name__} of {found} actions, and the environment takes "
            f"{actions}: give the net another head"
        )


def spaces_of(env: Environment | gymnasium.vector.VectorEnv) -> tuple[Observations, Actions]:
    """Return the spaces of an environment, or raise an error that says why no policy can be trained on it."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        return _gymnasium_spaces(env)
    seen = jax.eval_shape(lambda key: env.observe(env.reset(key)), jax.random.key(0))
    if not isinstance(seen, jax.ShapeDtypeStruct) or not seen.shape:
        raise UserError(f"observe() returns {seen}; it must return one array, whose last axis holds features")
    return Observations(seen.shape, str(seen.dtype)), DiscreteActions(env.num_actions)


def _gymnasium_spaces(env: gymnasium.vector.VectorEnv) -> tuple[Observations, Actions]:
    if env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        raise UserError(
            "the environment starts a new episode one step late: make it with "
            'gymnasium.make_vec(..., vectorization_mode="sync", '
            'vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})'
        )
    seen, taken = env.single_observation_space, env.single_action_space
    if not isinstance(seen, spaces.Box) or not seen.shape:
        raise UserError(
            f"observations are {seen}; they must be arrays: wrap the environment, for example by "
            "gymnasium.wrappers.vector.FlattenObservation"
        )
    observations = Observations(seen.shape, str(seen.dtype))
    if isinstance(taken, spaces.Discrete):
        return observations, DiscreteActions(int(taken.n), int(taken.start))
    if not isinstance(taken, spaces.Box) or len(taken.shape) != 1:
        raise UserError(f"actions are {taken}; they must be discrete, or vectors")
    low, high = (
        tuple(float(bound) if np.isfinite(bound) else None for bound in bounds)
        for bounds in (taken.low, taken.high)
    )
    return observations, ContinuousActions(low, high, str(taken.dtype))


def successes(infos: dict[str, Any], rows: int) -> np.ndarray | None:
    """Return a mask of the rows that succeeded in a step of Gymnasium; None if `infos` has no
    `is_success`."""
    places = (infos, infos.get("final_info", {}), infos.get("episode", {}))
    reported = [np.asarray(place["is_success"], bool) for place in places if "is_success" in place]
    return np.any([np.broadcast_to(one, rows) for one in reported], axis=0) if reported else None
