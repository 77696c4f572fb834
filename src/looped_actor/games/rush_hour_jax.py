"""The rules of Rush Hour for JAX: one board per call, `vmap` for many."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8
from numpy.typing import ArrayLike

from looped_actor.games.rush_hour import Cell


class RushHourState(NamedTuple):
    """A board, and what would be slow to read off it at every step."""

    cells: UInt8[Array, "*b h w"]
    """Sums of `Cell`."""
    red_end: Int[Array, "*b"]
    """The last cell of the red car, counted row by row."""
    blockers: Int[Array, "*b"]
    """Occupied cells between the red car and the right border."""

    @property
    def distance_to_exit(self) -> Int[Array, "*b"]:
        """Cells between the red car and the right border; none means solved."""
        width = self.cells.shape[-1]
        return width - 1 - self.red_end % width


def start(cells: UInt8[Array, "h w"]) -> RushHourState:
    """The state of a board of `Cell` sums."""
    red_end = jnp.argmax((cells & (Cell.RED | Cell.LINK_RIGHT)) == Cell.RED).astype(jnp.int32)
    return RushHourState(cells, red_end, _blockers(cells, red_end))


def slide(state: RushHourState, action: ArrayLike) -> RushHourState:
    """Slide the vehicle on a cell by one; where that is impossible, stay.

    Action `2 x cell` slides left or up, `2 x cell + 1` right or down, cells counted row by row.
    """
    height, width = state.cells.shape
    cells = state.cells.reshape(-1)
    cell, forward = jnp.asarray(action) // 2, jnp.asarray(action) % 2 == 1
    content = cells[cell]
    horizontal = (content & Cell.HORIZONTAL) != 0
    is_vehicle = (content & (Cell.HORIZONTAL | Cell.VERTICAL)) != 0
    row, column = cell // width, cell % width

    # The line that the vehicle moves on: its row or column, and wall behind the border.
    stride = jnp.where(horizontal, 1, width)
    origin = jnp.where(horizontal, row * width, column)
    position, length = jnp.where(horizontal, column, row), jnp.where(horizontal, width, height)
    offset = jnp.arange(max(height, width), dtype=jnp.int32)
    on_board = offset < length
    line = jnp.where(on_board, cells[jnp.where(on_board, origin + offset * stride, 0)], Cell.WALL)

    link = jnp.where(horizontal, Cell.LINK_RIGHT, Cell.LINK_DOWN).astype(jnp.uint8)
    linked = (line & link) != 0
    last = jnp.min(jnp.where(~linked & (offset >= position), offset, length - 1))
    first = jnp.max(jnp.where(~linked & (offset < position), offset + 1, 0))

    entered = jnp.where(forward, last + 1, first - 1)
    in_line = (entered >= 0) & (entered < length)
    free = jnp.sum(jnp.where(offset == entered, line, 0).astype(jnp.int32)) == 0
    moves = is_vehicle & in_line & free

    # Three cells change: the one entered, the one left, and the one that becomes linked or the last.
    left = jnp.where(forward, first, last)
    turned = jnp.where(forward, last, last - 1)

    def at(offset: Array) -> Array:
        return origin + offset * stride

    linked_kind, last_kind = content | link, content & ~link
    index = jnp.arange(height * width, dtype=jnp.int32)
    moved = jnp.where(index == at(left), jnp.uint8(0), cells)
    moved = jnp.where(index == at(turned), jnp.where(forward, linked_kind, last_kind), moved)
    moved = jnp.where(index == at(entered), jnp.where(forward, last_kind, linked_kind), moved)
    cells = jnp.where(moves, moved, cells).reshape(height, width)

    step = jnp.where(moves & ((content & Cell.RED) != 0), jnp.where(forward, 1, -1), 0)
    red_end = state.red_end + step
    return RushHourState(cells, red_end, _blockers(cells, red_end))


def _blockers(cells: UInt8[Array, "h w"], red_end: Int[Array, ""]) -> Int[Array, ""]:
    width = cells.shape[-1]
    index = jnp.arange(cells.size, dtype=jnp.int32)
    ahead = (index > red_end) & (index // width == red_end // width)
    return jnp.sum(ahead & (cells.reshape(-1) != 0), dtype=jnp.int32)
