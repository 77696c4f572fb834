"""The rules of Boxoban in JAX: one board per call, `vmap` for many."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8
from numpy.typing import ArrayLike

from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.grid_jax import toggle_bits


class BoxobanState(NamedTuple):
    """A board, with facts that would be slow to derive from it at every step."""

    cells: UInt8[Array, "*b n"]
    """Sums of `Cell`, row by row."""
    player: Int[Array, "*b"]
    """Index of the player's cell."""
    unplaced: Int[Array, "*b"]
    """Boxes that are not on a target; the level is solved at 0."""


def initial_state(cells: UInt8[Array, "h w"]) -> BoxobanState:
    """Return the state of a board of `Cell` sums."""
    player = jnp.argmax((cells & Cell.PLAYER).reshape(-1)).astype(jnp.int32)
    unplaced = ((cells & (Cell.BOX | Cell.TARGET)) == Cell.BOX).sum(dtype=jnp.int32)
    return BoxobanState(cells.reshape(-1), player, unplaced)


def move(state: BoxobanState, direction: ArrayLike, shape: tuple[int, int]) -> BoxobanState:
    """Walk one cell, pushing the box there; if that is impossible, return the same state.

    `shape` is the board's height and width.
    """
    height, width = shape
    cells = state.cells
    direction = jnp.asarray(direction)
    # Arithmetic, because looking four numbers up in a table is slower.
    rows = (direction == Direction.DOWN).astype(jnp.int32) - (direction == Direction.UP)
    columns = (direction == Direction.RIGHT).astype(jnp.int32) - (direction == Direction.LEFT)
    row, column = state.player // width, state.player % width

    def look(steps: int) -> tuple[Array, Array]:
        """Return the index and the content of the cell some steps away; everything outside is wall."""
        r, c = row + steps * rows, column + steps * columns
        inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
        index = jnp.clip(r, 0, height - 1) * width + jnp.clip(c, 0, width - 1)
        return index, jnp.where(inside, cells[index], jnp.uint8(Cell.WALL))

    ahead, content = look(1)
    beyond, content_beyond = look(2)
    pushes = (content & Cell.BOX) != 0
    blocked_box = pushes & ((content_beyond & (Cell.WALL | Cell.BOX)) != 0)
    walks = ((content & Cell.WALL) == 0) & ~blocked_box
    pushes &= walks

    player, box = jnp.where(walks, Cell.PLAYER, 0), jnp.where(pushes, Cell.BOX, 0)
    cells = toggle_bits(cells, (state.player, player), (ahead, player | box), (beyond, box))

    left_target = (content & Cell.TARGET) != 0
    entered_target = (content_beyond & Cell.TARGET) != 0
    gained = jnp.where(pushes, left_target.astype(jnp.int32) - entered_target.astype(jnp.int32), 0)
    return BoxobanState(cells, jnp.where(walks, ahead, state.player), state.unplaced + gained)
