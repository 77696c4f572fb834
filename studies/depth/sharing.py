"""Two ways of training between a stack of blocks and one block that is shared.

Part F of results/depth_study/plan.md. Both train Iso-FLOPs from blocks that begin alike. With `apart` each
block is then trained as in an ordinary stack; with `together` all blocks stay alike. Trained policies are
ordinary stacks.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from looped_actor.models import Stack

BLOCKS = ("apart", "together")


def copy_first_core(stack: Stack) -> None:
    """Replace the weights of all blocks of a stack by those of the first."""
    first = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), nnx.state(stack.cores))
    nnx.update(stack.cores, first)


def move_together(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optimizer that gives all blocks of a stack the same update.

    The update is the mean over the blocks, scaled leaf by leaf to the root mean square of the separate
    updates. Adam still normalizes the gradient of each block alone, so a block with large gradients does not
    outweigh the others.
    """

    def mean_of_blocks(leaf: jax.Array) -> jax.Array:
        mean = leaf.mean(axis=0, keepdims=True)
        size, separate = (jnp.sqrt(jnp.mean(updates**2)) for updates in (mean, leaf))
        return jnp.broadcast_to(mean * separate / jnp.maximum(size, 1e-12), leaf.shape)

    def update(gradient: Any, state: Any, parameters: Any = None) -> tuple[Any, Any]:
        change, state = optimizer.update(gradient, state, parameters)
        change = jax.tree_util.tree_map_with_path(
            lambda path, leaf: mean_of_blocks(leaf) if _is_in_a_core(path) else leaf, change
        )
        return change, state

    return optax.GradientTransformation(optimizer.init, update)


def _is_in_a_core(path: tuple) -> bool:
    return any(getattr(key, "key", None) == "cores" for key in path)
