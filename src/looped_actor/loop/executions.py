"""Executions: how a batch of loops runs on the hardware. The results are the same; the cost is not.

`FrozenScan` computes `max_loops` loops for every example: the oracle. `EarlyExit` stops as soon as
its whole batch has. `Packed` (in `packing.py`) runs `EarlyExit` on chunks of examples of like depth.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Real

from looped_actor.loop.halting import HaltingRule, StopReason
from looped_actor.loop.hoisting import hoist
from looped_actor.loop.state import (
    LoopProblem,
    LoopResult,
    LoopState,
    Pullback,
    advance,
    begin,
    cotangent_like,
    pullback,
    split_floats,
)


@runtime_checkable
class Execution(Protocol):
    """A way to run a batch of loops."""

    def gradient_group(self, batch: int, latent_size: int) -> tuple[int, "Execution"]:
        """Return how many of a batch go forward, through the loss and backward together, and how their loops
        run."""
        return batch, self

    def run(
        self,
        problem: LoopProblem,
        z0: Float[Array, "b ..."],
        x: PyTree,
        expected_loops: Real[Array, " b"] | None,
        record: bool,
    ) -> LoopResult:
        """Run every example to its stop. `expected_loops` may change the cost, never the result."""
        ...


class _Pure(NamedTuple):
    """A problem whose functions take the values that they closed over as their first argument."""

    step: Callable
    readout: Callable
    halting: HaltingRule
    cap: Callable | None

    def bind(self, parameters: "_Parameters") -> LoopProblem:
        return LoopProblem(
            step=partial(self.step, parameters.step),
            readout=partial(self.readout, parameters.readout),
            halting=self.halting,
            cap=self.cap,
        )


class _Parameters(NamedTuple):
    """Values that the functions of a problem closed over."""

    step: list[Array]
    readout: list[Array] | None
    """None in a cotangent: the readout decides when to stop, which is not differentiable."""


def _purify(problem: LoopProblem, z0: Float[Array, "b ..."], x: PyTree) -> tuple[_Pure, _Parameters]:
    step, readout = hoist(problem.step, z0, x), hoist(problem.readout, z0, x)
    pure = _Pure(step.pure, readout.pure, problem.halting, problem.cap)
    return pure, _Parameters(step.values, readout.values)


@dataclass(frozen=True)
class FrozenScan(Execution):
    """The oracle: a scan over `max_loops` loops in which stopped examples are frozen.

    Obvious, slow and always right. Every other execution is tested against it.
    """

    def run(
        self,
        problem: LoopProblem,
        z0: Float[Array, "b ..."],
        x: PyTree,
        expected_loops: Real[Array, " b"] | None = None,
        record: bool = False,
    ) -> LoopResult:
        """See `Execution.run`."""
        pure, parameters = _purify(problem, z0, x)
        # Halting is not differentiable: what decides it sees the values without their gradients.
        watched = pure.bind(jax.lax.stop_gradient(parameters))

        def body(state: LoopState, _: None) -> tuple[LoopState, Array | None]:
            after = advance(watched, *jax.lax.stop_gradient((state, x)))
            accepted = after.loops > state.loops
            broken = after.stop == StopReason.NON_FINITE
            latent = _commit(pure.step, parameters.step, state.latent, x, after.latent, accepted, broken)
            after = after._replace(latent=latent)
            return after, jax.lax.stop_gradient(latent) if record else None

        start = begin(watched, jax.lax.stop_gradient(z0), jax.lax.stop_gradient(x))
        end, latents = jax.lax.scan(body, start._replace(latent=z0), None, length=problem.halting.max_loops)
        executed = jnp.int32(problem.halting.max_loops * z0.shape[0])
        return LoopResult(end.latent, end.loops, end.stop, end.divergence, executed, executed, latents)


def _commit_value(
    step: Callable,
    parameters: list[Array],
    latent: Float[Array, "b ..."],
    x: PyTree,
    after: Float[Array, "b ..."],
    accepted: Bool[Array, " b"],
    broken: Bool[Array, " b"],
) -> Float[Array, "b ..."]:
    """`after`, the outcome of one loop from `latent`, with the gradient of that loop."""
    return after


def _commit_forward(step, parameters, latent, x, after, accepted, broken):
    return after, (parameters, latent, x, accepted, broken)


def _commit_backward(step, saved, cotangent):
    parameters, latent, x, accepted, broken = saved
    back = pullback(step, parameters, latent, x, accepted, broken, cotangent)
    return (
        cotangent_like(parameters, back.parameters),
        back.latent,
        cotangent_like(x, back.inputs),
        None,
        None,
        None,
    )


_commit = jax.custom_vjp(_commit_value, nondiff_argnums=(0,))
_commit.defvjp(_commit_forward, _commit_backward)


@dataclass(frozen=True)
class EarlyExit(Execution):
    """Loop until every example of the batch has stopped, and no further.

    The trip count is dynamic, forward and backward: a batch whose deepest example takes n loops
    costs n loops forward and n backward, whatever the cap. Reverse-mode differentiation walks back
    over the stored latents (a custom VJP, since JAX cannot reverse a `while_loop`); forward mode and
    second derivatives are not offered.
    """

    def run(
        self,
        problem: LoopProblem,
        z0: Float[Array, "b ..."],
        x: PyTree,
        expected_loops: Real[Array, " b"] | None = None,
        record: bool = False,
    ) -> LoopResult:
        """See `Execution.run`."""
        one_chunk = jax.tree.map(lambda leaf: leaf[None], x)
        return jax.tree.map(lambda leaf: leaf[0], early_exit_in_chunks(problem, z0[None], one_chunk, record))


def early_exit_in_chunks(
    problem: LoopProblem, z0: Float[Array, "n c ..."], x: PyTree, record: bool
) -> LoopResult:
    """Run n chunks of c examples one after the other, each until all of its examples have stopped.

    The result has the chunks as a leading axis of every field. This is one custom VJP rather than a
    map over many, so that chunks write their latents to one buffer and sum gradients in one place,
    instead of copying both from chunk to chunk.
    """
    pure, parameters = _purify(problem, z0[0], jax.tree.map(lambda leaf: leaf[0], x))
    result = _early_exit(pure, record, parameters, z0, x)
    return LoopResult(result.latent, *jax.lax.stop_gradient(result[1:]))


class _Trace(NamedTuple):
    """A finished forward pass."""

    result: LoopResult
    trail: Float[Array, "n l c ..."] | None
    """The latent before every loop that was computed; zeros elsewhere."""


def _early_exit_value(
    pure: _Pure, record: bool, parameters: _Parameters, z0: Float[Array, "n c ..."], x: PyTree
) -> LoopResult:
    return _until_all_stopped(pure.bind(parameters), z0, x, record, record).result


def _until_all_stopped(
    problem: LoopProblem, z0: Float[Array, "n c ..."], x: PyTree, store: bool, record: bool
) -> _Trace:
    chunks, size = z0.shape[:2]
    max_loops = problem.halting.max_loops

    def run_chunk(trail: Array | None, inputs: tuple) -> tuple[Array | None, tuple[LoopState, Array]]:
        chunk, z0, x = inputs

        def body(carry: tuple) -> tuple:
            state, trail, loop = carry
            if store:
                trail = trail.at[chunk, loop].set(state.latent)
            return advance(problem, state, x), trail, loop + 1

        start = (begin(problem, z0, x), trail, jnp.int32(0))
        with jax.named_scope(f"forward_{size}"):
            end, trail, loops = jax.lax.while_loop(lambda carry: carry[0].running.any(), body, start)
        return trail, (end, loops)

    trail = jnp.zeros((chunks, max_loops, *z0.shape[1:]), z0.dtype) if store else None
    trail, (end, loops) = jax.lax.scan(run_chunk, trail, (jnp.arange(chunks), z0, x))

    latents = None
    if record:
        assert trail is not None
        after = jnp.concatenate([trail[:, 1:], end.latent[:, None]], axis=1)
        computed = jnp.arange(max_loops) < loops[:, None] - 1
        computed = computed.reshape(computed.shape + (1,) * (z0.ndim - 1))
        latents = jnp.where(computed, after, end.latent[:, None])
    back = _rows_by_depth(end.loops).loops.max(axis=1) * size
    result = LoopResult(end.latent, end.loops, end.stop, end.divergence, loops * size, back, latents)
    return _Trace(result, trail)


class _RowsByDepth(NamedTuple):
    """Examples in new chunks of like depth: where each was, and how deep it went."""

    chunk: Int[Array, "n c"]
    place: Int[Array, "n c"]
    loops: Int[Array, "n c"]


def _rows_by_depth(loops: Int[Array, "n c"]) -> _RowsByDepth:
    size = loops.shape[1]
    order = jnp.argsort(loops.reshape(-1)).reshape(loops.shape)
    return _RowsByDepth(order // size, order % size, loops[order // size, order % size])


def _early_exit_forward(pure, record, parameters, z0, x):
    result, trail = _until_all_stopped(pure.bind(parameters), z0, x, True, record)
    return result, (parameters, x, trail, result.loops, result.stop)


def _early_exit_backward(pure, record, saved, cotangents):
    parameters, x, trail, loops, stop = saved
    # Going forward, chunks were of examples that were expected to go equally deep. Now it is known.
    rows = _rows_by_depth(loops)

    def zeros(tree: PyTree) -> list[Array]:
        return [jnp.zeros_like(leaf) for leaf in split_floats(tree)[0]]

    def run_chunk(into_parameters: list[Array], rows: _RowsByDepth) -> tuple[list[Array], tuple]:
        def taken(leaf: Array) -> Array:
            return leaf[rows.chunk, rows.place]

        x_here, cotangent = jax.tree.map(taken, (x, cotangents.latent))
        broken = taken(stop) == StopReason.NON_FINITE
        deepest = rows.loops[-1]

        def body(i: Int[Array, ""], sums: Pullback) -> Pullback:
            loop = deepest - 1 - i
            accepted = loop < rows.loops
            latent = trail[rows.chunk, loop, rows.place]
            back = pullback(
                pure.step, parameters.step, latent, x_here, accepted, broken & ~accepted, sums.latent
            )
            return Pullback(
                parameters=jax.tree.map(jnp.add, sums.parameters, back.parameters),
                latent=back.latent,
                inputs=jax.tree.map(jnp.add, sums.inputs, back.inputs),
            )

        start = Pullback(into_parameters, cotangent, zeros(x_here))
        with jax.named_scope(f"backward_{loops.shape[1]}"):
            back = jax.lax.fori_loop(0, deepest, body, start)
        return back.parameters, (back.latent, back.inputs)

    into_parameters, per_row = jax.lax.scan(run_chunk, zeros(parameters.step), rows)
    shape = loops.shape
    came_to = jnp.argsort((rows.chunk * shape[1] + rows.place).reshape(-1)).reshape(shape)
    into_z0, into_inputs = jax.tree.map(lambda leaf: leaf[came_to // shape[1], came_to % shape[1]], per_row)
    into_step = cotangent_like(parameters.step, into_parameters)
    return _Parameters(into_step, readout=None), into_z0, cotangent_like(x, into_inputs)


_early_exit = jax.custom_vjp(_early_exit_value, nondiff_argnums=(0, 1))
_early_exit.defvjp(_early_exit_forward, _early_exit_backward)
