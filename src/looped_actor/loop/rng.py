"""Randomness by address.

A key is not threaded through the program but computed from its purpose: stream, environment, step. So a draw
does not depend on the order, the batch or the device in which it is computed, and a resumed run draws the
same numbers as an uninterrupted one.
"""

from enum import IntEnum

import jax
from jaxtyping import Array, Int, Key, UInt32


class Stream(IntEnum):
    """Purpose of a draw. Numbers are part of the address: add, never renumber."""

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
    """Return the key of one draw: of this stream, at this address, for example environment and step."""
    return folded(root, stream, *address)


def folded(
    key: Key[Array, ""] | UInt32[Array, "2"], *address: int | Int[Array, ""]
) -> Key[Array, ""] | UInt32[Array, "2"]:
    """Fold an address into a key. Folding the parts one after the other gives the same key."""
    for part in address:
        key = jax.random.fold_in(key, part)
    return key
