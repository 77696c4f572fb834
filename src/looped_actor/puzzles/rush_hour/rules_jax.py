"""The rules of Rush Hour in JAX: one board per call, `vmap` for many."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8
from numpy.typing import ArrayLike

from looped_actor.puzzles.grid_jax import toggle_bits
from looped_actor.puzzles.rush_hour.rules import Cell


class RushHourState(NamedTuple):
    """A board, with facts that would be slow to derive from it at every step."""

    cells: UInt8[Array, "*b n"]
    """Sums of `Cell`, row by row."""
    red_end: Int[Array, "*b"]
    """Index of the red car's last cell."""
    blockers: Int[Array, "*b"]
    """Occupied cells between the red car and the right border."""
    distance_to_exit: Int[Array, "*b"]
    """Cells between the red car and the right border; the level is solved at 0."""

    @property
    def potential(self) -> Int[Array, "*b"]:
        """Minus the blockers, minus the distance to the exit; rewards include its change."""
        return -(self.blockers + self.distance_to_exit)


def initial_state(cells: UInt8[Array, "h w"]) -> RushHourState:
    """Return the state of a board of `Cell` sums."""
    red_end = jnp.argmax((cells & (Cell.RED | Cell.LINK_RIGHT)) == Cell.RED).astype(jnp.int32)
    return _make_state(cells.reshape(-1), red_end, cells.shape[1])


def slide(state: RushHourState, action: ArrayLike, shape: tuple[int, int]) -> RushHourState:
    """Slide the vehicle on a cell by one; if that is impossible, return the same state.

    Action `2 x cell` slides left or up, `2 x cell + 1` right or down, cells counted row by row. `shape` is
    the board's height and width.
    """
    height, width = shape
    cells = state.cells
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

    def index(offset: Array) -> Array:
        return origin + offset * stride

    link = jnp.where(moves, link, jnp.uint8(0))
    whole = jnp.where(moves, content, jnp.uint8(0))
    linked_kind, last_kind = whole | link, whole & ~link
    removed, added = jnp.where(forward, linked_kind, last_kind), jnp.where(forward, last_kind, linked_kind)
    cells = toggle_bits(cells, (index(left), removed), (index(turned), link), (index(entered), added))

    step = jnp.where(moves & ((content & Cell.RED) != 0), jnp.where(forward, 1, -1), 0)
    return _make_state(cells, state.red_end + step, width)


def _make_state(cells: UInt8[Array, " n"], red_end: Int[Array, ""], width: int) -> RushHourState:
    distance = width - 1 - red_end % width
    index = jnp.arange(cells.size, dtype=jnp.int32)
    ahead = (index > red_end) & (index <= red_end + distance)
    return RushHourState(
        cells=cells,
        red_end=red_end,
        blockers=jnp.sum(ahead & (cells != 0), dtype=jnp.int32),
        distance_to_exit=distance,
    )
