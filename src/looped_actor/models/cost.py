"""Counts for a net: parameters, floating-point operations, and the memory of a gradient."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Real

from looped_actor.loop import (
    Execution,
    FixedLoops,
    FrozenScan,
    HaltingRule,
    MeanGradient,
    Packed,
    mean_gradient,
)
from looped_actor.models.actor import Actor, PolicyModel, PolicyOutput
from looped_actor.models.drc import DRC
from looped_actor.models.fprm import FPRMCore
from looped_actor.models.looped import LoopedTrunk
from looped_actor.models.mlp import MLPActor
from looped_actor.models.stacks import Stack

GRADIENT_PASSES = 4
"""Cost of a gradient in forward passes: forward, forward again while going back, and backward, which counts
twice."""
FLOAT_BYTES = 4


def count_parameters(model: PolicyModel | nnx.Module) -> int:
    """Return the number of trained scalars. The fixed initial latent is not one."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def token_count(model: PolicyModel, observation: Any) -> int | None:
    """Return the number of tokens of an observation; None for DRC and the MLP, which have none."""
    tokens = getattr(model, "tokens", None)
    return None if tokens is None else tokens(observation)


def compiled_flops(model: PolicyModel, observation: Any) -> float:
    """Return the FLOPs of one decision by XLA's cost analysis; those of the looped arm at one loop.

    XLA also counts what is not linear algebra, a few percent more than `model.flops` at most. It counts the
    body of a loop once if its end depends on the data, so this cannot count more loops.
    """
    definition, state = nnx.split(model)

    def decide(state: nnx.State, observation: Any) -> Any:
        options = {"halting": FixedLoops(1), "execution": FrozenScan()}
        return nnx.merge(definition, state)(observation, **options)[:-1]  # without `PolicyOutput.loop`

    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (state, observation))
    analysis = jax.jit(decide).lower(*shapes).cost_analysis()
    assert analysis is not None
    return analysis["flops"]


class UpdateMemory(NamedTuple):
    """Bytes of one gradient, as XLA plans them for this backend."""

    arguments: int
    """Parameters and observations."""
    activations: int
    """Everything that exists only during the update."""


def update_memory(model: PolicyModel, observation: Any, execution: Execution | None = None) -> UpdateMemory:
    """Compile the gradient of one minibatch without running it, and return its memory.

    Args:
      model: the policy; abstract (from `nnx.eval_shape`) or real.
      observation: the minibatch, arrays or their shapes.
      execution: how its loops run. Default: `Packed()`.
    """
    _, trained, fixed = nnx.split(model, nnx.Param, ...)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (trained, fixed, observation))
    gradient = jax.jit(surrogate_gradient(model, execution or Packed()))
    analysis = gradient.lower(*shapes).compile().memory_analysis()
    if analysis is None:
        raise RuntimeError(f"the {jax.default_backend()} backend does not report the memory it plans")
    return UpdateMemory(analysis.argument_size_in_bytes, analysis.temp_size_in_bytes)


def update_memory_formula(
    model: PolicyModel, observation: Any, execution: Execution | None = None
) -> int | None:
    """Return about `update_memory(...).activations`, without compiling; None for nets of another kind.

    A gradient is taken of a group of microbatches at a time. That of a looped net needs, in scalars,

        P + g l (L + 6) + m a

    for P parameters, whose gradients are summed; g examples of a group, whose latents of l scalars are stored
    before each of L loops, with the first and last latent, the input and the cotangents of these three; and m
    examples of a microbatch, for which one loop with activations of a scalars is computed again. A stack
    computes one core again for the whole group: P + g (l (L + 6) + a).

    The constants are fitted to XLA's plans for CPUs. At 35 sizes from micro to paper the formula is within 3%
    of `update_memory` for looped nets and stacks on boards (7% if a minibatch is a single group), within 6%
    for looped nets on vectors and within 7% for DRC. For MLPs, whose gradients take a few megabytes, it is up
    to 60% too large. XLA fuses more for accelerators.

    Args:
      model: the policy; abstract (from `nnx.eval_shape`) or real.
      observation: the minibatch, arrays or their shapes.
      execution: how its loops run. Default: `Packed()`.
    """
    scalars = _count_activations(model, observation)
    if scalars is None:
        return None
    batch = jax.tree.leaves(observation)[0].shape[0]
    group, within = (execution or Packed()).gradient_group(batch, scalars.latent)
    microbatch = (within.microbatch if isinstance(within, Packed) else None) or group
    total = count_parameters(model) + group * scalars.of_group + microbatch * scalars.of_microbatch
    return FLOAT_BYTES * total


class _Activations(NamedTuple):
    """Scalars that the gradient of one example needs."""

    latent: int
    of_group: int
    """For every example of a group."""
    of_microbatch: int = 0
    """For every example of a microbatch, in addition."""


def _count_activations(model: Any, observation: Any) -> _Activations | None:
    if isinstance(model, DRC):
        config, cells = model.config, model.grid[0] * model.grid[1]
        # Of each layer and tick: gates, their inputs, and nine shifted copies of these.
        per_cell = 18 * 4 * config.channels * config.depth * config.ticks
        return _Activations(cells * config.channels, cells * per_cell)
    if isinstance(model, MLPActor):
        hidden = model.features.sizes[1:]
        return _Activations(hidden[-1], 3 * sum(hidden))
    trunk = model.trunk if isinstance(model, Actor) else None
    core = getattr(trunk, "core", None) or getattr(trunk, "cores", None)
    if not isinstance(trunk, LoopedTrunk | Stack) or not isinstance(core, FPRMCore):
        return None
    tokens = model.tokens(observation)
    latent = tokens * core.config.width
    trail, loop = latent * (trunk.max_loops + 6), _count_loop(core, tokens)
    if isinstance(trunk, LoopedTrunk):
        return _Activations(latent, trail, loop)
    return _Activations(latent, trail + loop)


def _count_loop(core: FPRMCore, tokens: int) -> int:
    """Return the scalars that the gradient of one loop of one example needs at the same time."""
    config = core.config
    of_width = 8 * config.layers + (6 if core.convolution is None else 14)
    per_layer = 3 * config.heads * tokens**2 + 5 * tokens * config.hidden_width
    return tokens * config.width * of_width + config.layers * per_layer


class LoopCount(NamedTuple):
    """Loops of each example, or their mean."""

    needed: Real[Array, "*b"]
    executed: Real[Array, "*b"]
    """Loops that the hardware computed, spread evenly over the examples that were computed together."""


def surrogate_gradient(
    model: PolicyModel, execution: Execution, halting: HaltingRule | None = None
) -> Callable[..., MeanGradient]:
    """Return a function that takes the gradient of `surrogate_loss` as a learner would take it.

    Its arguments are the trained parameters, the fixed ones, the observations, a guess of the loops of each
    example, and a cap for each of them. The last two may be left out.

    Args:
      model: the policy.
      execution: how the loops of a minibatch run.
      halting: replaces the halting rule of training.
    """
    definition = nnx.split(model)[0]

    def gradient(
        trained: nnx.State,
        fixed: nnx.State,
        observation: Any,
        expected_loops: Real[Array, " b"] | None = None,
        caps: Int[Array, " b"] | None = None,
    ) -> MeanGradient:
        def make_policy(trained: nnx.State, execution: Execution) -> Callable:
            net = nnx.merge(definition, trained, fixed)
            return lambda observation, caps: net(observation, halting=halting, execution=execution, caps=caps)

        def loss(policy: Callable, examples: tuple[Any, Any]) -> tuple[Array, LoopCount]:
            output = policy(*examples)
            needed, executed = output.loop.loops, output.loop.weighted_loop_cost
            return surrogate_loss(output), LoopCount(needed, jnp.full(needed.shape, executed / len(needed)))

        examples = observation, caps
        return mean_gradient(loss, make_policy, trained, examples, execution, expected_loops=expected_loops)

    return gradient


def surrogate_loss(output: PolicyOutput) -> Float[Array, " b"]:
    """Return a loss of each example that has a gradient by every output by which a learner's loss has one."""
    policy = output.distribution
    action = policy.mode()
    if jnp.issubdtype(action.dtype, jnp.floating):
        action += 1.0  # a density is flat at its mode
    loss = policy.log_prob(jax.lax.stop_gradient(action)) - 0.01 * policy.entropy()
    if output.value is not None:
        loss += 0.25 * output.value**2
    return loss
