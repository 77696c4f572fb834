"""Where a thought starts: from the same latent every time, or where the last one of its episode ended.

A rule is asked once, when episodes begin, for the `Memory` that they carry from one decision to the next.
From then on the memory speaks for itself: a loop starts from it if there is one, and whoever carries out a
decision puts the latent in which it ended into it, and marks the rows whose episode has ended.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from looped_actor.loop.state import select


class Memory(NamedTuple):
    """What rows carry from one decision to the next."""

    latent: Float[Array | np.ndarray, "..."]
    """In which the last decision of each ended."""
    fresh: Bool[Array | np.ndarray, "..."]
    """Rows at the start of an episode: their latents mean nothing yet."""

    def start(self, z0: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
        """The latents to start from: `z0` where an episode begins. No gradient goes into the past."""
        latent = jax.lax.stop_gradient(jnp.asarray(self.latent)).astype(z0.dtype)
        return select(jnp.asarray(self.fresh), z0, latent)

    def after(self, latent: Float[Array, "b ..."], ended: Bool[Array, " b"] | None = None) -> "Memory":
        """The memory after decisions that ended in these latents, and ended some episodes."""
        fresh = jnp.zeros_like(self.fresh) if ended is None else jnp.asarray(ended)
        return Memory(latent.astype(self.latent.dtype), fresh)

    def restart(self, rows: Bool[Array | np.ndarray, " b"]) -> "Memory":
        """The same, with new episodes in some rows."""
        return self._replace(fresh=self.fresh | rows)


@runtime_checkable
class Start(Protocol):
    """Where thoughts start."""

    def begin(self, latents: Callable[[], Any]) -> Memory | None:
        """What rows carry at the start of their first episode; None where they carry nothing.

        `latents` computes the latents of all rows. Only their shape is asked for.
        """
        ...


@dataclass(frozen=True)
class FixedStart:
    """Every thought starts from the same latent, as in the paper."""

    def __str__(self) -> str:
        return "fixed"

    def begin(self, latents: Callable[[], Any]) -> None:
        """Nothing is carried."""
        return None


@dataclass(frozen=True)
class Carried:
    """A thought starts where the last one of its episode ended; the first one as with `FixedStart`."""

    bfloat16: bool = False
    """Keep latents in half of the memory."""

    def __str__(self) -> str:
        return "carried-bfloat16" if self.bfloat16 else "carried"

    def begin(self, latents: Callable[[], Any]) -> Memory:
        """Nothing has been thought yet."""
        shape = jax.eval_shape(latents)
        dtype = jnp.bfloat16 if self.bfloat16 else shape.dtype
        return Memory(jnp.zeros(shape.shape, dtype), jnp.ones(shape.shape[0], bool))


def starting_of(net: Any) -> Start:
    """Where the thoughts of a net start. What does not loop, or does not say, starts anew every time."""
    return getattr(net, "starting", FixedStart())
