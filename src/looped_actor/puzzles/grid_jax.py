"""Boards in JAX: change a few cells, and turn cells into observation planes.

A board is one row of cells, line by line: XLA vectorises the innermost axis, and the lines of a board are too
short for that.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8


def toggle_bits(cells: UInt8[Array, " n"], *changes: tuple[Int[Array, ""], Array]) -> UInt8[Array, " n"]:
    """Return the cells with some bits flipped. A change is the index of a cell and its bits to flip.

    Comparing every index is one vectorised pass; a scatter is serial on CPUs. Small integers, because a
    vector register holds more of them. The barrier keeps XLA from computing the changes for every cell.
    """
    small = jnp.uint8 if cells.size <= 256 else jnp.uint16
    indices = jnp.arange(cells.size, dtype=small)
    ready = jax.lax.optimization_barrier(
        [(index.astype(small), bits.astype(jnp.uint8)) for index, bits in changes]
    )
    for index, bits in ready:
        cells ^= jnp.where(indices == index, bits, jnp.uint8(0))
    return cells


def to_planes(cells: UInt8[Array, " n"], kinds: int, shape: tuple[int, int]) -> UInt8[Array, "h w kinds"]:
    """Return one plane of zeros and ones for each bit of the cells."""

    def spread(four_bits: UInt8[Array, " n"]) -> UInt8[Array, "n 4"]:
        # Four bits become four bytes by one multiplication, which is far faster than four shifts: the
        # factor has a one at bits 0, 7, 14 and 21, so that bit k of the cell arrives at bit 8k.
        four_bytes = (four_bits.astype(jnp.uint32) * 0x204081) & 0x01010101
        return jax.lax.bitcast_convert_type(four_bytes, jnp.uint8)

    spreads = [spread(cells & 15), spread(cells >> 4)] if kinds > 4 else [spread(cells & 15)]
    # Computed as one long row, then reshaped, which costs nothing.
    row = jax.lax.optimization_barrier(jnp.concatenate(spreads, axis=-1)[:, :kinds])
    return row.reshape(*shape, kinds)
