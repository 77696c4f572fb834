"""Random numbers for compiled generators: SplitMix64, a counter and a mixing function.

Equal seeds give equal levels on every machine and in every process.
"""

import numpy as np

from looped_actor.utils.compiled import compiled


@compiled
def make_random_state(seed, index):
    """Return the state for one candidate: an array of one number, which each draw advances."""
    state = np.empty(1, np.uint64)
    state[0] = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) ^ np.uint64(index)
    draw_bits(state)
    return state


@compiled
def draw_bits(state):
    """Return 64 random bits."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def draw_below(state, bound):
    """Return a number from 0 to bound - 1."""
    return np.int64((draw_bits(state) >> np.uint64(32)) * np.uint64(bound) >> np.uint64(32))
