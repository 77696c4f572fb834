"""The parts of a core: normalisation, attention, SwiGLU and the grid convolution, without biases."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.loop.microbatch import target_device
from looped_actor.utils.errors import UserError

Grid = tuple[int, int]
"""Rows and columns of a board."""

# Truncated normal with a standard deviation (after truncation) of 1 / sqrt(fan in).
fan_in_init = nnx.initializers.lecun_normal()


@dataclass(frozen=True)
class InitialWeights:
    """Distributions of the initial weights. The defaults are this project's, `AUTHORS_INITIAL` the
    authors'."""

    token_std: float | None = None
    """Standard deviation of the readout token and of position and role embeddings. None: 1 / sqrt(width)."""
    correct_truncation: bool = True
    """Rescale truncated normals, of the core and of z_0, to their nominal standard deviation. Without it they
    have 0.88 of it."""
    uniform_convolution: bool = False
    """Draw the grid convolution uniformly from +-1/3 instead of from a normal of standard deviation 1/3."""
    small_robot_head: bool = False
    """Robots: draw encoder and mean head by the mean of their fans, the head at a tenth of the size."""
    shared_latent: bool = False
    """Use one z_0 for all seeds and arms, instead of one for each run."""

    def __post_init__(self) -> None:
        if self.token_std is not None and not self.token_std > 0:
            raise UserError(f"token_std is {self.token_std}; it must be positive")

    def kernel(self, key: Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> Array:
        """Draw a matrix of the core."""
        uncorrected = nnx.initializers.truncated_normal(shape[0] ** -0.5)
        return (fan_in_init if self.correct_truncation else uncorrected)(key, shape, dtype)

    def latent(self, key: Array, width: int) -> Float[Array, " d"]:
        """Draw the latent before the first loop: truncated normal of standard deviation 6."""
        key = jax.random.key(0) if self.shared_latent else key
        # variance_scaling corrects for the variance that truncation removes; fan_in is 1.
        corrected = nnx.initializers.variance_scaling(36.0, "fan_in", "truncated_normal")
        uncorrected = nnx.initializers.truncated_normal(6.0)
        return (corrected if self.correct_truncation else uncorrected)(key, (1, width))[0]

    def tokens(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Draw embeddings."""
        if self.token_std is None:  # so that an embedding has a norm of about one
            return nnx.initializers.truncated_normal(shape[-1] ** -0.5)(key, shape)
        return nnx.initializers.normal(self.token_std)(key, shape)

    def convolution(self, key: Array, width: int) -> Array:
        """Draw a 3 x 3 kernel for each channel. Its fan in is 9: the cells of the window, of one channel."""
        if self.uniform_convolution:
            return jax.random.uniform(key, (3, 3, width), minval=-1 / 3, maxval=1 / 3)
        return fan_in_init(key, (9, width)).reshape(3, 3, width)

    def robot(self, scale: float) -> Callable[..., Array]:
        """Return the initializer of the encoder (scale 1) or the mean head (scale 0.01) of robots."""
        if self.small_robot_head:
            return nnx.initializers.variance_scaling(scale, "fan_avg", "uniform")
        return fan_in_init


DEFAULT_INITIAL = InitialWeights()
AUTHORS_INITIAL = InitialWeights(
    token_std=0.02,
    correct_truncation=False,
    uniform_convolution=True,
    small_robot_head=True,
    shared_latent=True,
)


def rms_norm(h: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    """Divide by the root mean square. No parameters; the result's norm is at most sqrt(d)."""
    return h * jax.lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-5)


def linear(
    inputs: int, outputs: int, initial: InitialWeights, *, dtype: jnp.dtype | None, rngs: nnx.Rngs
) -> nnx.Linear:
    """Return a linear map without bias, computed in `dtype` (None: that of its input)."""
    options: Any = {"kernel_init": initial.kernel, "dtype": dtype, "rngs": rngs}
    return nnx.Linear(inputs, outputs, use_bias=False, **options)


def each_token(layer: nnx.Linear, h: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
    """Apply a linear map to every token.

    As one matrix product over all of them: its gradient is one too, where that of a product of
    three axes makes XLA transpose the activations first (a tenth of a loop's backward pass on CPU).
    """
    h, kernel = _as_computed(layer, h)
    return (h.reshape(-1, h.shape[-1]) @ kernel).reshape(*h.shape[:-1], -1)


def _as_computed(layer: nnx.Linear, h: Array) -> tuple[Array, Array]:
    """Return tokens and weights in the type of the product.

    A TPU rounds the factors of a product to bfloat16 by itself, and takes half as long again if told to.
    """
    dtype = None if target_device().platform == "tpu" else layer.dtype
    h, kernel = layer.promote_dtype((h, layer.kernel[...]), dtype=dtype)
    return h, kernel


def in_heads(
    h: Float[Array, "b t d"], kernel: Float[Array, "d n"], heads: int
) -> Float[Array, "3 b heads t p"]:
    """Return queries, keys and values of all tokens, heads before tokens.

    A CPU is fastest, forward and back, with one product of two axes and a transposition. On a TPU the
    transposition costs more than the product saves: 22 against 19 kilocycles for an example and loop of the
    paper's core, forward and back, by the compiler's estimates for v5e. (A custom gradient makes that 18, but
    a function with one has no Jacobian-vector product.)
    """
    batch, tokens, width = h.shape
    if target_device().platform == "cpu":
        flat = h.reshape(-1, width) @ kernel
        return flat.reshape(batch, tokens, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)
    return jnp.einsum("btd,dkhp->kbhtp", h, kernel.reshape(width, 3, heads, width // heads))


class Attention(nnx.Module):
    """Multi-head self-attention over all tokens, without positions or masks."""

    def __init__(
        self,
        width: int,
        heads: int,
        initial: InitialWeights = DEFAULT_INITIAL,
        *,
        dtype: jnp.dtype | None,
        rngs: nnx.Rngs,
    ):
        self.heads = heads
        self.qkv = linear(width, 3 * width, initial, dtype=dtype, rngs=rngs)
        self.out = linear(width, width, initial, dtype=dtype, rngs=rngs)

    def __call__(self, h: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Mix the tokens of each example."""
        batch, tokens, width = h.shape
        per_head = width // self.heads
        qkv: Array = in_heads(*_as_computed(self.qkv, h), self.heads)
        q, k, v = qkv[0], qkv[1], qkv[2]
        logits = jnp.einsum("bhqd,bhkd->bhqk", q * per_head**-0.5, k)
        precise = jnp.promote_types(logits.dtype, jnp.float32)
        weights = jax.nn.softmax(logits.astype(precise), axis=-1).astype(v.dtype)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, v)
        return each_token(self.out, mixed.transpose(0, 2, 1, 3).reshape(batch, tokens, width))


class SwiGLU(nnx.Module):
    """Gated feed-forward network, token by token."""

    def __init__(
        self,
        width: int,
        hidden: int,
        initial: InitialWeights = DEFAULT_INITIAL,
        *,
        dtype: jnp.dtype | None,
        rngs: nnx.Rngs,
    ):
        self.gate_up = linear(width, 2 * hidden, initial, dtype=dtype, rngs=rngs)
        self.down = linear(hidden, width, initial, dtype=dtype, rngs=rngs)

    def __call__(self, h: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Transform each token."""
        gate, up = jnp.split(each_token(self.gate_up, h), 2, axis=-1)
        return each_token(self.down, jax.nn.silu(gate) * up)


class GridConvolution(nnx.Module):
    """Depth-wise 3x3 convolution over the cell tokens, "same" padding; the readout token passes.

    Written as nine shifted multiply-adds, which XLA fuses into one pass on an accelerator; on CPU
    this is many times faster than its depth-wise convolution.
    """

    def __init__(self, width: int, initial: InitialWeights = DEFAULT_INITIAL, *, rngs: nnx.Rngs):
        self.kernel = nnx.Param(initial.convolution(rngs.params(), width))

    def __call__(self, z: Float[Array, "b t d"], grid: Grid) -> Float[Array, "b t d"]:
        """Mix each cell with its neighbours, channel by channel."""
        rows, columns = grid
        readout, cells = z[:, :1], z[:, 1:]
        padded = jnp.pad(cells.reshape(-1, rows, columns, z.shape[-1]), ((0, 0), (1, 1), (1, 1), (0, 0)))
        kernel = self.kernel[...].astype(z.dtype)
        mixed = sum(
            padded[:, i : i + rows, j : j + columns] * kernel[i, j] for i in range(3) for j in range(3)
        )
        return jnp.concatenate([readout, jnp.reshape(mixed, cells.shape)], axis=1)
