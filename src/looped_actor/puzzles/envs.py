"""The two puzzles as environments: the paper's observations, rewards and time limits."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8

from looped_actor.envs.base import LevelSource, Outcome
from looped_actor.puzzles.boxoban import rules_jax as boxoban_jax
from looped_actor.puzzles.boxoban.rules import Cell as BoxobanCell
from looped_actor.puzzles.boxoban.rules_jax import BoxobanState
from looped_actor.puzzles.catalogue import BOXOBAN, RUSH_HOUR
from looped_actor.puzzles.rush_hour import rules_jax as rush_hour_jax
from looped_actor.puzzles.rush_hour.rules import Cell as RushHourCell
from looped_actor.puzzles.rush_hour.rules_jax import RushHourState

STEP_REWARD = -0.1
BOX_REWARD = 1.0
SOLVED_REWARD = 10.0

_pytree = functools.partial(
    jax.tree_util.register_dataclass, data_fields=("levels",), meta_fields=("time_limit",)
)


def planes(cells: UInt8[Array, " n"], kinds: int, shape: tuple[int, int]) -> UInt8[Array, "h w kinds"]:
    """One plane of zeros and ones for each kind of cell: its bit in the sum."""

    def spread(four: UInt8[Array, " n"]) -> UInt8[Array, "n 4"]:
        # Four bits become four bytes by one multiplication, which is far faster than four shifts: the
        # factor has a one at bits 0, 7, 14 and 21, so that bit k of the cell arrives at bit 8k.
        bytes_of_bits = (four.astype(jnp.uint32) * 0x204081) & 0x01010101
        return jax.lax.bitcast_convert_type(bytes_of_bits, jnp.uint8)

    spreads = [spread(cells & 15), spread(cells >> 4)] if kinds > 4 else [spread(cells & 15)]
    # Computed as one long row, then reshaped, which costs nothing: ten cells are too few to vectorise.
    row = jax.lax.optimization_barrier(jnp.concatenate(spreads, axis=-1)[:, :kinds])
    return row.reshape(*shape, kinds)


def _drawn(levels: LevelSource, key: Array) -> Int[Array, ""]:
    return jax.random.randint(key, (), 0, levels.count)


@_pytree
@dataclass(frozen=True)
class Boxoban:
    """Push every box onto a target. Actions are `Direction`s.

    Each step costs 0.1; a box that enters a target gives 1, one that leaves it costs 1, and the last one
    to enter gives 10 more. Planes: wall, box, target, player.
    """

    levels: LevelSource
    time_limit: int = BOXOBAN.time_limit
    observation_bounds: ClassVar = (0, 1)

    @property
    def num_actions(self) -> int:
        """Up, right, down, left."""
        return 4

    def reset(self, key: Array) -> BoxobanState:
        """A level drawn uniformly."""
        return self.start(_drawn(self.levels, key))

    def start(self, level: Int[Array, ""]) -> BoxobanState:
        """A chosen level."""
        return boxoban_jax.start(self.levels.cells(level))

    def step(self, state: BoxobanState, action: Int[Array, ""]) -> tuple[BoxobanState, Outcome]:
        """Walk, and push what stands in the way."""
        after = boxoban_jax.move(state, action, self.levels.shape)
        solved = after.unplaced == 0
        placed = (state.unplaced - after.unplaced).astype(jnp.float32)
        reward = STEP_REWARD + BOX_REWARD * placed + SOLVED_REWARD * solved
        return after, Outcome(reward, solved, solved)

    def observe(self, state: BoxobanState) -> UInt8[Array, "h w 4"]:
        """Planes: wall, box, target, player."""
        return planes(state.cells, len(BoxobanCell), self.levels.shape)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("levels",), meta_fields=("time_limit", "radius")
)
@dataclass(frozen=True)
class WindowedBoxoban(Boxoban):
    """Boxoban of which the player sees a square around itself; the planes of all other cells are zero."""

    radius: int = 1
    """Cells that it sees in each direction."""

    def observe(self, state: BoxobanState) -> UInt8[Array, "h w 4"]:
        """Planes: wall, box, target, player."""
        height, width = self.levels.shape
        row, column = jnp.divmod(state.player, width)
        near = jnp.maximum(jnp.abs(jnp.arange(height) - row)[:, None], jnp.abs(jnp.arange(width) - column))
        return super().observe(state) * (near <= self.radius)[..., None]


@_pytree
@dataclass(frozen=True)
class RushHour:
    """Clear the red car's way to the right border. Action `2 x cell + forward` slides what is on that cell.

    Each step costs 0.1 and solving gives 10. Besides, a step earns what it adds to the potential: minus the
    occupied cells ahead of the red car, minus its distance to the exit. Planes: occupied, red, wall,
    horizontal, vertical, link right, link down.
    """

    levels: LevelSource
    time_limit: int = RUSH_HOUR.time_limit
    observation_bounds: ClassVar = (0, 1)

    @property
    def num_actions(self) -> int:
        """Two for each cell."""
        return 2 * self.levels.shape[0] * self.levels.shape[1]

    def reset(self, key: Array) -> RushHourState:
        """A level drawn uniformly."""
        return self.start(_drawn(self.levels, key))

    def start(self, level: Int[Array, ""]) -> RushHourState:
        """A chosen level."""
        return rush_hour_jax.start(self.levels.cells(level))

    def step(self, state: RushHourState, action: Int[Array, ""]) -> tuple[RushHourState, Outcome]:
        """Slide one vehicle by one cell."""
        after = rush_hour_jax.slide(state, action, self.levels.shape)
        solved = after.distance_to_exit == 0
        now, before = (board.potential.astype(jnp.float32) for board in (after, state))
        return after, Outcome(STEP_REWARD + now - before + SOLVED_REWARD * solved, solved, solved)

    def observe(self, state: RushHourState) -> UInt8[Array, "h w 7"]:
        """Planes: occupied, red, wall, horizontal, vertical, link right, link down."""
        return planes(state.cells, len(RushHourCell), self.levels.shape)
