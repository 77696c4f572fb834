"""Between a stack of blocks and one block that is shared: two learners, to tell what of sharing costs.

Part F of results/depth_study/plan.md; `benchmarks/depth_study.py` runs it. Both train Iso-FLOPs, and
differ from it in how its blocks begin and how they move. Neither is part of the package: as policies they
are an ordinary stack.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from looped_actor.algorithms import clipped_adam, online
from looped_actor.models import Stack

Change = Callable[[optax.GradientTransformation], optax.GradientTransformation]


def apart(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """Blocks begin alike and each goes its own way: what is left of the difference is freedom."""
    return optimiser


def together(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """Blocks begin alike and stay so: a shared block, but Adam sees the gradient of each loop alone.

    All move by the mean of their updates, made as large as these are apart, leaf by leaf. So no loop is
    drowned by another with larger gradients, and a step is no smaller than in a stack.
    """

    def as_one(leaf: jax.Array) -> jax.Array:
        mean = leaf.mean(axis=0, keepdims=True)
        size, apart = (jnp.sqrt(jnp.mean(one**2)) for one in (mean, leaf))
        return jnp.broadcast_to(mean * apart / jnp.maximum(size, 1e-12), leaf.shape)

    def update(gradient: Any, state: Any, parameters: Any = None) -> tuple[Any, Any]:
        change, state = optimiser.update(gradient, state, parameters)
        moved = jax.tree_util.tree_map_with_path(
            lambda path, leaf: as_one(leaf) if _is_of_a_core(path) else leaf, change
        )
        return moved, state

    return optax.GradientTransformation(optimiser.init, update)


def _is_of_a_core(path: tuple) -> bool:
    return any(getattr(key, "key", None) == "cores" for key in path)


LEARNERS: dict[str, Change] = {"apart": apart, "together": together}


@contextmanager
def blocks_that_begin_alike(how: str) -> Iterator[None]:
    """Stacks that are made, and trained, inside are of this kind."""
    change, build = LEARNERS[how], Stack.__init__

    def begin(self: Stack, *given: Any, **options: Any) -> None:
        build(self, *given, **options)
        first = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), nnx.state(self.cores))
        nnx.update(self.cores, first)

    def optimiser(*given: Any) -> optax.GradientTransformation:
        return change(clipped_adam(*given))

    with mock.patch.object(Stack, "__init__", begin), mock.patch.object(online, "clipped_adam", optimiser):
        yield
