"""Halting rules, and the reasons for which an example stops.

A rule looks at two consecutive loops of each example and says how far apart they are (its
*divergence*); an example stops at the first loop, from `min_loops` on, whose divergence is below
the threshold, and in any case at `max_loops`. Rules are frozen objects: for more loops at test
time, `dataclasses.replace(rule, max_loops=64)`.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from looped_actor.loop.distributions import Distribution
from looped_actor.utils.errors import UserError

Readout = Callable[[Float[Array, "b ..."], PyTree], Distribution]


class StopReason(enum.IntEnum):
    """Reason for which an example stopped. Results hold these as an integer array."""

    RUNNING = 0
    """Not stopped yet: never in the result of a finished loop."""
    CONVERGED = 1
    """The halting rule was satisfied."""
    CAP = 2
    """`max_loops` was reached first."""
    NON_FINITE = 3
    """The next loop would have been NaN or infinite; the example keeps its last finite latent."""


@runtime_checkable
class HaltingRule(Protocol):
    """Decides when each example of a batch stops."""

    @property
    def min_loops(self) -> int:
        """No example stops by convergence before this loop."""
        ...

    @property
    def max_loops(self) -> int:
        """Every example stops at this loop."""
        ...

    def observe(self, latent: Float[Array, "b ..."], x: PyTree, readout: Readout) -> PyTree:
        """Return the features of a loop that the next loop is compared with, batch axis first."""
        ...

    def divergence(self, before: Any, now: Any) -> Float[Array, " b"]:
        """Return the distance of two consecutive observations. NaN stops the example as non-finite."""
        ...

    def converged(self, loop: Int[Array, " b"], divergence: Float[Array, " b"]) -> Bool[Array, " b"]:
        """Return whether each example may stop after its `loop`-th loop, counted from 1."""
        ...


@dataclass(frozen=True)
class _Bounded:
    """Fields that all thresholded rules share."""

    threshold: float = 1e-3
    """tau: an example stops at a divergence below it."""
    min_loops: int = 2
    """First loop at which an example may stop."""
    max_loops: int = 16
    """Cap: the loop at which every example stops."""

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise UserError(f"threshold is {self.threshold}; it must be a number of at least 0")
        if not 1 <= self.min_loops <= self.max_loops:
            raise UserError(
                f"min_loops={self.min_loops} and max_loops={self.max_loops}: "
                "they must satisfy 1 <= min_loops <= max_loops"
            )

    def converged(self, loop: Int[Array, " b"], divergence: Float[Array, " b"]) -> Bool[Array, " b"]:
        return (loop >= self.min_loops) & (divergence < self.threshold)


@dataclass(frozen=True)
class PolicyKL(_Bounded):
    """Stop when the action distribution stops changing (the paper's Eq. 1).

    The divergence of loop l is KL(p_{l-1} || p_l) as the paper writes it. With `reverse=True` it is
    KL(p_l || p_{l-1}), which the authors' code computes. p_0 is read from the initial latent.
    """

    reverse: bool = False
    """Use KL(p_l || p_{l-1})."""

    def observe(self, latent: Float[Array, "b ..."], x: PyTree, readout: Readout) -> Distribution:
        """The action distribution of the loop."""
        return readout(latent, x)

    def divergence(self, before: Distribution, now: Distribution) -> Float[Array, " b"]:
        """KL between consecutive policies."""
        return now.kl(before) if self.reverse else before.kl(now)


@dataclass(frozen=True)
class LatentResidual(_Bounded):
    """Stop when the latent stops changing: the rule of the original fixed-point reasoning model (FPRM).

    The divergence of loop l is the largest relative change of a token, in the maximum norm over channels:
    max_t |z_l[t] - z_{l-1}[t]|_inf / (|z_l[t]|_inf + 1e-8). The last axis holds channels; a latent
    of shape [B, D] is one token.
    """

    threshold: float = 0.1
    """tau, as in FPRM."""

    def observe(self, latent: Float[Array, "b ..."], x: PyTree, readout: Readout) -> Float[Array, "b ..."]:
        """The latent itself."""
        return latent

    def divergence(self, before: Float[Array, "b ..."], now: Float[Array, "b ..."]) -> Float[Array, " b"]:
        """The largest relative change of a token. A latent that stays at zero has residual zero."""
        channels = now.shape[-1] if now.ndim > 1 else 1
        change, size = (
            jnp.abs(value.reshape(len(now), -1, channels)).max(axis=-1) for value in (now - before, now)
        )
        return (change / (size + 1e-8)).max(axis=-1)


@dataclass(frozen=True)
class FixedLoops:
    """Exactly `loops` loops for every example, without a readout in between."""

    loops: int

    def __post_init__(self) -> None:
        if self.loops < 1:
            raise UserError(f"loops is {self.loops}; it must be at least 1")

    @property
    def min_loops(self) -> int:
        """Number of loops."""
        return self.loops

    @property
    def max_loops(self) -> int:
        """Number of loops."""
        return self.loops

    def observe(self, latent: Float[Array, "b ..."], x: PyTree, readout: Readout) -> Float[Array, " b"]:
        """Return infinity: nothing is compared."""
        return jnp.full(latent.shape[0], jnp.inf, latent.dtype)

    def divergence(self, before: Float[Array, " b"], now: Float[Array, " b"]) -> Float[Array, " b"]:
        """Return infinity."""
        return now

    def converged(self, loop: Int[Array, " b"], divergence: Float[Array, " b"]) -> Bool[Array, " b"]:
        """Return False: only the cap stops an example."""
        return jnp.zeros(loop.shape, bool)
