"""Rush Hour as a JAX environment, with the paper's observations, rewards and time limit."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8

from looped_actor.envs.base import LevelSource, Outcome
from looped_actor.puzzles.grid_jax import to_planes
from looped_actor.puzzles.rush_hour.rules import SOLVED_REWARD, STEP_REWARD, TIME_LIMIT, Cell
from looped_actor.puzzles.rush_hour.rules_jax import RushHourState, initial_state, slide


@functools.partial(jax.tree_util.register_dataclass, data_fields=("levels",), meta_fields=("time_limit",))
@dataclass(frozen=True)
class RushHour:
    """Clear the red car's way to the right border.

    An action `2 x cell + forward` slides the vehicle on that cell by one. Each step costs 0.1 and solving
    gives 10. In addition, a step gives the change of the potential: minus the occupied cells ahead of the red
    car, minus its distance to the exit. Planes: occupied, red, wall, horizontal, vertical, link right, link
    down.
    """

    levels: LevelSource
    time_limit: int = TIME_LIMIT
    observation_bounds: ClassVar = (0, 1)

    @property
    def num_actions(self) -> int:
        return 2 * self.levels.shape[0] * self.levels.shape[1]

    def reset(self, key: Array) -> RushHourState:
        """Return the state of a level drawn uniformly."""
        return self.reset_to(jax.random.randint(key, (), 0, self.levels.count))

    def reset_to(self, level: Int[Array, ""]) -> RushHourState:
        """Return the state of a chosen level."""
        return initial_state(self.levels.cells(level))

    def step(self, state: RushHourState, action: Int[Array, ""]) -> tuple[RushHourState, Outcome]:
        after = slide(state, action, self.levels.shape)
        solved = after.distance_to_exit == 0
        now, before = (board.potential.astype(jnp.float32) for board in (after, state))
        return after, Outcome(STEP_REWARD + now - before + SOLVED_REWARD * solved, solved, solved)

    def observe(self, state: RushHourState) -> UInt8[Array, "h w 7"]:
        return to_planes(state.cells, len(Cell), self.levels.shape)
