"""The rules of Boxoban for JAX: one board per call, `vmap` for many.

Cells are one long row: XLA vectorises its inner loop, and ten cells are too few for that.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8
from numpy.typing import ArrayLike

from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.toggle import toggled


class BoxobanState(NamedTuple):
    """A board, and what would be slow to read off it at every step."""

    cells: UInt8[Array, "*b n"]
    """Sums of `Cell`, row by row."""
    player: Int[Array, "*b"]
    """The player's cell, counted row by row."""
    unplaced: Int[Array, "*b"]
    """Boxes that are not on a target; none means solved."""


def start(cells: UInt8[Array, "h w"]) -> BoxobanState:
    """The state of a board of `Cell` sums."""
    player = jnp.argmax((cells & Cell.PLAYER).reshape(-1)).astype(jnp.int32)
    unplaced = ((cells & (Cell.BOX | Cell.TARGET)) == Cell.BOX).sum(dtype=jnp.int32)
    return BoxobanState(cells.reshape(-1), player, unplaced)


def move(state: BoxobanState, direction: ArrayLike, shape: tuple[int, int]) -> BoxobanState:
    """Walk one cell, pushing the box that stands there; where that is impossible, stay.

    `shape` is the board's rows and columns.
    """
    height, width = shape
    cells = state.cells
    direction = jnp.asarray(direction)
    # Arithmetic, because looking four numbers up in a table is slower.
    rows = (direction == Direction.DOWN).astype(jnp.int32) - (direction == Direction.UP)
    columns = (direction == Direction.RIGHT).astype(jnp.int32) - (direction == Direction.LEFT)
    row, column = state.player // width, state.player % width

    def look(steps: int) -> tuple[Array, Array]:
        """The cell some steps away: its index, and its content, where outside is wall."""
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
    cells = toggled(cells, (state.player, player), (ahead, player | box), (beyond, box))

    left_target = (content & Cell.TARGET) != 0
    entered_target = (content_beyond & Cell.TARGET) != 0
    gained = jnp.where(pushes, left_target.astype(jnp.int32) - entered_target.astype(jnp.int32), 0)
    return BoxobanState(cells, jnp.where(walks, ahead, state.player), state.unplaced + gained)
