"""Gradients by the weights of a core: by all loops together, and by each loop alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.algorithms import Weights, make_policy
from looped_actor.loop import Carry, LoopResult
from looped_actor.models import LoopedTrunk, Stack, Tokens
from looped_actor.models.looped import ReadLatent
from looped_actor.models.stacks import apply_cores
from looped_actor.training.sharding import mean_over_devices


class Unrolled(nnx.Module):
    """A looped trunk in which every loop has a copy of the core.

    It computes the same latents, and has `cores` to differentiate by one loop at a time.
    """

    carry_latent = False

    def __init__(self, trunk: LoopedTrunk):
        self.looped, self.width, self.halting = trunk, trunk.width, trunk.halting
        definition, parameters = nnx.split(trunk.core)
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.max_loops, *leaf.shape)), parameters)
        self.cores = nnx.merge(definition, copies)

    @property
    def max_loops(self) -> int:
        return self.looped.max_loops

    def __call__(
        self, tokens: Tokens, readout: ReadLatent, *, carry: Carry | None = None, **options: Any
    ) -> LoopResult:
        """Loop as the trunk does, and compute the same loops once more with the copies."""
        result = jax.lax.stop_gradient(self.looped(tokens, readout, carry=carry, **options))
        start = self.looped.initial_latent(tokens)
        start = start if carry is None else carry.initial_latent(start)
        return result._replace(latent=apply_cores(self.cores, start, tokens, loops=result.loops)[0])


class CoreGradient(NamedTuple):
    """Norms of the gradient by the weights of a core, or of the cores of a stack."""

    core_gradient: Float[Array, ""]
    """By the weights as they are trained: those that all loops share, or those of all cores of a stack."""
    core_gradient_apart: Float[Array, ""]
    """As if every loop had a core of its own. For a stack, the same."""
    core_gradient_of_loop: Float[Array, " l"]
    """By the core of each loop alone."""


def core_gradient(
    definition: nnx.GraphDef, weights: Weights, loss: Callable, examples: Any, axis: str | None = None
) -> CoreGradient | None:
    """Return the gradient of a mean loss before it is clipped; None for nets with neither loops nor a stack.

    Args:
      definition: the net without its weights.
      weights: its weights.
      loss: takes a policy and examples, and returns the loss of each, and metrics.
      examples: a batch.
      axis: the mesh axis over which the batch is sharded, inside `shard_map`.
    """
    net: Any = nnx.merge(definition, weights.parameters, weights.fixed)
    trunk = getattr(net, "trunk", None)
    if isinstance(trunk, LoopedTrunk):
        net.trunk = Unrolled(trunk)
    elif not isinstance(trunk, Stack):
        return None
    unrolled, parameters, fixed = nnx.split(net, nnx.Param, ...)

    def mean_loss(parameters: Any) -> Float[Array, ""]:
        policy = make_policy(unrolled, Weights(parameters, fixed, weights.statistics))
        return loss(policy, examples)[0].mean()

    cores = mean_over_devices(jax.grad(mean_loss)(parameters)["trunk"]["cores"], axis)
    apart = optax.tree.norm(cores)
    together = optax.tree.norm(jax.tree.map(lambda leaf: leaf.sum(axis=0), cores))
    of_loop = jax.vmap(optax.tree.norm)(cores)
    return CoreGradient(together if isinstance(trunk, LoopedTrunk) else apart, apart, of_loop)
