"""Optimal steps of many Rush Hour states, compiled. A step slides a vehicle by one cell.

All boards of a call have the same walls, and the same vehicles on the same lines. Mostly they belong to one
cluster, which is explored once; a board that is not in it begins another.
"""

import numpy as np

from looped_actor.puzzles.rush_hour.solver_kernel import (
    bits_per_vehicle,
    distances_to_solved,
    explore_keys,
    find_board,
    is_blocked,
    masks_of,
    occupied_cells,
    pack,
    unpack,
    vehicles_of,
)
from looped_actor.utils.compiled import compiled


@compiled
def label_cluster(boards, node_limit):
    """Return the optimal steps of each board, and the number of steps of its solution or -1."""
    count, cells = boards.shape[0], boards.shape[1] * boards.shape[2]
    optimal, remaining = np.zeros((count, 2 * cells), np.bool_), np.full(count, -1, np.int32)
    done = np.zeros(count, np.bool_)
    for first in range(count):
        if done[first]:
            continue
        walls, horizontal, line, length, offset = vehicles_of(boards[first])
        wall_mask, masks = masks_of(walls, horizontal, line, length)
        bits = bits_per_vehicle(masks.shape[1] - 1)
        keys, found, complete, table = explore_keys(wall_mask, masks, offset, node_limit)
        if not complete:
            done[first] = True
            continue
        distance = distances_to_solved(wall_mask, masks, keys, found, table, True)
        for other in range(first, count):
            if done[other]:
                continue
            offset = vehicles_of(boards[other])[4]
            key = pack(offset, bits)
            row = find_board(table, keys, key)
            if row < 0:
                continue
            done[other], remaining[other] = True, distance[row]
            if distance[row] <= 0:
                continue
            occupied = occupied_cells(wall_mask, masks, offset)
            for i in range(offset.shape[0]):
                here = offset[i]
                for to in (here - 1, here + 1):
                    if to < 0 or is_blocked(masks[i, to], occupied ^ masks[i, here]):
                        continue
                    nearer = find_board(table, keys, key ^ (np.uint64(here ^ to) << np.uint64(i * bits)))
                    if distance[nearer] == distance[row] - 1:
                        _mark_actions(optimal[other], masks[i, here], to > here)
    return optimal, remaining


@compiled
def _mark_actions(optimal, mask, forward):
    """Mark the actions that slide a vehicle: one for each of its cells."""
    for cell in range(optimal.shape[0] // 2):
        if mask >> np.uint64(cell) & np.uint64(1):
            optimal[2 * cell + forward] = True


@compiled
def demonstrate_cluster(boards, steps, node_limit):
    """Return the first steps of a solution of each board, shape [boards, steps], and -1 after its end."""
    width = boards.shape[2]
    actions = np.full((boards.shape[0], steps), -1, np.int32)
    for b in range(boards.shape[0]):
        walls, horizontal, line, length, offset = vehicles_of(boards[b])
        wall_mask, masks = masks_of(walls, horizontal, line, length)
        bits = bits_per_vehicle(masks.shape[1] - 1)
        keys, found, complete, table = explore_keys(wall_mask, masks, offset, node_limit)
        if not complete:
            continue
        distance = distances_to_solved(wall_mask, masks, keys, found, table, True)
        row = 0
        for step in range(steps):
            if distance[row] <= 0:
                break
            unpack(keys[row], bits, offset)
            occupied = occupied_cells(wall_mask, masks, offset)
            nearer = -1
            for i in range(offset.shape[0]):
                here = offset[i]
                for to in (here - 1, here + 1):
                    if nearer >= 0 or to < 0 or is_blocked(masks[i, to], occupied ^ masks[i, here]):
                        continue
                    key = keys[row] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                    other = find_board(table, keys, key)
                    if distance[other] == distance[row] - 1:
                        nearer = other
                        cell = line[i] * width + here if horizontal[i] else here * width + line[i]
                        actions[b, step] = 2 * cell + (to > here)
            row = nearer
    return actions
