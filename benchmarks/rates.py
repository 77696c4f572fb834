"""How fast this machine multiplies, which bounds everything else."""

from collections.abc import Callable
from typing import Any


def products() -> tuple[Callable[[], Any], float]:
    """Products of tokens by the weights of a layer, one after the other: to be timed, and their FLOPs."""
    import jax
    import jax.numpy as jnp

    a, b, count = jnp.ones((512, 256)), jnp.ones((256, 256)), 64
    many = jax.jit(lambda a, b: jax.lax.fori_loop(0, count, lambda _, s: s @ b, a))
    return lambda: many(a, b), 2.0 * count * a.size * b.shape[1]


def product_rate() -> float:
    """FLOPs a second of matrix products, on one device."""
    from looped_actor.models.cost import fastest

    work, flops = products()
    return flops / fastest(work)
