"""What a net costs: parameters, floating-point operations, memory, time.

Counted where it can be, planned by the compiler without running, or timed on a small piece.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Real

from looped_actor.loop import Execution, FixedLoops, FrozenScan, MeanGradient, Packed, mean_gradient
from looped_actor.models.actor import PolicyModel, PolicyOutput

PASSES_OF_AN_UPDATE = 4
"""In forward passes: forward, computed again when going back, and back, which counts twice."""
MOST_EXAMPLES = 64
"""Examples of the piece that is timed."""
_TURNS = 3


def count_parameters(model: PolicyModel | nnx.Module) -> int:
    """Trained scalars. The fixed initial latent is not one."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def token_count(model: PolicyModel, observation: Any) -> int | None:
    """Tokens that a policy makes of an observation; None where it has none, as DRC and the MLP."""
    tokens = getattr(model, "tokens", None)
    return None if tokens is None else tokens(observation)


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
      execution: how its loops run. Default: `Packed()`.
    """
    _, trained, fixed = nnx.split(model, nnx.Param, ...)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (trained, fixed, observation))
    gradient = jax.jit(surrogate_gradient(model, execution or Packed()))
    plan = gradient.lower(*shapes).compile().memory_analysis()
    if plan is None:
        raise RuntimeError(f"the {jax.default_backend()} backend does not tell how much memory it plans")
    return UpdateMemory(plan.argument_size_in_bytes, plan.temp_size_in_bytes)


def compiled_flops(model: PolicyModel, observation: Any) -> float:
    """What XLA's cost analysis counts for one decision, the looped arm's at one loop.

    It counts what is not linear algebra too, so it exceeds `model.flops` by a few percent at most. A loop
    whose end depends on the data is counted once, so this cannot be asked for more loops.
    """
    definition, state = nnx.split(model)

    def decide(state: nnx.State, observation: Any) -> Any:
        once = {"halting": FixedLoops(1), "execution": FrozenScan()}
        return nnx.merge(definition, state)(observation, **once)[:-1]  # without the way it was reached

    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (state, observation))
    counted = jax.jit(decide).lower(*shapes).cost_analysis()
    assert counted is not None
    return counted["flops"]


class LoopCount(NamedTuple):
    """Loops of each example, or their mean."""

    asked: Real[Array, "*b"]
    executed: Real[Array, "*b"]
    """By the hardware, spread evenly over the examples that were computed together."""


def surrogate_gradient(model: PolicyModel, execution: Execution) -> Callable[..., MeanGradient]:
    """The gradient of `surrogate_loss`, as a learner would take it.

    A function of the trained parameters, the fixed ones, the observations, and a guess of their loops.
    """
    definition = nnx.split(model)[0]

    def gradient(
        trained: nnx.State, fixed: nnx.State, observation: Any, expected_loops: Array | None = None
    ) -> MeanGradient:
        def policy(trained: nnx.State, execution: Execution) -> Callable:
            return lambda observation: nnx.merge(definition, trained, fixed)(observation, execution=execution)

        def loss(decide: Callable, observation: Any) -> tuple[Array, LoopCount]:
            output = decide(observation)
            asked, executed = output.loop.loops, output.loop.weighted_loop_cost
            return surrogate_loss(output), LoopCount(asked, jnp.full(asked.shape, executed / len(asked)))

        return mean_gradient(loss, policy, trained, observation, execution, expected_loops=expected_loops)

    return gradient


def surrogate_loss(output: PolicyOutput) -> Float[Array, " b"]:
    """A stand-in for a learner's loss of each example: it pulls on every output that a learner does."""
    policy = output.distribution
    action = policy.mode()
    if jnp.issubdtype(action.dtype, jnp.floating):
        action += 1.0  # a density is flat at its mode
    loss = policy.log_prob(jax.lax.stop_gradient(action)) - 0.01 * policy.entropy()
    if output.value is not None:
        loss += 0.25 * output.value**2
    return loss


def fastest(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few turns, after one that compiles."""
    jax.block_until_ready(work())
    turns = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        jax.block_until_ready(work())
        turns.append(time.perf_counter() - start)
    return min(turns)
