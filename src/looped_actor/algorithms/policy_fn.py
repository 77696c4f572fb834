"""Policies as functions: a net with its weights, applied to observations as an environment gives them."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Int, PyTree, Real, Shaped

from looped_actor.algorithms.normalization import RunningStatistics
from looped_actor.loop import (
    Carry,
    Execution,
    HaltingRule,
    Packed,
    StreamablePolicy,
    Streaming,
    empty_carry,
    zero_carry,
)
from looped_actor.models import PolicyOutput


class Weights(NamedTuple):
    """All arrays of a policy."""

    parameters: PyTree
    fixed: PyTree
    """Variables of the net that are not trained: the latent before the first loop."""
    statistics: RunningStatistics
    """Statistics of the observations in training, by which observations are normalised."""

    @property
    def checksum(self) -> str:
        """SHA-256 of all arrays."""
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self):
            digest.update(np.ascontiguousarray(leaf).data)
        return digest.hexdigest()


@runtime_checkable
class PolicyFn(Protocol):
    """Observations as an environment gives them, to the output of a policy."""

    def __call__(
        self,
        observation: Any,
        *,
        carry: Carry | None = None,
        expected_loops: Real[Array, " b"] | None = None,
        caps: Int[Array, " b"] | None = None,
        record: bool = False,
    ) -> PolicyOutput:
        """Return the output for a batch; the options are those of `run_loop`, and the carry."""
        ...


class Action(NamedTuple):
    """Actions of a policy for the caller, as NumPy arrays."""

    action: Shaped[Array | np.ndarray, "..."]
    """In the form that the environment takes."""
    loops: Int[Array | np.ndarray, "*b"]
    stop: Int[Array | np.ndarray, "*b"]
    """Reason for which each decision stopped: values of `StopReason`."""
    executed: Any
    """Loops that the hardware computed for all of them."""
    carry: Carry
    """Argument for the next call of the same episodes."""


@dataclass(frozen=True)
class Synchronous:
    """Decide for all environments together; all wait for the deepest. The oracle of `Streaming`."""

    execution: Execution = field(default_factory=Packed)


Acting = Streaming | Synchronous
"""Executions of the decisions of many environments. Results are equal; only the time differs."""


def make_policy(
    definition: nnx.GraphDef,
    weights: Weights,
    halting: HaltingRule | None = None,
    execution: Execution | None = None,
) -> PolicyFn:
    """Return the policy of a net.

    Args:
      definition: the net without its weights.
      weights: its weights.
      halting: replaces the halting rule of training.
      execution: how the loops of a batch run. Default: `Packed()`.
    """
    net: Any = nnx.merge(definition, weights.parameters, weights.fixed)

    def policy(observation: Any, *, carry: Carry | None = None, **options: Any) -> PolicyOutput:
        if carry is not None and not carry.is_empty:
            options["carry"] = carry
        normalized = weights.statistics.normalize(observation)
        return net(normalized, halting=halting, execution=execution or Packed(), **options)

    return policy


def init_carry(definition: nnx.GraphDef, weights: Weights, observation: Any, carry_latent: bool) -> Carry:
    """Return the carry at the start of episodes, for a policy that does or does not carry its latent."""
    rows = len(jax.tree.leaves(observation)[0])
    if not carry_latent:
        return empty_carry(rows)
    output = jax.eval_shape(lambda: make_policy(definition, weights)(observation))
    assert output.loop is not None
    return zero_carry(output.loop.latent)


def make_acting_policy(
    definition: nnx.GraphDef, weights: Weights, acting: Acting, halting: HaltingRule | None = None
) -> StreamablePolicy | PolicyFn:
    """Return the policy to act with: in parts if it is to be streamed. Nets that do not loop never are."""
    streamable = to_streaming(definition, weights, halting) if isinstance(acting, Streaming) else None
    if streamable is not None:
        return streamable
    execution = acting.execution if isinstance(acting, Synchronous) else None
    return make_policy(definition, weights, halting, execution)


def to_streaming(
    definition: nnx.GraphDef, weights: Weights, halting: HaltingRule | None = None
) -> StreamablePolicy | None:
    """Return the policy of a net in parts, to be streamed; None for nets that do not loop."""
    net: Any = nnx.merge(definition, weights.parameters, weights.fixed)
    parts = net.to_streaming(halting)
    if parts is None:
        return None
    return replace(parts, embed=lambda observation: parts.embed(weights.statistics.normalize(observation)))
