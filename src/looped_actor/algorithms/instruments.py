"""What gradients are like inside a core: by all of its loops together, and by each alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.algorithms.collectives import average
from looped_actor.algorithms.deciding import Weights, deciding
from looped_actor.models import LoopedTrunk, Stack, Unrolled


class CoreGradient(NamedTuple):
    """Norms of the gradient by the weights of a core, or of the cores of a stack."""

    core_gradient: Float[Array, ""]
    """As they are trained: by the core that all loops share, or by all cores of a stack."""
    core_gradient_apart: Float[Array, ""]
    """As if every loop had a core of its own. Of a stack, the same."""
    core_gradient_of_loop: Float[Array, " l"]
    """By the core of each loop alone."""


def core_gradient(
    definition: nnx.GraphDef, weights: Weights, loss: Callable, examples: Any, axis: str | None = None
) -> CoreGradient | None:
    """The gradient of a mean loss, before it is clipped; None where a net has neither loops nor a stack.

    Args:
      definition: the net without its weights.
      weights: they, and the statistics that scale observations.
      loss: takes a policy and examples, returns the loss of each, and whatever else.
      examples: a batch of them.
      axis: the mesh axis over which the batch is spread, inside `shard_map`.
    """
    net: Any = nnx.merge(definition, weights.parameters, weights.fixed)
    trunk = getattr(net, "trunk", None)
    if isinstance(trunk, LoopedTrunk):
        net.trunk = Unrolled(trunk)
    elif not isinstance(trunk, Stack):
        return None
    unrolled, parameters, fixed = nnx.split(net, nnx.Param, ...)

    def mean_loss(parameters: Any) -> Float[Array, ""]:
        decide = deciding(unrolled, Weights(parameters, fixed, weights.statistics))
        return loss(decide, examples)[0].mean()

    cores = average(jax.grad(mean_loss)(parameters)["trunk"]["cores"], axis)
    apart = optax.tree.norm(cores)
    together = optax.tree.norm(jax.tree.map(lambda leaf: leaf.sum(axis=0), cores))
    of_loop = jax.vmap(optax.tree.norm)(cores)
    return CoreGradient(together if isinstance(trunk, LoopedTrunk) else apart, apart, of_loop)
