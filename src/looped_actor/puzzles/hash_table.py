"""A hash table of search states for Numba: each state is a row of 64-bit words, each row has a number."""

import numpy as np

from looped_actor.utils.compiled import compiled

EMPTY = -1


@compiled
def empty_table(capacity):
    """Slots for `capacity / 2` states; `capacity` is a power of two."""
    return np.full(capacity, EMPTY, np.int32)


@compiled
def _slot_of(key, mask):
    h = np.uint64(0x9E3779B97F4A7C15)
    for word in range(key.shape[0]):
        h = (h ^ key[word]) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(31)
    return np.int64(h & np.uint64(mask))


@compiled
def find(table, keys, key):
    """The slot of a state: where it is, or where it would be put."""
    mask = table.shape[0] - 1
    slot = _slot_of(key, mask)
    while table[slot] != EMPTY:
        row = table[slot]
        same = True
        for word in range(key.shape[0]):
            if keys[row, word] != key[word]:
                same = False
                break
        if same:
            break
        slot = (slot + 1) & mask
    return slot


@compiled
def rehashed(keys, count, capacity):
    """A larger table of the first `count` states."""
    table = empty_table(capacity)
    for row in range(count):
        table[find(table, keys, keys[row])] = row
    return table


@compiled
def grown(array, rows):
    """A copy with room for more rows."""
    larger = np.empty((rows, *array.shape[1:]), array.dtype)
    larger[: array.shape[0]] = array
    return larger
