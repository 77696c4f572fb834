"""What a policy costs: parameters, floating-point operations, and memory."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.loop import Execution
from looped_actor.models import ActorCriticOutput, ActorOutput, PolicyModel


def count_parameters(model: PolicyModel | nnx.Module) -> int:
    """Trained scalars. The fixed initial latent is not one."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


class UpdateMemory(NamedTuple):
    """Bytes that one gradient needs, as XLA plans them for this backend."""

    arguments: int
    """Parameters and observations."""
    activations: int
    """Everything that exists only during the update."""


def update_memory(model: PolicyModel, observation: Any, execution: Execution | None = None) -> UpdateMemory:
    """Plan, without running it, the gradient of one minibatch.

    Args:
      model: the policy; abstract (from `nnx.eval_shape`) or real.
      observation: the minibatch, arrays or their shapes.
      execution: how a loop runs.
    """
    definition, trained, fixed = nnx.split(model, nnx.Param, ...)

    def loss(trained: nnx.State, fixed: nnx.State, observation: Any) -> Float[Array, ""]:
        return surrogate_loss(nnx.merge(definition, trained, fixed)(observation, execution=execution))

    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (trained, fixed, observation))
    plan = jax.jit(jax.grad(loss)).lower(*shapes).compile().memory_analysis()
    if plan is None:
        raise RuntimeError(f"the {jax.default_backend()} backend does not tell how much memory it plans")
    return UpdateMemory(plan.argument_size_in_bytes, plan.temp_size_in_bytes)


def surrogate_loss(output: ActorOutput | ActorCriticOutput) -> Float[Array, ""]:
    """A stand-in for a learner's loss, for measuring: it pulls on every output that a learner does."""
    policy = output.distribution
    loss = jnp.mean(policy.log_prob(jax.lax.stop_gradient(policy.mode()))) - 0.01 * jnp.mean(policy.entropy())
    if isinstance(output, ActorCriticOutput):
        loss += 0.25 * jnp.mean(output.value**2)
    return loss
