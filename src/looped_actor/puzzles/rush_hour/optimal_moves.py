"""Optimal steps of many Rush Hour states, compiled. A step slides a vehicle by one cell.

All boards of a call have the same vehicles on the same lines. They mostly belong to one cluster, which is
explored once; a board that is not in it begins another.
"""

import numpy as np

from looped_actor.puzzles.rush_hour.rules import Cell
from looped_actor.puzzles.rush_hour.solver_kernel import (
    bits_per_vehicle,
    blocked,
    distances_to_solved,
    explore_keys,
    masks_of,
    occupied_by,
    pack,
    row_of,
    unpack,
)
from looped_actor.utils.compiled import compiled

_RED, _WALL = int(Cell.RED), int(Cell.WALL)
_HORIZONTAL, _VERTICAL = int(Cell.HORIZONTAL), int(Cell.VERTICAL)
_LINK_RIGHT, _LINK_DOWN = int(Cell.LINK_RIGHT), int(Cell.LINK_DOWN)


@compiled
def vehicles_of(cells):
    """Walls, and of each vehicle whether it is horizontal, its line, length and offset.

    The red car is first, then rows from the top, then columns from the left, each in the order along it:
    an order that no move changes.
    """
    height, width = cells.shape
    most = height * width
    horizontal, line = np.zeros(most, np.bool_), np.zeros(most, np.int64)
    length, offset = np.zeros(most, np.int64), np.zeros(most, np.int64)
    count = 1
    for axis in range(2):
        lines, span = (height, width) if axis == 0 else (width, height)
        kind, link = (_HORIZONTAL, _LINK_RIGHT) if axis == 0 else (_VERTICAL, _LINK_DOWN)
        for at in range(lines):
            begin = 0
            while begin < span:
                cell = cells[at, begin] if axis == 0 else cells[begin, at]
                if not cell & kind:
                    begin += 1
                    continue
                end = begin
                while (cells[at, end] if axis == 0 else cells[end, at]) & link:
                    end += 1
                place = 0 if cell & _RED else count
                count += place > 0
                horizontal[place], line[place] = axis == 0, at
                length[place], offset[place] = end - begin + 1, begin
                begin = end + 1
    walls = (cells & _WALL) != 0
    return walls, horizontal[:count], line[:count], length[:count], offset[:count]


@compiled
def _mark(optimal, masks, i, here, forward):
    """An action slides the vehicle on its cell: so the same step has as many names as the vehicle cells."""
    for cell in range(optimal.shape[0] // 2):
        if masks[i, here] >> np.uint64(cell) & np.uint64(1):
            optimal[2 * cell + forward] = True


@compiled
def advise_cluster(boards, node_limit):
    """The optimal steps of each board, and how many steps a solution takes, or -1."""
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
            row = row_of(table, keys, key)
            if row < 0:
                continue
            done[other], remaining[other] = True, distance[row]
            if distance[row] <= 0:
                continue
            occupied = occupied_by(wall_mask, masks, offset)
            for i in range(offset.shape[0]):
                here = offset[i]
                for to in (here - 1, here + 1):
                    if to < 0 or blocked(masks[i, to], occupied ^ masks[i, here]):
                        continue
                    nearer = row_of(table, keys, key ^ (np.uint64(here ^ to) << np.uint64(i * bits)))
                    if distance[nearer] == distance[row] - 1:
                        _mark(optimal[other], masks, i, here, to > here)
    return optimal, remaining


@compiled
def demonstrate_cluster(boards, steps, node_limit):
    """The first steps of a solution of each board, and -1 after its end."""
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
            occupied = occupied_by(wall_mask, masks, offset)
            nearer = -1
            for i in range(offset.shape[0]):
                here = offset[i]
                for to in (here - 1, here + 1):
                    if nearer >= 0 or to < 0 or blocked(masks[i, to], occupied ^ masks[i, here]):
                        continue
                    key = keys[row] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                    other = row_of(table, keys, key)
                    if distance[other] == distance[row] - 1:
                        nearer = other
                        cell = line[i] * width + here if horizontal[i] else here * width + line[i]
                        actions[b, step] = 2 * cell + (to > here)
            row = nearer
    return actions
