"""Heads: latents to distributions and values. Every head reads the normalised latent, in float32 or finer.

Halting compares distributions that differ by less than 1e-3, so heads also ask for full-precision products.
By default a TPU multiplies float32 in bfloat16, and recent GPUs in TF32.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.loop import Categorical, DiagonalGaussian, Distribution, UnitGaussian
from looped_actor.models.layers import fan_in_init, rms_norm


@runtime_checkable
class PolicyHead(Protocol):
    """Latents to action distributions. Bring your own by giving it a width and a call."""

    @property
    def width(self) -> int:
        """Channels of the latent."""
        ...

    def __call__(self, z: Float[Array, "b t d"]) -> Distribution:
        """Return the policy of each example."""
        ...

    def flops(self, tokens: int) -> int:
        """Return the FLOPs of one example, by its number of tokens."""
        ...


class _Decoder(nnx.Module):
    """Base of heads: a norm, then a linear map."""

    def __init__(
        self, width: int, outputs: int, initial: Callable[..., Array] = fan_in_init, *, rngs: nnx.Rngs
    ):
        self.width, self.outputs = width, outputs
        self.decoder = nnx.Linear(width, outputs, kernel_init=initial, precision="highest", rngs=rngs)

    def decode(self, z: Float[Array, "*b d"]) -> Float[Array, "*b n"]:
        return self.decoder(rms_norm(z.astype(jnp.promote_types(z.dtype, jnp.float32))))

    def flops(self, tokens: int) -> int:
        """Return the FLOPs of one example, by its number of tokens."""
        return 2 * self.width * self.outputs


class ReadoutLogits(_Decoder):
    """One of `outputs` actions, decoded from the readout token (Boxoban)."""

    def __call__(self, z: Float[Array, "b t d"]) -> Categorical:
        """Return the policy of each example."""
        return Categorical(self.decode(z[:, 0]))


class CellLogits(_Decoder):
    """`outputs` actions on every cell, each decoded from its cell's token (Rush Hour).

    Action `cell x outputs + k` is the k-th on that cell, so the actions grow with the board and the
    parameters do not.
    """

    def __call__(self, z: Float[Array, "b t d"]) -> Categorical:
        """Return the policy of each example."""
        return Categorical(self.decode(z[:, 1:]).reshape(z.shape[0], -1))

    def flops(self, tokens: int) -> int:
        """Return the FLOPs of one example, by its number of tokens."""
        return (tokens - 1) * super().flops(tokens)


class GaussianMean(_Decoder):
    """The mean of a unit-variance Gaussian, decoded from the readout token (OGBench)."""

    def __call__(self, z: Float[Array, "b t d"]) -> UnitGaussian:
        """Return the policy of each example."""
        return UnitGaussian(self.decode(z[:, 0]))


class GaussianMeanAndStd(_Decoder):
    """The mean and standard deviation of a Gaussian over `actions`, decoded from the readout token."""

    def __init__(self, width: int, actions: int, *, rngs: nnx.Rngs):
        super().__init__(width, 2 * actions, rngs=rngs)

    def __call__(self, z: Float[Array, "b t d"]) -> DiagonalGaussian:
        """Return the policy of each example, with standard deviations between e^-5 and e^2."""
        mean, log_std = jnp.split(self.decode(z[:, 0]), 2, axis=-1)
        return DiagonalGaussian(mean, jnp.clip(log_std, -5, 2))


class ValueHead(_Decoder):
    """The value, decoded from the readout token."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        super().__init__(width, 1, rngs=rngs)

    def __call__(self, z: Float[Array, "b t d"]) -> Float[Array, " b"]:
        """Return the value of each example."""
        return self.decode(z[:, 0])[:, 0]
