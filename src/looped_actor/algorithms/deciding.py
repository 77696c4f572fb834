"""A net with its weights and the scaling of observations in place: what acts, learns and is evaluated."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int, PyTree, Real, Shaped

from looped_actor.algorithms.statistics import RunningStatistics
from looped_actor.loop import Execution, HaltingRule, Memory, OpenLoop, Packed, Start, Streaming


class Weights(NamedTuple):
    """All numbers of a policy."""

    parameters: PyTree
    fixed: PyTree
    """What of the net is not trained: the latent before the first loop."""
    statistics: RunningStatistics
    """Statistics of the observations that it was trained on."""

    @property
    def checksum(self) -> str:
        """Equal for equal policies."""
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self):
            digest.update(np.ascontiguousarray(leaf).data)
        return digest.hexdigest()


@runtime_checkable
class Decide(Protocol):
    """Observations as an environment gives them, to decisions."""

    def __call__(
        self,
        observation: Any,
        *,
        expected_loops: Real[Array, " b"] | None = None,
        memory: Memory | None = None,
        caps: Int[Array, " b"] | None = None,
    ) -> Any:
        """A batch of decisions with `distribution`, `loop`, and `value` where the net has one."""
        ...


class Acted(NamedTuple):
    """Actions of a policy, and what they took."""

    action: Shaped[Array | np.ndarray, "..."]
    loops: Int[Array | np.ndarray, "*b"]
    stop: Int[Array | np.ndarray, "*b"]
    """Why each stopped: values of `StopReason`."""
    executed: Any
    """Loops that the hardware computed for all of them."""
    memory: Memory | None = None
    """What to give to the next call of the same episodes; None where nothing is carried."""


@dataclass(frozen=True)
class Synchronous:
    """Environments that decide in step: the obvious way, in which all wait for the deepest thought."""

    execution: Execution = field(default_factory=Packed)


Acting = Streaming | Synchronous
"""How the decisions of many environments are computed. They are the same, and their time is not."""


def deciding(
    definition: nnx.GraphDef,
    weights: Weights,
    halting: HaltingRule | None = None,
    execution: Execution | None = None,
) -> Decide:
    """A policy.

    Args:
      definition: the net without its weights.
      weights: they, and the statistics that scale observations.
      halting: replaces the rule that the net was trained with.
      execution: how a batch of its loops runs. Default: `Packed()`.
    """
    net: Any = nnx.merge(definition, weights.parameters, weights.fixed)

    def decide(observation: Any, *, memory: Memory | None = None, **options: Any) -> Any:
        given = {"halting": halting, "execution": execution or Packed(), **options}
        given |= {} if memory is None else {"memory": memory}
        return net(weights.statistics.normalise(observation), **given)

    return decide


def capped(decide: Decide, cap: Int[Array, ""] | None) -> Decide:
    """The same policy that thinks for no more than `cap` loops; None changes nothing."""
    if cap is None:
        return decide

    def decide_within(observation: Any, **options: Any) -> Any:
        count = len(jax.tree.leaves(observation)[0])
        return decide(observation, **options, caps=jnp.full(count, cap))

    return decide_within


def first_memory(
    starting: Start, definition: nnx.GraphDef, weights: Weights, observation: Any
) -> Memory | None:
    """What episodes carry that begin with these observations; None where nothing is carried."""
    return starting.begin(lambda: deciding(definition, weights)(observation).loop.latent)


def acting_policy(
    definition: nnx.GraphDef, weights: Weights, acting: Acting, halting: HaltingRule | None = None
) -> OpenLoop | Decide:
    """A policy as it is to act: taken apart where it is streamed, else whole. What does not loop is whole."""
    loop = as_open_loop(definition, weights, halting) if isinstance(acting, Streaming) else None
    if loop is not None:
        return loop
    execution = acting.execution if isinstance(acting, Synchronous) else None
    return deciding(definition, weights, halting, execution)


def as_open_loop(
    definition: nnx.GraphDef, weights: Weights, halting: HaltingRule | None = None
) -> OpenLoop | None:
    """The same policy taken apart, to be streamed; None where the net does not loop."""
    net: Any = nnx.merge(definition, weights.parameters, weights.fixed)
    loop = net.as_open_loop(halting)
    if loop is None:
        return None
    return replace(loop, embed=lambda observation: loop.embed(weights.statistics.normalise(observation)))
