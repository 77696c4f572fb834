"""Small functions on pytrees."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Return whether every number of a pytree is finite."""
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]))


def choose(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> Any:
    """Return one of two pytrees of the same structure."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
