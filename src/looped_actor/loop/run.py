"""`run_loop`: a batch of loops from start to stop.

Streams (`streaming.py`) and nets of fixed depth (`LoopResult.of_fixed_depth`) do not go through here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int, PyTree

from looped_actor.loop.executions import EarlyExit, Execution
from looped_actor.loop.halting import HaltingRule, PolicyKL, Readout
from looped_actor.loop.state import LoopProblem, LoopResult, Step
from looped_actor.utils.errors import UserError


def run_loop(
    step: Step,
    readout: Readout,
    z0: ArrayLike,
    x: PyTree[ArrayLike],
    *,
    halting: HaltingRule | None = None,
    execution: Execution | None = None,
    expected_loops: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    record: bool = False,
) -> LoopResult:
    """Apply `step` to each example's latent until its halting rule is satisfied.

    Args:
      step: `(latent [b, ...], x) -> latent [b, ...]`, the same shape and dtype. It must treat the
        examples of a batch independently, and takes batches of any size: executions regroup them.
        It may close over parameters; gradients flow to them.
      readout: `(latent, x) -> Distribution` of each example, which the halting rule may compare.
      z0: the latent before the first loop, `[b, ...]`.
      x: the input of each example, an array `[b, ...]` or a tree of them. Per-example data that
        `step` or `readout` needs (an action mask, say) belongs here, not in a closure.
      halting: when an example stops. Default: `PolicyKL()`, with the paper's constants.
      execution: how the batch runs. Default: `EarlyExit()`.
      expected_loops: a guess of each example's depth, `[b]`. Only ever changes the time it takes.
      caps: each example's own cap, `[b]`, below that of the halting rule.
      record: also return the latent after every loop, `[max_loops, b, ...]`, without gradients.

    Returns:
      A `LoopResult`. Gradients flow through its `latent`, back through the loops that each example
      executed, to `z0`, `x` and whatever `step` closes over.
    """
    halting = PolicyKL() if halting is None else halting
    execution = EarlyExit() if execution is None else execution
    start, x = jnp.asarray(z0), jax.tree.map(jnp.asarray, x)
    expected = None if expected_loops is None else jnp.asarray(expected_loops)
    _check_shapes(step, start, x, expected)
    problem = LoopProblem(step, readout, halting)
    if caps is not None:
        problem, x = with_caps(problem), Capped(x, jnp.asarray(caps))
        _check_caps(start, x.cap)
    return execution.run(problem, start, x, expected, record)


class Capped(NamedTuple):
    """Input of examples that have caps of their own."""

    x: PyTree
    cap: Int[Array, " b"]


def with_caps(problem: LoopProblem) -> LoopProblem:
    """Return the problem for `Capped` inputs."""
    return LoopProblem(
        step=lambda latent, given: problem.step(latent, given.x),
        readout=lambda latent, given: problem.readout(latent, given.x),
        halting=problem.halting,
        cap=lambda given: given.cap,
    )


def _check_caps(z0: Array, caps: Array) -> None:
    if caps.shape != z0.shape[:1] or not jnp.issubdtype(caps.dtype, jnp.integer):
        raise UserError(
            f"caps has shape {caps.shape} and dtype {caps.dtype}; it must be one integer for each of the "
            f"{z0.shape[0]} examples"
        )


def _check_shapes(step: Step, z0: Array, x: PyTree, expected_loops: Array | None) -> None:
    if z0.ndim == 0 or z0.shape[0] == 0:
        raise UserError(f"z0 has shape {z0.shape}; it needs a batch axis with at least one example")
    if not jnp.issubdtype(z0.dtype, jnp.floating):
        raise UserError(f"z0 is {z0.dtype}; a latent must be of a floating type")
    batch = z0.shape[0]
    for path, leaf in jax.tree_util.tree_leaves_with_path((x, expected_loops)):
        if leaf.shape[:1] != (batch,):
            name = "x" if path[0].idx == 0 else "expected_loops"
            where = name + jax.tree_util.keystr(path[1:])
            raise UserError(
                f"{where} has shape {leaf.shape}, but z0 has {batch} examples; "
                "every leaf needs them as its first axis"
            )
    out = jax.eval_shape(step, z0, x)
    if not isinstance(out, jax.ShapeDtypeStruct) or (out.shape, out.dtype) != (z0.shape, z0.dtype):
        raise UserError(
            f"step returned {out}; it must return a latent like z0, of shape {z0.shape} and dtype {z0.dtype}"
        )
