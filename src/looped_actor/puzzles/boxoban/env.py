"""Boxoban as a JAX environment, with the paper's observations, rewards and time limit."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8

from looped_actor.envs.base import LevelSource, Outcome
from looped_actor.puzzles.boxoban.rules import BOX_REWARD, SOLVED_REWARD, STEP_REWARD, TIME_LIMIT, Cell
from looped_actor.puzzles.boxoban.rules_jax import BoxobanState, initial_state, move
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.grid_jax import to_planes


@functools.partial(jax.tree_util.register_dataclass, data_fields=("levels",), meta_fields=("time_limit",))
@dataclass(frozen=True)
class Boxoban:
    """Push every box onto a target. Actions are `Direction`s.

    Each step costs 0.1; a box that enters a target gives 1, one that leaves it costs 1, and the last one
    to enter gives 10 more. Planes: wall, box, target, player.
    """

    levels: LevelSource
    time_limit: int = TIME_LIMIT
    observation_bounds: ClassVar = (0, 1)

    @property
    def num_actions(self) -> int:
        return len(Direction)

    def reset(self, key: Array) -> BoxobanState:
        """Return the state of a level drawn uniformly."""
        return self.reset_to(jax.random.randint(key, (), 0, self.levels.count))

    def reset_to(self, level: Int[Array, ""]) -> BoxobanState:
        """Return the state of a chosen level."""
        return initial_state(self.levels.cells(level))

    def step(self, state: BoxobanState, action: Int[Array, ""]) -> tuple[BoxobanState, Outcome]:
        after = move(state, action, self.levels.shape)
        solved = after.unplaced == 0
        placed = (state.unplaced - after.unplaced).astype(jnp.float32)
        reward = STEP_REWARD + BOX_REWARD * placed + SOLVED_REWARD * solved
        return after, Outcome(reward, solved, solved)

    def observe(self, state: BoxobanState) -> UInt8[Array, "h w 4"]:
        return to_planes(state.cells, len(Cell), self.levels.shape)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("levels",), meta_fields=("time_limit", "radius")
)
@dataclass(frozen=True)
class WindowedBoxoban(Boxoban):
    """Boxoban with a partial observation: a square around the player. All planes of other cells are zero."""

    radius: int = 1
    """Cells that are visible in each direction."""

    def observe(self, state: BoxobanState) -> UInt8[Array, "h w 4"]:
        height, width = self.levels.shape
        row, column = jnp.divmod(state.player, width)
        distance = jnp.maximum(
            jnp.abs(jnp.arange(height) - row)[:, None], jnp.abs(jnp.arange(width) - column)
        )
        return super().observe(state) * (distance <= self.radius)[..., None]
