"""The puzzles for libraries that speak Gymnasium: one board by the plain rules, or many by JAX.

`import looped_actor` registers `looped_actor/Boxoban-v0` and `looped_actor/RushHour-v0`.
"""

from abc import abstractmethod
from typing import Any, Protocol, runtime_checkable

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
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.boxoban.rules import Cell as BoxobanCell
from looped_actor.puzzles.catalogue import BOXOBAN, RUSH_HOUR, Board
from looped_actor.puzzles.envs import BOX_REWARD, SOLVED_REWARD, STEP_REWARD
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.pictures import draw, to_pixels
from looped_actor.puzzles.rush_hour.rules import Cell as RushHourCell
from looped_actor.puzzles.rush_hour.rules import RushHourBoard
from looped_actor.utils.errors import UserError


@runtime_checkable
class Boards(Protocol):
    """Levels to play, such as a bank."""

    def __len__(self) -> int: ...

    def board(self, index: int) -> Board:
        """One level."""
        ...


class PuzzleGym(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """One puzzle at a time. `reset(options={"level": 7})` chooses the level; otherwise it is drawn."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 6}  # noqa: RUF012
    planes: int

    def __init__(self, levels: Boards, *, time_limit: int, actions: int, render_mode: str | None = None):
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f"render_mode {render_mode!r} is none of {self.metadata['render_modes']}")
        if not len(levels):
            raise UserError("there is no level to play")
        self.levels, self.time_limit, self.render_mode = levels, time_limit, render_mode
        self.current = levels.board(0)
        shape = (self.current.height, self.current.width, self.planes)
        self.observation_space = spaces.Box(0, 1, shape, np.uint8)
        self.action_space = spaces.Discrete(actions)
        self.steps = 0

    @abstractmethod
    def play(self, board: Board, action: int) -> tuple[Board, float]:
        """The next board, and the reward for it."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        level = (options or {}).get("level")
        level = int(self.np_random.integers(len(self.levels)) if level is None else level)
        self.current, self.steps = self.levels.board(level), 0
        return self._observation(), {"level": level}

    def step(self, action: int | np.integer) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Play one action."""
        if not self.action_space.contains(np.int64(action)):
            raise UserError(f"action {action!r} is not in {self.action_space}")
        self.current, reward = self.play(self.current, int(action))
        self.steps += 1
        terminated = self.current.solved
        truncated = not terminated and self.steps >= self.time_limit
        return self._observation(), reward, terminated, truncated, {"is_success": terminated}

    def render(self) -> Any:
        """The board as pixels or text."""
        if self.render_mode == "rgb_array":
            return to_pixels(draw(self.current))
        return str(self.current) if self.render_mode == "ansi" else None

    def _observation(self) -> NDArray[np.uint8]:
        bits = np.unpackbits(self.current.to_cells()[..., None], axis=-1, bitorder="little")
        return bits[..., : self.planes]


class BoxobanGym(PuzzleGym):
    """Push every box onto a target; see `looped_actor.envs.Boxoban` for rewards and planes."""

    planes = len(BoxobanCell)

    def __init__(
        self, levels: Boards, *, time_limit: int = BOXOBAN.time_limit, render_mode: str | None = None
    ):
        super().__init__(levels, time_limit=time_limit, actions=len(Direction), render_mode=render_mode)

    def play(self, board: Board, action: int) -> tuple[Board, float]:
        """Walk or push."""
        assert isinstance(board, BoxobanBoard)
        after = board.move(Direction(action))
        placed = len(after.boxes & after.targets) - len(board.boxes & board.targets)
        return after, STEP_REWARD + BOX_REWARD * placed + SOLVED_REWARD * after.solved


class RushHourGym(PuzzleGym):
    """Clear the red car's way; see `looped_actor.envs.RushHour` for rewards and planes."""

    planes = len(RushHourCell)

    def __init__(
        self, levels: Boards, *, time_limit: int = RUSH_HOUR.time_limit, render_mode: str | None = None
    ):
        first = levels.board(0) if len(levels) else None
        actions = 2 * first.height * first.width if first else 0
        super().__init__(levels, time_limit=time_limit, actions=actions, render_mode=render_mode)

    def play(self, board: Board, action: int) -> tuple[Board, float]:
        """Slide by one cell."""
        assert isinstance(board, RushHourBoard)
        after = board.slide(divmod(action // 2, board.width), forward=action % 2 == 1)
        return after, STEP_REWARD + after.potential - board.potential + SOLVED_REWARD * after.solved


def _bounds(dtype: Any) -> tuple[Any, Any]:
    """What numbers of a type can be."""
    if np.issubdtype(dtype, np.bool):
        return 0, 1
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf


class VectorGym(gymnasium.vector.VectorEnv[NDArray[Any], NDArray[Any], Any]):
    """Many copies of any of our environments, computed by JAX.

    ```python
    envs = looped_actor.VectorGym(Walk(), num_envs=64)  # for any library that takes vector environments
    ```

    A copy whose episode ends starts anew in the same step; what it last saw is in `infos["final_obs"]`,
    and the return and length of the episode in `infos["episode"]`. Observations are bounded by what their
    type can hold, or by the environment's `observation_bounds`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, env: Environment, num_envs: int):
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}")
        self.num_envs, self._vector = num_envs, VectorEnv(env, num_envs)
        self._state: VectorState | None = None
        seen = jax.eval_shape(lambda key: env.observe(env.reset(key)), jax.random.key(0))
        low, high = getattr(env, "observation_bounds", None) or _bounds(seen.dtype)
        self.single_observation_space = spaces.Box(low, high, seen.shape, seen.dtype)
        self.single_action_space = spaces.Discrete(env.num_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._reset = jax.jit(VectorEnv.reset)
        self._step = jax.jit(VectorEnv.step, donate_argnums=1)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start all copies. One seed decides all that is drawn."""
        if isinstance(seed, list):
            raise UserError("one seed decides for all copies; a list of them is not taken")
        super().reset(seed=seed)
        root = jax.random.key(int(self.np_random.integers(2**31)))
        self._state, observation = self._reset(self._vector, root)
        return np.asarray(observation), {}

    def step(self, actions: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Play one action on every copy."""
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
            seen = np.asarray(timestep.final_observation)
            for row in np.flatnonzero(done):
                final[row] = seen[row]
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
