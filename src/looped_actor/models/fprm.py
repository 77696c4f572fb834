"""The core of the fixed-point reasoning model: one loop, z -> f(z; x), with coupled residual scaling."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.checks import at_least_one, within
from looped_actor.errors import UserError
from looped_actor.models.layers import (
    OURS,
    Attention,
    Grid,
    GridConvolution,
    InitialWeights,
    SwiGLU,
    rms_norm,
)

MOST_LAYERS = 1024
"""Of a core: each is built one by one, so a file that asks for billions would never be refused."""


@dataclass(frozen=True)
class CoreConfig:
    """The shape of a core. The defaults are the paper's (Table 2)."""

    width: int = 128
    """Channels of a token."""
    heads: int = 4
    """Attention heads; they divide the width."""
    layers: int = 2
    """Transformer blocks per loop, each attention and SwiGLU."""
    expansion: float = 4.0
    """Size of the feed-forward network: as many parameters as a plain one of this expansion ratio."""
    hidden_multiple: int = 256
    """Its hidden width is rounded up to a multiple of this."""
    convolution: bool = True
    """Depth-wise 3x3 convolution over the cells at the start of each loop."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Matrix products in this type. Latents, norms, residuals and halting stay in float32."""
    initial: InitialWeights = OURS
    """What weights are drawn from: those of the core, and of what reads for it and from it."""

    def __post_init__(self) -> None:
        at_least_one(self, "width", "heads", "hidden_multiple")
        within(self, 1, MOST_LAYERS, "layers")
        if self.width % self.heads:
            raise UserError(f"width {self.width} is not divisible by {self.heads} heads")
        if not self.expansion > 0:
            raise UserError(f"expansion is {self.expansion}; it must be positive")
        if self.compute_dtype not in ("float32", "bfloat16"):
            raise UserError(f"compute_dtype is {self.compute_dtype!r}; it is float32 or bfloat16")

    @property
    def hidden(self) -> int:
        """Hidden width of the SwiGLU: 2/3 of expansion x width, rounded up."""
        wanted = self.expansion * self.width * 2 / 3
        return math.ceil(wanted / self.hidden_multiple) * self.hidden_multiple

    @property
    def sublayers(self) -> int:
        """The paper's 2K: attention and feed-forward of every layer."""
        return 2 * self.layers


class Scaling(NamedTuple):
    """Retention (alpha) and injection (beta) for each channel: 1 within a loop, 2 between loops."""

    alpha_1: Float[Array, " d"]
    beta_1: Float[Array, " d"]
    alpha_2: Float[Array, " d"]
    beta_2: Float[Array, " d"]


class FPRMCore(nnx.Module):
    """One loop: convolve the cells, inject the input, and apply the transformer blocks.

    With h_0 = alpha_2 conv(z) + beta_2 x and sublayers k = 1 .. 2K,

        h_k = alpha_1 h_{k-1} + beta_1 g_k(norm(h_{k-1})),     f(z; x) = h_{2K}.

    The couplings beta_2 = 1 - alpha_2 alpha_1^{2K} and beta_1 = beta_2 (1 - alpha_1) / (1 - alpha_1^{2K})
    keep the iterates bounded. Unrolled, with G a bound on every |g_k| (each reads a normalised h, so
    there is one), the retained weights sum to beta_1 (1 + alpha_1 + ... + alpha_1^{2K-1}) = beta_2 and

        |f(z; x)| <= rho k |z| + beta_2 (alpha_1^{2K} |x| + G),       rho = alpha_2 alpha_1^{2K},

    in the largest absolute value of a channel, where k is the gain of the convolution, the sum of
    its |weights| (1 where there is none). Without a convolution beta_2 = 1 - rho, and after l loops

        |z_l| <= rho^l |z_0| + (1 - rho^l) (alpha_1^{2K} |x| + G) <= max(|z_0|, |x| + G):

    a bound that holds for all weights and all 0 <= alpha < 1, and does not loosen as alpha -> 1. The
    convolution acts on z linearly and is not covered by the coupling: the bound then is
    |z_0| + beta_2 (alpha_1^{2K} |x| + G) / (1 - rho k), and it needs rho k < 1. That holds with
    much room where training starts (rho is 0.08, k about 2.4), but is not enforced.
    """

    def __init__(self, config: CoreConfig, *, rngs: nnx.Rngs):
        self.config = config
        dtype = jnp.dtype(jnp.bfloat16) if config.compute_dtype == "bfloat16" else None
        width, initial = config.width, config.initial
        self.convolution = GridConvolution(width, initial, rngs=rngs) if config.convolution else None
        self.attention = nnx.List(
            Attention(width, config.heads, initial, dtype=dtype, rngs=rngs) for _ in range(config.layers)
        )
        self.feed_forward = nnx.List(
            SwiGLU(width, config.hidden, initial, dtype=dtype, rngs=rngs) for _ in range(config.layers)
        )
        log_3 = math.log(3)  # sigmoid(log 3) = 3/4, sigmoid(-log 3) = 1/4
        self.alpha_1_logit = nnx.Param(jnp.full(config.width, log_3))
        self.alpha_2_logit = nnx.Param(jnp.full(config.width, -log_3))

    @property
    def scaling(self) -> Scaling:
        """The coupled coefficients."""
        alpha_1 = jax.nn.sigmoid(self.alpha_1_logit[...])
        alpha_2 = jax.nn.sigmoid(self.alpha_2_logit[...])
        beta_2 = 1 - alpha_2 * alpha_1**self.config.sublayers
        # (1 - a^n) / (1 - a) as a sum, which stays exact where a rounds to one.
        powers = sum(alpha_1**k for k in range(self.config.sublayers))
        return Scaling(alpha_1, beta_2 / powers, alpha_2, beta_2)

    def __call__(
        self, z: Float[Array, "b t d"], x: Float[Array, "b t d"], grid: Grid | None = None
    ) -> Float[Array, "b t d"]:
        """One loop. `grid` is the board's shape, for cores with a convolution; token 0 is the readout."""
        alpha_1, beta_1, alpha_2, beta_2 = (s.astype(z.dtype) for s in self.scaling)
        if self.convolution is not None:
            if grid is None:
                raise UserError(
                    "this core has a grid convolution: pass grid=(rows, columns), "
                    "or make it with CoreConfig(convolution=False) where there is no board"
                )
            z = self.convolution(z, grid)
        h = alpha_2 * z + beta_2 * x
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            h = alpha_1 * h + beta_1 * attention(rms_norm(h)).astype(h.dtype)
            h = alpha_1 * h + beta_1 * feed_forward(rms_norm(h)).astype(h.dtype)
        return h

    def flops(self, tokens: int) -> int:
        """Floating-point operations of one loop of one example, counting its linear algebra."""
        c = self.config
        weights = c.layers * (4 * c.width**2 + 3 * c.width * c.hidden)
        pairs = c.layers * 2 * tokens * c.width
        convolution = 9 * c.width * (tokens - 1) if c.convolution else 0
        return 2 * tokens * (weights + pairs) + 2 * convolution
