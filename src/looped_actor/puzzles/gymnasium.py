"""One puzzle at a time for Gymnasium, by the plain rules.

`import looped_actor` registers `looped_actor/Boxoban-v0` and `looped_actor/RushHour-v0`.
"""

from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from looped_actor.puzzles.catalogue import game_of
from looped_actor.puzzles.drawing import to_pixels
from looped_actor.puzzles.grid import Board
from looped_actor.puzzles.pictures import draw
from looped_actor.puzzles.teachers import planes_of
from looped_actor.utils.errors import UserError


@runtime_checkable
class Boards(Protocol):
    """Levels to play, such as a bank."""

    def __len__(self) -> int: ...

    def board(self, index: int) -> Board:
        """Return one level."""
        ...


class PuzzleGym(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Levels of a game, by its plain rules; its JAX environment documents actions, rewards and planes.

    `reset(options={"level": 7})` chooses the level; otherwise it is drawn.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 6}  # noqa: RUF012

    def __init__(self, levels: Boards, *, time_limit: int | None = None, render_mode: str | None = None):
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f"render_mode {render_mode!r} is none of {self.metadata['render_modes']}")
        if not len(levels):
            raise UserError("there is no level to play")
        self.levels, self.render_mode = levels, render_mode
        self.current, self.steps = levels.board(0), 0
        self.game = game_of(self.current)
        self.time_limit = self.game.time_limit if time_limit is None else time_limit
        height, width = self.current.height, self.current.width
        self.observation_space = spaces.Box(0, 1, (height, width, self.game.planes), np.uint8)
        self.action_space = spaces.Discrete(self.game.num_actions(height, width))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        level = (options or {}).get("level")
        level = int(self.np_random.integers(len(self.levels)) if level is None else level)
        self.current, self.steps = self.levels.board(level), 0
        return self._observe(), {"level": level}

    def step(self, action: int | np.integer) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(np.int64(action)):
            raise UserError(f"action {action!r} is not in {self.action_space}")
        self.current, reward = self.game.step(self.current, int(action))
        self.steps += 1
        terminated = self.current.solved
        truncated = not terminated and self.steps >= self.time_limit
        return self._observe(), reward, terminated, truncated, {"is_success": terminated}

    def render(self) -> Any:
        if self.render_mode == "rgb_array":
            return to_pixels(draw(self.current))
        return str(self.current) if self.render_mode == "ansi" else None

    def _observe(self) -> NDArray[np.uint8]:
        return planes_of(self.current.to_cells(), self.game.planes)
