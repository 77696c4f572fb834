"""Sums and means over the devices that share a batch, and what to do with numbers that are none."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def total(value: Array, axis: str | None) -> Array:
    """A sum over the devices of a mesh axis, or over the one there is."""
    return value if axis is None else jax.lax.psum(value, axis)


def average(tree: PyTree, axis: str | None) -> Any:
    """A mean over the devices of a mesh axis, of every array of a pytree."""
    return tree if axis is None else jax.lax.pmean(tree, axis)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every number of a pytree is finite."""
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]))


def keep_if(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> Any:
    """One of two pytrees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
