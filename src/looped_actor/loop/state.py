"""One loop of a batch: the state it carries, the move from one loop to the next, and its gradient.

Every execution is built from these pieces, so they agree by construction on what a loop *is* and
differ only in which loops they compute, and when.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from looped_actor.loop.halting import HaltingRule, Readout, StopReason

Step = Callable[[Float[Array, "b ..."], PyTree], Float[Array, "b ..."]]


@dataclass(frozen=True)
class LoopProblem:
    """The step to iterate and the rule that stops it: all of a loop but its execution."""

    step: Step
    readout: Readout
    halting: HaltingRule
    cap: Callable[[PyTree], Int[Array, " b"]] | None = None
    """Inputs to the cap of each example, where examples have caps of their own below that of the rule."""


class LoopResult(NamedTuple):
    """The result of every execution, for `b` examples in the order in which they were given."""

    latent: Float[Array, "b ..."]
    """The latent at which each example stopped. The only field that carries gradients."""
    loops: Int[Array, " b"]
    """Number of loops that made that latent."""
    stop: Int[Array, " b"]
    """Reason for which each example stopped: values of `StopReason`."""
    divergence: Float[Array, " b"]
    """The halting rule's divergence at the last loop."""
    executed: Int[Array, ""]
    """Loops that the hardware computed for the whole batch; `loops.sum()` of them were needed."""
    executed_back: Int[Array, ""]
    """Loops that the hardware computed for its gradient, if one is taken."""
    latents: Float[Array, "l b ..."] | None = None
    """On request, the latent after every loop up to the cap, constant once an example stopped."""

    @classmethod
    def of_fixed_depth(
        cls, latent: Float[Array, "b ..."], loops: int, latents: Float[Array, "l b ..."] | None = None
    ) -> "LoopResult":
        """Return the result of a net of fixed depth; `latents` are those after each loop."""
        batch = latent.shape[0]
        executed = jnp.int32(loops * batch)
        return cls(
            latent=latent,
            loops=jnp.full(batch, loops, jnp.int32),
            stop=jnp.full(batch, StopReason.CAP, jnp.int32),
            divergence=jnp.full(batch, jnp.inf, latent.dtype),
            executed=executed,
            executed_back=executed,
            latents=None if latents is None else jax.lax.stop_gradient(latents),
        )

    @property
    def weighted_loop_cost(self) -> Float[Array, ""]:
        """Loops computed for value and gradient, in loops of a forward and backward pass.

        A loop is computed forward; the backward pass computes it once more and then differentiates it, which
        is twice the work.
        """
        return (self.executed + 3 * self.executed_back) / 4


class LoopState(NamedTuple):
    """A batch between two loops."""

    latent: Float[Array, "b ..."]
    observation: PyTree
    loops: Int[Array, " b"]
    stop: Int[Array, " b"]
    divergence: Float[Array, " b"]

    @property
    def running(self) -> Bool[Array, " b"]:
        """Examples that have not stopped."""
        return self.stop == StopReason.RUNNING


def begin(problem: LoopProblem, z0: Float[Array, "b ..."], x: PyTree) -> LoopState:
    """Return the state before the first loop."""
    halting = problem.halting
    observation = halting.observe(z0, x, problem.readout)
    divergence = jax.eval_shape(halting.divergence, observation, observation)
    batch = z0.shape[0]
    return LoopState(
        latent=z0,
        observation=observation,
        loops=jnp.zeros(batch, jnp.int32),
        stop=jnp.full(batch, StopReason.RUNNING, jnp.int32),
        divergence=jnp.full(batch, jnp.inf, divergence.dtype),
    )


def advance(problem: LoopProblem, state: LoopState, x: PyTree) -> LoopState:
    """Compute one more loop for the whole batch and keep it for the examples still running.

    An example whose new latent is not finite, or whose divergence is NaN, stops where it was.
    Halting is not differentiable, and neither is this function: see `pullback`.
    """
    halting = problem.halting
    latent = problem.step(state.latent, x)
    loop = state.loops + 1
    observation = halting.observe(latent, x, problem.readout)
    divergence = halting.divergence(state.observation, observation)

    finite = jnp.isfinite(latent).reshape(latent.shape[0], -1).all(axis=-1) & ~jnp.isnan(divergence)
    accepted = state.running & finite
    cap = halting.max_loops if problem.cap is None else jnp.minimum(problem.cap(x), halting.max_loops)
    outcome = jnp.where(
        halting.converged(loop, divergence),
        StopReason.CONVERGED,
        jnp.where(loop >= cap, StopReason.CAP, StopReason.RUNNING),
    )
    outcome = jnp.where(finite, outcome, StopReason.NON_FINITE).astype(state.stop.dtype)
    return LoopState(
        latent=select(accepted, latent, state.latent),
        observation=select_rows(accepted, observation, state.observation),
        loops=jnp.where(accepted, loop, state.loops),
        stop=jnp.where(state.running, outcome, state.stop),
        divergence=jnp.where(accepted, divergence, state.divergence),
    )


class Pullback(NamedTuple):
    """Cotangents of one loop. Of parameters and inputs, those of the floating-point leaves only."""

    parameters: list[Array]
    latent: Float[Array, "b ..."]
    inputs: list[Float[Array, "b ..."]]


def pullback(
    step: Callable,
    parameters: list[Array],
    latent: Float[Array, "b ..."],
    x: PyTree,
    accepted: Bool[Array, " b"],
    broken: Bool[Array, " b"],
    cotangent: Float[Array, "b ..."],
) -> Pullback:
    """Pull a cotangent back through `where(accepted, step(parameters, latent, x), latent)`.

    The loop is computed again from its latent rather than stored: its intermediate values take many
    times the memory of its latent, and on CPU fetching them was slower than computing them.

    Examples that were not accepted get their cotangent passed through. That alone would not shield
    the others from a broken example (one whose loop was not finite), because the sum over the batch
    in a parameter's gradient would meet 0 x inf = NaN; so broken examples are computed at zero
    instead, where a step is expected to be finite.
    """
    latent = select(~broken, latent, jnp.zeros_like(latent))
    x = jax.tree.map(lambda leaf: select(~broken, leaf, jnp.zeros_like(leaf)), x)
    weights, with_weights = split_floats(parameters)
    inputs, with_inputs = split_floats(x)
    _, vjp = jax.vjp(lambda p, z, f: step(with_weights(p), z, with_inputs(f)), weights, latent, inputs)
    into_weights, into_latent, into_inputs = vjp(select(accepted, cotangent, jnp.zeros_like(cotangent)))
    return Pullback(into_weights, select(accepted, into_latent, cotangent), into_inputs)


def select(chosen: Bool[Array, " b"], yes: Array, no: Array) -> Array:
    """Return the rows of `yes` where chosen, else those of `no`."""
    return jnp.where(chosen.reshape(chosen.shape + (1,) * (yes.ndim - 1)), yes, no)


def select_rows(chosen: Bool[Array, " b"], yes: PyTree, no: PyTree) -> Any:
    """Apply `select` to all arrays of a pytree."""
    return jax.tree.map(lambda yes, no: select(chosen, yes, no), yes, no)


def split_floats(tree: PyTree) -> tuple[list[Array], Callable[[list[Array]], PyTree]]:
    """Return the differentiable leaves of a tree, and a function that puts others in their place."""
    leaves, structure = jax.tree.flatten(tree)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]

    def rebuild(floats: list[Array]) -> PyTree:
        given = iter(floats)
        filled = [next(given) if f else leaf for leaf, f in zip(leaves, is_float, strict=True)]
        return jax.tree.unflatten(structure, filled)

    return [leaf for leaf, f in zip(leaves, is_float, strict=True) if f], rebuild


def cotangent_like(tree: PyTree, floats: list[Array]) -> PyTree:
    """Return the cotangent of a tree from those of its floating-point leaves: None for the others."""
    nothing = jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else None, tree)
    return jax.tree.unflatten(jax.tree.structure(nothing), floats)
