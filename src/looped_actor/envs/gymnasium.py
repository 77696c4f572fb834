"""JAX environments for libraries that use Gymnasium's vector environments."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from looped_actor.envs.base import Environment
from looped_actor.envs.vector import TimeStep, VectorEnv, VectorState
from looped_actor.utils.errors import UserError


class VectorGym(gymnasium.vector.VectorEnv[NDArray[Any], NDArray[Any], Any]):
    """Many copies of an `Environment`, computed by JAX.

    ```python
    envs = looped_actor.VectorGym(Walk(), num_envs=64)  # for any library that takes vector environments
    ```

    A copy whose episode ends is reset in the same step; `infos["final_obs"]` has its last observation, and
    `infos["episode"]` the return and the length of the episode. The bounds of observations are the
    environment's `observation_bounds`, or else those of their type.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, env: Environment, num_envs: int):
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}")
        self.num_envs, self._vector = num_envs, VectorEnv(env, num_envs)
        self._state: VectorState | None = None
        observation = jax.eval_shape(lambda key: env.observe(env.reset(key)), jax.random.key(0))
        low, high = getattr(env, "observation_bounds", None) or _bounds(observation.dtype)
        self.single_observation_space = spaces.Box(low, high, observation.shape, observation.dtype)
        self.single_action_space = spaces.Discrete(env.num_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._reset = jax.jit(VectorEnv.reset)
        self._step = jax.jit(VectorEnv.step, donate_argnums=1)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Reset all copies. One seed determines all random draws."""
        if isinstance(seed, list):
            raise UserError("one seed is used for all copies; a list of seeds is not supported")
        super().reset(seed=seed)
        root = jax.random.key(int(self.np_random.integers(2**31)))
        self._state, observation = self._reset(self._vector, root)
        return np.asarray(observation), {}

    def step(self, actions: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._state is None:
            raise UserError("call reset() before step()")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or not self.action_space.contains(actions.astype(np.int64)):
            raise UserError(f"actions of shape {actions.shape} are not in {self.action_space}")
        timestep: TimeStep
        self._state, timestep = self._step(self._vector, self._state, jnp.asarray(actions, jnp.int32))
        done = np.asarray(timestep.done)
        infos: dict[str, Any] = {}
        if done.any():
            final = np.full(self.num_envs, None, object)
            observation = np.asarray(timestep.final_observation)
            for row in np.flatnonzero(done):
                final[row] = observation[row]
            episode = timestep.episode
            infos = {
                "final_obs": final,
                "_final_obs": done,
                "episode": {
                    "r": np.asarray(episode.returns),
                    "l": np.asarray(episode.length),
                    "is_success": np.asarray(episode.success),
                },
                "_episode": done,
            }
        return (
            np.asarray(timestep.observation),
            np.asarray(timestep.reward),
            np.asarray(timestep.terminated),
            np.asarray(timestep.truncated),
            infos,
        )


def _bounds(dtype: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest value of a type."""
    if np.issubdtype(dtype, np.bool):
        return 0, 1
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf
