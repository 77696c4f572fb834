"""How both games change a board in JAX."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8


def toggled(cells: UInt8[Array, " n"], *changes: tuple[Int[Array, ""], Array]) -> UInt8[Array, " n"]:
    """The cells with bits turned over: each change is an index and its bits; no bits, no change.

    Comparing every index is one vectorised pass; a scatter is serial on CPUs. Small integers, because a
    vector register holds more of them. The barrier keeps XLA from computing the changes for every cell.
    """
    small = jnp.uint8 if cells.size <= 256 else jnp.uint16
    numbers = jnp.arange(cells.size, dtype=small)
    ready = jax.lax.optimization_barrier(
        [(index.astype(small), bits.astype(jnp.uint8)) for index, bits in changes]
    )
    for index, bits in ready:
        cells ^= jnp.where(numbers == index, bits, jnp.uint8(0))
    return cells
