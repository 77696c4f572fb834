"""Rate of matrix products on this machine, an upper bound of everything else."""

from collections.abc import Callable
from typing import Any


def matrix_products() -> tuple[Callable[[], Any], float]:
    """Return a function that multiplies tokens by the weights of a layer many times, and its FLOPs."""
    import jax
    import jax.numpy as jnp

    a, b, count = jnp.ones((512, 256)), jnp.ones((256, 256)), 64
    multiply = jax.jit(lambda a, b: jax.lax.fori_loop(0, count, lambda _, s: s @ b, a))
    return lambda: multiply(a, b), 2.0 * count * a.size * b.shape[1]


def product_rate() -> float:
    """Return the FLOP/s of matrix products, on one device."""
    from looped_actor.planning.timing import fastest

    multiply, flops = matrix_products()
    return flops / fastest(multiply)
