"""The latent that an episode carries from one decision to the next.

A `Carry` is always there. Policies that start every decision from the same initial latent, as in the paper,
have one whose latents hold no numbers, so that no caller has to ask which kind of policy it runs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from looped_actor.loop.state import select


class Carry(NamedTuple):
    """Latents that the rows of a batch carry to their next decision."""

    latent: Float[Array | np.ndarray, "..."]
    """Latent in which the last decision of each row ended, `[B, ...]`; `[B, 0]` where nothing is carried."""
    reset: Bool[Array | np.ndarray, "..."]
    """Rows at the start of an episode, whose latents mean nothing yet, `[B]`."""

    @property
    def is_empty(self) -> bool:
        """True if every decision starts from the initial latent."""
        return self.latent.size == 0

    def initial_latent(self, z0: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
        """Return the latents to start from: `z0` at the start of an episode. Gradients stop at the carry."""
        if self.is_empty:
            return z0
        latent = jax.lax.stop_gradient(jnp.asarray(self.latent)).astype(z0.dtype)
        return select(jnp.asarray(self.reset), z0, latent)

    def update(self, latent: Float[Array, "b ..."], done: Bool[Array, " b"] | None = None) -> "Carry":
        """Return the carry after decisions that ended in `latent`; rows in `done` start a new episode."""
        reset = jnp.zeros_like(self.reset) if done is None else jnp.asarray(done)
        return Carry(self.latent if self.is_empty else latent.astype(self.latent.dtype), reset)

    def restart(self, rows: Bool[Array | np.ndarray, " b"]) -> "Carry":
        """Return the carry with new episodes in some rows."""
        return self._replace(reset=self.reset | rows)


def empty_carry(rows: int) -> Carry:
    """Return the carry of policies that start every decision from the initial latent."""
    return Carry(jnp.zeros((rows, 0)), jnp.ones(rows, bool))


def zero_carry(latent: Any) -> Carry:
    """Return the carry at the start of episodes, for latents of this shape and type."""
    return Carry(jnp.zeros(latent.shape, latent.dtype), jnp.ones(latent.shape[0], bool))
