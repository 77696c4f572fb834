"""The parts of a core: normalisation, attention, SwiGLU and the grid convolution, without biases."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.loop.hardware import device

Grid = tuple[int, int]
"""Rows and columns of a board."""

# Truncated normal with a standard deviation (after truncation) of 1 / sqrt(fan in).
fan_in_init = nnx.initializers.lecun_normal()


def rms_norm(h: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    """Divide by the root mean square. No parameters; the result's norm is at most sqrt(d)."""
    return h * jax.lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-5)


def linear(inputs: int, outputs: int, *, dtype: jnp.dtype | None, rngs: nnx.Rngs) -> nnx.Linear:
    """A linear map without bias, computed in `dtype` (None: that of its input)."""
    return nnx.Linear(inputs, outputs, use_bias=False, kernel_init=fan_in_init, dtype=dtype, rngs=rngs)


def each_token(layer: nnx.Linear, h: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
    """Apply a linear map to every token.

    As one matrix product over all of them: its gradient is one too, where that of a product of
    three axes makes XLA transpose the activations first (a tenth of a loop's backward pass on CPU).
    """
    h, kernel = _as_computed(layer, h)
    return (h.reshape(-1, h.shape[-1]) @ kernel).reshape(*h.shape[:-1], -1)


def _as_computed(layer: nnx.Linear, h: Array) -> tuple[Array, Array]:
    """Tokens and weights in the type that is computed in.

    A TPU rounds what it multiplies to bfloat16 by itself, and takes half as long again if it is told to.
    """
    dtype = None if device().platform == "tpu" else layer.dtype
    h, kernel = layer.promote_dtype((h, layer.kernel[...]), dtype=dtype)
    return h, kernel


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def in_heads(
    h: Float[Array, "b t d"], kernel: Float[Array, "d n"], heads: int
) -> Float[Array, "3 b heads t p"]:
    """Queries, keys and values of all tokens.

    Heads come before tokens: what is done with them then are plain matrix products, which CPUs like best.
    The gradient is taken in that order too: to bring it back to the order of tokens first, as JAX would, is
    a seventh of a loop's backward pass on a TPU.
    """
    batch, tokens, width = h.shape
    flat = h.reshape(-1, width) @ kernel
    return flat.reshape(batch, tokens, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)


def _in_heads_forward(h: Array, kernel: Array, heads: int) -> tuple[Array, tuple]:
    return in_heads(h, kernel, heads), (h, kernel)


def _in_heads_backward(heads: int, given: tuple, g: Float[Array, "3 b heads t p"]) -> tuple[Array, Array]:
    h, kernel = given
    into_h = jnp.einsum("kbhtp,dkhp->btd", g, kernel.reshape(len(kernel), 3, heads, -1))
    return into_h, jnp.einsum("btd,kbhtp->dkhp", h, g).reshape(kernel.shape)


in_heads.defvjp(_in_heads_forward, _in_heads_backward)


class Attention(nnx.Module):
    """Multi-head self-attention over all tokens, without positions or masks."""

    def __init__(self, width: int, heads: int, *, dtype: jnp.dtype | None, rngs: nnx.Rngs):
        self.heads = heads
        self.qkv = linear(width, 3 * width, dtype=dtype, rngs=rngs)
        self.out = linear(width, width, dtype=dtype, rngs=rngs)

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

    def __init__(self, width: int, hidden: int, *, dtype: jnp.dtype | None, rngs: nnx.Rngs):
        self.gate_up = linear(width, 2 * hidden, dtype=dtype, rngs=rngs)
        self.down = linear(hidden, width, dtype=dtype, rngs=rngs)

    def __call__(self, h: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Transform each token."""
        gate, up = jnp.split(each_token(self.gate_up, h), 2, axis=-1)
        return each_token(self.down, jax.nn.silu(gate) * up)


class GridConvolution(nnx.Module):
    """Depth-wise 3x3 convolution over the cell tokens, "same" padding; the readout token passes.

    Written as nine shifted multiply-adds, which XLA fuses into one pass on an accelerator; on CPU
    this is many times faster than its depth-wise convolution.
    """

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        # One input channel each: the fan in is the 9 cells of the window.
        self.kernel = nnx.Param(fan_in_init(rngs.params(), (9, width)).reshape(3, 3, width))

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
