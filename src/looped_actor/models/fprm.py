"""The core of the fixed-point reasoning model: one loop, z -> f(z; x), with coupled residual scaling."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.models.layers import (
    DEFAULT_INITIAL,
    Attention,
    Grid,
    GridConvolution,
    InitialWeights,
    SwiGLU,
    rms_norm,
)
from looped_actor.utils.checks import at_least_one, within
from looped_actor.utils.errors import UserError

MAX_LAYERS = 1024
"""Maximum number of layers of a core: building billions would hang before anything refused them."""


@dataclass(frozen=True)
class CoreConfig:
    """Shape of a core. The defaults are the paper's (Table 2)."""

    width: int = 128
    """Channels of a token."""
    heads: int = 4
    """Attention heads; a divisor of the width."""
    layers: int = 2
    """Transformer blocks per loop, each attention and SwiGLU."""
    hidden: int | None = None
    """Hidden width of the SwiGLU. None: 8/3 of the width, rounded up to a multiple of 256 (below a width of
    128: of the width)."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of matrix products. Latents, norms, residuals and halting stay in float32."""

    def __post_init__(self) -> None:
        at_least_one(self, "width", "heads", "hidden")
        within(self, 1, MAX_LAYERS, "layers")
        if self.width % self.heads:
            raise UserError(f"width {self.width} is not divisible by {self.heads} heads")
        if self.compute_dtype not in ("float32", "bfloat16"):
            raise UserError(f"compute_dtype is {self.compute_dtype!r}; it is float32 or bfloat16")

    @property
    def hidden_width(self) -> int:
        """Hidden width of the SwiGLU."""
        multiple = 256 if self.width >= 128 else self.width
        return self.hidden or math.ceil(8 * self.width / 3 / multiple) * multiple

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

    def __init__(
        self,
        config: CoreConfig,
        *,
        convolution: bool = True,
        initial: InitialWeights = DEFAULT_INITIAL,
        rngs: nnx.Rngs,
    ):
        self.config = config
        dtype = jnp.dtype(jnp.bfloat16) if config.compute_dtype == "bfloat16" else None
        width = config.width
        self.convolution = GridConvolution(width, initial, rngs=rngs) if convolution else None
        self.attention = nnx.List(
            Attention(width, config.heads, initial, dtype=dtype, rngs=rngs) for _ in range(config.layers)
        )
        self.feed_forward = nnx.List(
            SwiGLU(width, config.hidden_width, initial, dtype=dtype, rngs=rngs) for _ in range(config.layers)
        )
        log_3 = math.log(3)  # sigmoid(log 3) = 3/4, sigmoid(-log 3) = 1/4
        self.alpha_1_logit = nnx.Param(jnp.full(config.width, log_3))
        self.alpha_2_logit = nnx.Param(jnp.full(config.width, -log_3))

    @property
    def scaling(self) -> Scaling:
        """Coupled coefficients."""
        alpha_1 = jax.nn.sigmoid(self.alpha_1_logit[...])
        alpha_2 = jax.nn.sigmoid(self.alpha_2_logit[...])
        beta_2 = 1 - alpha_2 * alpha_1**self.config.sublayers
        # (1 - a^n) / (1 - a) as a sum, which stays exact where a rounds to one.
        powers = sum(alpha_1**k for k in range(self.config.sublayers))
        return Scaling(alpha_1, beta_2 / powers, alpha_2, beta_2)

    def __call__(
        self, z: Float[Array, "b t d"], x: Float[Array, "b t d"], grid: Grid | None = None
    ) -> Float[Array, "b t d"]:
        """Compute one loop. `grid` is the shape of the board, for cores with a convolution; token 0 is the
        readout."""
        alpha_1, beta_1, alpha_2, beta_2 = (s.astype(z.dtype) for s in self.scaling)
        if self.convolution is not None:
            if grid is None:
                raise UserError(
                    "this core has a grid convolution: pass grid=(rows, columns), "
                    "or make it with convolution=False where there is no board"
                )
            z = self.convolution(z, grid)
        h = alpha_2 * z + beta_2 * x
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            h = alpha_1 * h + beta_1 * attention(rms_norm(h)).astype(h.dtype)
            h = alpha_1 * h + beta_1 * feed_forward(rms_norm(h)).astype(h.dtype)
        return h

    def flops(self, tokens: int) -> int:
        """Return the FLOPs of one loop of one example, counting its linear algebra."""
        c = self.config
        weights = c.layers * (4 * c.width**2 + 3 * c.width * c.hidden_width)
        pairs = c.layers * 2 * tokens * c.width
        convolution = 9 * c.width * (tokens - 1) if self.convolution is not None else 0
        return 2 * tokens * (weights + pairs) + 2 * convolution
