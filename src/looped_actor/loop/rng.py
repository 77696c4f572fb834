"""Randomness by address.

A key is not threaded through the program but computed from what it is for: which stream, which
environment, which step. So a draw does not depend on the order, the batch or the device in which things
were computed, and a resumed run draws what an uninterrupted one would have drawn.
"""

from enum import IntEnum

import jax
from jaxtyping import Array, Int, Key, UInt32


class Stream(IntEnum):
    """What a draw is for. Numbers are part of the address: add, never renumber."""

    LEVEL = 1
    ACTION = 2
    SHUFFLE = 3
    NET = 4
    EXAMPLE = 5
    EVALUATION = 6
    CAP = 7


def addressed_key(
    root: Key[Array, ""] | UInt32[Array, "2"], stream: Stream, *address: int | Int[Array, ""]
) -> Key[Array, ""] | UInt32[Array, "2"]:
    """The key of one draw: of this stream, at this address, for example environment and step."""
    return folded(root, stream, *address)


def folded(
    key: Key[Array, ""] | UInt32[Array, "2"], *address: int | Int[Array, ""]
) -> Key[Array, ""] | UInt32[Array, "2"]:
    """A key with an address folded in: in one go, or the rest of it later, which gives the same."""
    for part in address:
        key = jax.random.fold_in(key, part)
    return key
