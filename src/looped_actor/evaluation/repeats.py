"""States of an episode that are new in it, and states that repeat an earlier one.

A greedy policy that fails often walks in circles: it observes the same states again and again until its time
is over. A mean over all decisions then says little about states that a policy meets for the first time, so
loops are reported for both.
"""

import hashlib
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Integer, PyTree, Shaped, UInt32

_GOLDEN = np.uint32(0x9E3779B9)


def fingerprint(observation: PyTree[Shaped[Array, "b ..."]]) -> UInt32[Array, "b 2"]:
    """Return 64 bits for each observation of a batch: equal bytes have equal fingerprints.

    Different observations have equal fingerprints with a probability of about 2**-64.
    """
    words = jnp.concatenate([_words(leaf) for leaf in jax.tree.leaves(observation)], axis=1)
    place = jnp.arange(words.shape[1], dtype=jnp.uint32)
    halves = [
        _mix(words ^ _mix(place * _GOLDEN + np.uint32(seed))).sum(axis=1, dtype=jnp.uint32) for seed in (1, 2)
    ]
    return jnp.stack(halves, axis=1)


def _words(leaf: Shaped[Array, "b ..."]) -> UInt32[Array, "b words"]:
    """Return the bytes of each row, four to a word."""
    leaf = leaf.astype(jnp.uint8) if leaf.dtype == jnp.bool_ else leaf
    flat = leaf.reshape(len(leaf), -1)
    data = flat if flat.dtype == jnp.uint8 else jax.lax.bitcast_convert_type(flat, jnp.uint8)
    data = data.reshape(len(leaf), -1)
    data = jnp.pad(data, ((0, 0), (0, -data.shape[1] % 4)))
    return jax.lax.bitcast_convert_type(data.reshape(len(leaf), -1, 4), jnp.uint32)


def _mix(number: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """Return another number for each number (the finaliser of MurmurHash3)."""
    number = (number ^ (number >> 16)) * jnp.uint32(0x85EBCA6B)
    number = (number ^ (number >> 13)) * jnp.uint32(0xC2B2AE35)
    return number ^ (number >> 16)


def fingerprint_host(observation: Iterable[np.ndarray]) -> UInt32[np.ndarray, "2"]:
    """Return the same for the arrays of one observation of Gymnasium, by another hash function."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in observation:
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return np.frombuffer(digest.digest(), np.uint32)


def find_new_states(
    fingerprints: Integer[np.ndarray, "n t 2"], lengths: Integer[np.ndarray, " n"]
) -> Bool[np.ndarray, "n t"]:
    """Return which decisions were about a state that had not occurred before in their episode.

    Args:
      fingerprints: one for the observation of each decision.
      lengths: decisions of each episode; what follows them is not looked at, and is not new.
    """
    count, steps = fingerprints.shape[:2]
    episode, step = np.nonzero(np.arange(steps) < np.asarray(lengths)[:, None])
    rows = np.column_stack([episode, fingerprints[episode, step]])
    _, first = np.unique(rows, axis=0, return_index=True)  # the index of the first of equal rows
    new = np.zeros((count, steps), bool)
    new[episode[first], step[first]] = True
    return new


def pad_episodes(episodes: Sequence[np.ndarray]) -> np.ndarray:
    """Stack arrays of different lengths, filled up with zeros."""
    steps = max(map(len, episodes))
    return np.stack([np.pad(e, ((0, steps - len(e)), *[(0, 0)] * (e.ndim - 1))) for e in episodes])
