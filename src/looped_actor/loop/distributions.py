"""Action distributions: a readout returns one, a policy samples from it, and halting rules compare two.

All are pytrees with leading batch axes, so they travel through `jit`, `scan` and `vmap` as they are.
Halting, acting and learning use the same object: the head that halts is the head that acts.
"""

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

LOG_2_PI = math.log(2 * math.pi)


@runtime_checkable
class Distribution(Protocol):
    """A batch of action distributions. Bring your own by giving it these five methods."""

    def sample(self, key: Key[Array, ""]) -> Array:
        """One action for each example."""
        ...

    def mode(self) -> Array:
        """The most probable action of each example."""
        ...

    def log_prob(self, action: Array) -> Float[Array, "*b"]:
        """Log-probability (or log-density) of each example's action."""
        ...

    def entropy(self) -> Float[Array, "*b"]:
        """Entropy of each example, in nats."""
        ...

    def kl(self, other: Any) -> Float[Array, "*b"]:
        """KL(self || other) of each example, in nats; `other` is of the same kind."""
        ...


class Categorical(NamedTuple):
    """A choice among `a` actions. Logits of -inf are impossible actions."""

    logits: Float[Array, "*b a"]

    @property
    def log_probabilities(self) -> Float[Array, "*b a"]:
        """Normalised logits."""
        return jax.nn.log_softmax(self.logits, axis=-1)

    def sample(self, key: Key[Array, ""]) -> Int[Array, "*b"]:
        """One action for each example."""
        return jax.random.categorical(key, self.logits, axis=-1)

    def mode(self) -> Int[Array, "*b"]:
        """The most probable action; the first of equals."""
        return jnp.argmax(self.logits, axis=-1)

    def log_prob(self, action: Int[Array, "*b"]) -> Float[Array, "*b"]:
        """Log-probability of each example's action."""
        return jnp.take_along_axis(self.log_probabilities, action[..., None], axis=-1)[..., 0]

    def entropy(self) -> Float[Array, "*b"]:
        """Entropy of each example, in nats."""
        log_p = self.log_probabilities
        # An impossible action contributes nothing: 0 log 0 = 0.
        return -jnp.sum(jnp.exp(log_p) * jnp.where(jnp.isneginf(log_p), 0, log_p), axis=-1)

    def kl(self, other: "Categorical") -> Float[Array, "*b"]:
        """KL(self || other); infinite where `other` rules out what `self` allows."""
        # With r = log(p / q), sum p r = sum (p r - p + q), since both sum to one. No term of the last form is
        # negative. Those of the first cancel, which in float32 leaves noise of 1e-7: a percent of the
        # divergences at which a loop halts. Where p and q are close, p r - p + q is p (r + exp(-r) - 1) with
        # expm1; where q is several times p, exp(-r) may overflow, and the plain form loses nothing.
        log_p, log_q = self.log_probabilities, other.log_probabilities
        allowed, ruled_out = ~jnp.isneginf(log_p), jnp.isneginf(log_q)
        p, q = jnp.exp(log_p), jnp.exp(log_q)
        ratio = jnp.where(allowed & ~ruled_out, log_p - log_q, 0)
        close = ratio > -1
        near_ratio = jnp.where(close, ratio, 0)  # the branch not taken must not make gradients NaN
        terms = jnp.where(close, p * (near_ratio + jnp.expm1(-near_ratio)), p * ratio - p + q)
        terms = jnp.where(allowed, jnp.where(ruled_out, jnp.inf, terms), q)
        return jnp.sum(terms, axis=-1)


class DiagonalGaussian(NamedTuple):
    """Independent normals with a mean and a log standard deviation for each of `a` dimensions."""

    mean: Float[Array, "*b a"]
    log_std: Float[Array, "*b a"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*b a"]:
        """One action for each example."""
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + noise * jnp.exp(self.log_std)

    def mode(self) -> Float[Array, "*b a"]:
        """The mean."""
        return self.mean

    def log_prob(self, action: Float[Array, "*b a"]) -> Float[Array, "*b"]:
        """Log-density of each example's action."""
        scaled = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * scaled**2 + self.log_std + 0.5 * LOG_2_PI, axis=-1)

    def entropy(self) -> Float[Array, "*b"]:
        """Differential entropy of each example, in nats."""
        return jnp.sum(self.log_std + 0.5 * (1 + LOG_2_PI), axis=-1)

    def kl(self, other: "DiagonalGaussian") -> Float[Array, "*b"]:
        """KL(self || other)."""
        log_ratio = self.log_std - other.log_std
        scaled = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return 0.5 * jnp.sum(jnp.expm1(2 * log_ratio) - 2 * log_ratio + scaled**2, axis=-1)


class UnitGaussian(NamedTuple):
    """Independent normals of variance one: the paper's policy for continuous actions.

    Its KL is half the squared distance of the means, so halting watches the action itself.
    """

    mean: Float[Array, "*b a"]

    @property
    def _general(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.mean, jnp.zeros_like(self.mean))

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*b a"]:
        """One action for each example."""
        return self._general.sample(key)

    def mode(self) -> Float[Array, "*b a"]:
        """The mean."""
        return self.mean

    def log_prob(self, action: Float[Array, "*b a"]) -> Float[Array, "*b"]:
        """Log-density of each example's action."""
        return self._general.log_prob(action)

    def entropy(self) -> Float[Array, "*b"]:
        """Differential entropy: a constant."""
        return self._general.entropy()

    def kl(self, other: "UnitGaussian") -> Float[Array, "*b"]:
        """KL(self || other), half the squared distance of the means."""
        return 0.5 * jnp.sum((self.mean - other.mean) ** 2, axis=-1)
