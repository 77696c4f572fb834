"""DRC(D, N): the deep repeated ConvLSTM of Guez et al. (2019), without memory, as in the paper's comparison.

D ConvLSTM layers run N times on one observation, from a zero state each time, so like the looped actor it
decides from the present board alone. Its last layer flattens the board, so unlike the looped actor it plays
boards of one size only.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.loop import Categorical, HaltingRule, LoopResult
from looped_actor.models.actor import PolicyOutput
from looped_actor.models.layers import Grid, fan_in_init
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class DRCConfig:
    """Shape of a DRC. The defaults are DRC(3, 3)."""

    channels: int = 32
    """Channels of the encoder and of every ConvLSTM layer."""
    depth: int = 3
    """D, the number of ConvLSTM layers."""
    ticks: int = 3
    """N, the number of passes through them for each observation."""
    hidden: int = 256
    """Width of the dense layer before the heads."""
    encoder_kernel: int = 4
    """Kernel size of the two encoder convolutions."""

    def __post_init__(self) -> None:
        at_least_one(self, *self.__dict__)


class LSTMState(NamedTuple):
    """State of a layer between ticks."""

    hidden: Float[Array, "b r c k"]
    cell: Float[Array, "b r c k"]


class ConvLSTM(nnx.Module):
    """One layer. Its inputs are the encoding, the layer below, its own state, a pooled summary of it, and the
    border."""

    def __init__(self, channels: int, *, rngs: nnx.Rngs):
        self.channels = channels
        self.gates = _convolution(4 * channels + 1, 4 * channels, 3, rngs)
        # Pool-and-inject: information from one corner reaches the others within a tick.
        self.pool_mean = nnx.Param(jnp.ones(channels))
        self.pool_max = nnx.Param(jnp.ones(channels))

    def __call__(
        self,
        encoding: Float[Array, "b r c k"],
        below: Float[Array, "b r c k"],
        state: LSTMState,
    ) -> LSTMState:
        """Compute one tick."""
        hidden, cell = state
        mean = hidden.mean(axis=(1, 2), keepdims=True) * self.pool_mean[...]
        largest = hidden.max(axis=(1, 2), keepdims=True) * self.pool_max[...]
        pooled = jnp.broadcast_to(mean + largest, hidden.shape)
        border = jnp.ones_like(hidden[..., :1]).at[:, 1:-1, 1:-1].set(0)
        seen = jnp.concatenate([encoding, below, hidden, pooled, border], axis=-1)
        update, forget, output, candidate = jnp.split(self.gates(seen), 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(update) * jnp.tanh(candidate)
        return LSTMState(jax.nn.sigmoid(output) * jnp.tanh(cell), cell)


class DRC(nnx.Module):
    """DRC(D, N) with a policy over `actions` and a value, for boards of one size."""

    halting, carry_latent = None, False

    def __init__(self, config: DRCConfig, planes: int, grid: Grid, actions: int, *, rngs: nnx.Rngs):
        self.config, self.grid, self.planes = config, grid, planes
        channels, size = config.channels, config.encoder_kernel
        self.encoder = nnx.List(
            [_convolution(planes, channels, size, rngs), _convolution(channels, channels, size, rngs)]
        )
        self.layers = nnx.List(ConvLSTM(channels, rngs=rngs) for _ in range(config.depth))
        flat = grid[0] * grid[1] * channels
        self.dense = nnx.Linear(flat, config.hidden, kernel_init=fan_in_init, rngs=rngs)
        head = functools.partial(nnx.Linear, kernel_init=fan_in_init, precision="highest", rngs=rngs)
        self.policy = head(config.hidden, actions)
        self.value = head(config.hidden, 1)

    def __call__(
        self, observation: Float[Array, "b r c p"], *, record: bool = False, **options: Any
    ) -> PolicyOutput:
        """Decide for a batch of boards. A tick counts as a loop; nothing halts."""
        if observation.shape[1:] != (*self.grid, self.planes):
            raise UserError(
                f"boards of shape {observation.shape[1:]} (rows, columns, planes); "
                f"this DRC was made for {(*self.grid, self.planes)}: its dense layer fits one board size"
            )
        encoding = observation
        for convolution in self.encoder:
            encoding = convolution(encoding)

        def tick(states: list[LSTMState], _: None) -> tuple[list[LSTMState], Float[Array, "b r c k"]]:
            below, after = states[-1].hidden, []
            for layer, state in zip(self.layers, states, strict=True):
                after.append(layer(encoding, below, state))
                below = after[-1].hidden
            return after, below

        nothing = LSTMState(jnp.zeros_like(encoding), jnp.zeros_like(encoding))
        _, tops = jax.lax.scan(tick, [nothing] * self.config.depth, None, length=self.config.ticks)
        batch = observation.shape[0]
        features = jax.nn.relu(self.dense((tops[-1] + encoding).reshape(batch, -1)))
        latents = tops.reshape(self.config.ticks, batch, -1, self.config.channels)
        loop = LoopResult.of_fixed_depth(latents[-1], self.config.ticks, latents if record else None)
        return PolicyOutput(Categorical(self.policy(features)), self.value(features)[:, 0], loop)

    @property
    def max_loops(self) -> int:
        """A tick counts as a loop."""
        return self.config.ticks

    def to_streaming(self, halting: HaltingRule | None = None) -> None:
        return None  # every decision takes the same ticks

    def flops(self, observation: Any, loops: float) -> float:
        """Return the FLOPs of one decision; the ticks are fixed, so `loops` is not used."""
        convolutions = sum(_multiplications(c, self.grid) for c in self.encoder)
        convolutions += self.config.ticks * sum(_multiplications(m.gates, self.grid) for m in self.layers)
        dense = sum(m.kernel.size for m in (self.dense, self.policy, self.value))
        return 2 * (convolutions + dense)


def _convolution(inputs: int, outputs: int, size: int, rngs: nnx.Rngs) -> nnx.Conv:
    return nnx.Conv(
        inputs,
        outputs,
        (size, size),
        padding="SAME",
        kernel_init=fan_in_init,
        conv_general_dilated=_convolve,
        rngs=rngs,
    )


def _convolve(inputs: Array, kernel: Array, *args: Any, **kwargs: Any) -> Array:
    """Convolve by XLA; on CPU, by a sum of matrix products.

    Within a loop, XLA's CPU backend has only a naive gradient of a convolution, forty times slower than this.
    """
    return jax.lax.platform_dependent(
        inputs,
        kernel,
        cpu=shifted_products,
        default=lambda inputs, kernel: jax.lax.conv_general_dilated(inputs, kernel, *args, **kwargs),
    )


def shifted_products(
    inputs: Float[Array, "b r c i"], kernel: Float[Array, "h w i o"]
) -> Float[Array, "b r c o"]:
    """Compute a "same" convolution as one matrix product with a shifted board for each weight of the
    window."""
    height, width, channels, _ = kernel.shape
    batch, rows, columns, _ = inputs.shape
    padding = [(0, 0), *(((size - 1) // 2, size // 2) for size in (height, width)), (0, 0)]
    padded = jnp.pad(inputs, padding)
    products = [
        padded[:, i : i + rows, j : j + columns].reshape(-1, channels) @ kernel[i, j]
        for i in range(height)
        for j in range(width)
    ]
    return sum(products[1:], products[0]).reshape(batch, rows, columns, -1)


def _multiplications(convolution: nnx.Conv, grid: Grid) -> int:
    """Count the multiplications of a "same" convolution on one board, without those with padding."""
    rows, columns, inputs, outputs = convolution.kernel.shape
    return _taps(rows, grid[0]) * _taps(columns, grid[1]) * inputs * outputs


def _taps(size: int, length: int) -> int:
    """Count the pairs of a cell and a weight that reaches a cell, along one axis."""
    before = (size - 1) // 2
    return sum(0 <= at + k - before < length for at in range(length) for k in range(size))
