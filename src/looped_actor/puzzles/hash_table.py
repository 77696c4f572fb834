"""A hash table of search states for Numba.

States are numbered. A key is a row of 64-bit words; `keys[n]` is the key of state n. The table maps a slot to
the number of the state in it, and collisions go to the next slot.
"""

import numpy as np

from looped_actor.utils.compiled import compiled

EMPTY = -1


@compiled
def empty_table(capacity):
    """Return a table for `capacity / 2` states; `capacity` is a power of two."""
    return np.full(capacity, EMPTY, np.int32)


@compiled
def _first_slot(key, mask):
    h = np.uint64(0x9E3779B97F4A7C15)
    for word in range(key.shape[0]):
        h = (h ^ key[word]) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(31)
    return np.int64(h & np.uint64(mask))


@compiled
def find_slot(table, keys, key):
    """Return the slot of a key; of a new key, the slot to put it into."""
    mask = table.shape[0] - 1
    slot = _first_slot(key, mask)
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
def rehash(keys, count, capacity):
    """Return a table with this capacity of the first `count` states."""
    table = empty_table(capacity)
    for row in range(count):
        table[find_slot(table, keys, keys[row])] = row
    return table


@compiled
def grow_rows(array, rows):
    """Return a copy of an array with this many rows; the new ones are not initialised."""
    larger = np.empty((rows, *array.shape[1:]), array.dtype)
    larger[: array.shape[0]] = array
    return larger
