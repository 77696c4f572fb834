"""Closures as pure functions.

A step closes over its parameters because that reads best: `lambda z, x: core(z, x)`. A custom VJP
allows no closure over traced values, so executions first turn a closure into a function that takes
them as arguments. `jax.closure_convert` does so for floating-point values only; a step that closes
over a traced integer (a lookup index, a random key) would fail inside a chunked loop.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import core
from jaxtyping import Array


class Hoisted(NamedTuple):
    """`function(*arguments)` as `pure(values, *arguments)`, for arguments of the same shapes."""

    pure: Callable
    values: list[Array]


def hoist(function: Callable, *arguments) -> Hoisted:
    """Separate a function from the traced values it closes over."""
    structure = None

    def flat(*arguments):
        nonlocal structure
        leaves, structure = jax.tree.flatten(function(*arguments))
        return leaves

    closed = jax.make_jaxpr(flat)(*arguments)
    traced = [isinstance(value, core.Tracer) for value in closed.consts]

    def pure(values: list[Array], *arguments):
        given = iter(values)
        constants = [
            next(given) if hoisted else value for value, hoisted in zip(closed.consts, traced, strict=True)
        ]
        leaves = core.eval_jaxpr(closed.jaxpr, constants, *jax.tree.leaves(arguments))
        assert structure is not None
        return jax.tree.unflatten(structure, leaves)

    values = [value for value, hoisted in zip(closed.consts, traced, strict=True) if hoisted]
    return Hoisted(pure, values)
