"""Tokenizers: observations to tokens. Token 0 of every example is a learned readout token.

No parameter of `PlanesTokenizer` depends on the size of the board, so one policy plays them all.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.models.layers import DEFAULT_INITIAL, Grid, InitialWeights, fan_in_init
from looped_actor.utils.errors import UserError


@functools.partial(jax.tree_util.register_dataclass, data_fields=("embedding",), meta_fields=("grid",))
@dataclass(frozen=True)
class Tokens:
    """Tokens of a batch of observations. A pytree whose grid is static."""

    embedding: Any
    """Embeddings, `[B, T, D]`; untyped, since JAX transformations put other objects in their place."""
    grid: Grid | None
    """Shape of the board if tokens 1, 2, ... are its cells, row by row; else None."""


class GoalObservation(NamedTuple):
    """A state, and the goal to reach from it."""

    state: Float[Array | np.ndarray, "*b n"]
    goal: Float[Array | np.ndarray, "*b n"]


@runtime_checkable
class Tokenizer(Protocol):
    """Observations to tokens. Bring your own by giving it a width and a call."""

    @property
    def width(self) -> int:
        """Channels of a token."""
        ...

    def __call__(self, observation: Any) -> Tokens:
        """Embed a batch of observations."""
        ...

    def flops(self, tokens: int) -> int:
        """FLOPs of one example, by its number of tokens."""
        ...


GEOMETRY_FEATURES = 6


def cell_geometry(grid: Grid) -> Float[Array, "r c 6"]:
    """Return the geometry of each cell: row and column in [-1, 1], and a flag for each of the four
    borders."""
    rows, columns = grid
    row, column = jnp.meshgrid(jnp.arange(rows), jnp.arange(columns), indexing="ij")

    def centred(index: Array, count: int) -> Array:
        return 2 * index / max(count - 1, 1) - 1 if count > 1 else jnp.zeros(index.shape)

    features = [
        centred(row, rows),
        centred(column, columns),
        row == 0,
        row == rows - 1,
        column == 0,
        column == columns - 1,
    ]
    return jnp.stack([jnp.asarray(f, jnp.float32) for f in features], axis=-1)


class _LinearTokenizer(nnx.Module):
    """Base of tokenizers: a linear encoder shared by all tokens but the readout token."""

    def __init__(
        self,
        features: int,
        width: int,
        initial: InitialWeights,
        encoder: Callable[..., Array] = fan_in_init,
        *,
        rngs: nnx.Rngs,
    ):
        self.width = width
        self.encoder = nnx.Linear(features, width, kernel_init=encoder, rngs=rngs)
        self.readout = nnx.Param(initial.tokens(rngs.params(), (width,)))

    def with_readout(self, tokens: Float[Array, "b t d"]) -> Float[Array, "b t+1 d"]:
        first = jnp.broadcast_to(self.readout[...].astype(tokens.dtype), (tokens.shape[0], 1, self.width))
        return jnp.concatenate([first, tokens], axis=1)

    def flops(self, tokens: int) -> int:
        """FLOPs of one example, by its number of tokens."""
        return 2 * (tokens - 1) * self.encoder.in_features * self.width


class PlanesTokenizer(_LinearTokenizer):
    """A board of feature planes: one token per cell, from its planes and its geometry."""

    def __init__(self, planes: int, width: int, initial: InitialWeights = DEFAULT_INITIAL, *, rngs: nnx.Rngs):
        super().__init__(planes + GEOMETRY_FEATURES, width, initial, rngs=rngs)
        self.planes = planes

    def __call__(self, observation: Float[Array, "b r c p"]) -> Tokens:
        """Embed boards `[B, rows, columns, planes]` as `1 + rows x columns` tokens."""
        batch, rows, columns, planes = observation.shape
        if planes != self.planes:
            raise UserError(f"the observation has {planes} planes; this tokenizer was made for {self.planes}")
        geometry = cell_geometry((rows, columns)).astype(observation.dtype)
        geometry = jnp.broadcast_to(geometry, (batch, *geometry.shape))
        cells = self.encoder(jnp.concatenate([observation, geometry], axis=-1))
        tokens = cells.reshape(batch, rows * columns, self.width)
        return Tokens(self.with_readout(tokens), (rows, columns))


class VectorTokenizer(_LinearTokenizer):
    """Plain vectors: one token per scalar, through a shared encoder, plus the embedding of its dimension."""

    def __init__(self, size: int, width: int, initial: InitialWeights = DEFAULT_INITIAL, *, rngs: nnx.Rngs):
        super().__init__(1, width, initial, rngs=rngs)
        self.size = size
        self.position = nnx.Param(initial.tokens(rngs.params(), (size, width)))

    def __call__(self, observation: Float[Array, "b n"]) -> Tokens:
        """Embed vectors `[B, N]` as `1 + N` tokens."""
        if observation.shape[-1] != self.size:
            raise UserError(
                f"the observation has {observation.shape[-1]} scalars; "
                f"this tokenizer was made for {self.size}"
            )
        return Tokens(self.with_readout(self.encoder(observation[..., None]) + self.position[...]), None)


class GoalTokenizer(_LinearTokenizer):
    """State and goal vectors: one token per scalar, the goal's after the state's.

    A token is its scalar through a shared encoder, plus the embedding of its dimension, plus one
    that tells state from goal.
    """

    def __init__(self, size: int, width: int, initial: InitialWeights = DEFAULT_INITIAL, *, rngs: nnx.Rngs):
        super().__init__(1, width, initial, initial.robot(1.0), rngs=rngs)
        self.size = size
        self.position = nnx.Param(initial.tokens(rngs.params(), (size, width)))
        self.role = nnx.Param(initial.tokens(rngs.params(), (2, width)))

    def __call__(self, observation: GoalObservation) -> Tokens:
        """Embed states and goals `[B, N]` as `1 + 2N` tokens."""
        values = state_and_goal(observation, self.size)
        tokens = self.encoder(values[..., None]) + self.position[...] + self.role[...][:, None]
        flat = tokens.reshape(tokens.shape[0], 2 * self.size, self.width)
        return Tokens(self.with_readout(flat), None)


class PairedTokenizer(_LinearTokenizer):
    """State and goal vectors: one token per dimension, from the pair (state_i, goal_i).

    With `differences`, from these and |state_i - goal_i|.
    """

    def __init__(
        self,
        size: int,
        width: int,
        initial: InitialWeights = DEFAULT_INITIAL,
        differences: bool = False,
        *,
        rngs: nnx.Rngs,
    ):
        super().__init__(2 + differences, width, initial, initial.robot(1.0), rngs=rngs)
        self.size, self.differences = size, differences
        self.position = nnx.Param(initial.tokens(rngs.params(), (size, width)))

    def __call__(self, observation: GoalObservation) -> Tokens:
        """Embed states and goals `[B, N]` as `1 + N` tokens."""
        pairs = jnp.moveaxis(state_and_goal(observation, self.size, self.differences), 1, 2)
        return Tokens(self.with_readout(self.encoder(pairs) + self.position[...]), None)


def state_and_goal(
    observation: GoalObservation, size: int, differences: bool = False
) -> Float[Array, "b k n"]:
    """Stack state and goal, and with `differences` their absolute difference; check their size."""
    for name, value in observation._asdict().items():
        if value.shape[-1] != size:
            raise UserError(f"the {name} has {value.shape[-1]} scalars; this net was made for {size}")
    apart = [jnp.abs(observation.state - observation.goal)] if differences else []
    return jnp.stack([*observation, *apart], axis=1)
