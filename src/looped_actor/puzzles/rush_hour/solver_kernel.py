"""Searches of Rush Hour boards, compiled.

Vehicles never leave their line, so a board is its vehicles' offsets, packed into one 64-bit key, and the
cells they stand on are one 64-bit mask. Searches are breadth first; every move can be taken back, so
distances from the solved boards are the optimal lengths of a whole cluster. Searches take a board as
`masks_of` gives it: `wall_mask`, and `masks` of each vehicle, the red car first, at each of its offsets.
"""

import numpy as np

from looped_actor.puzzles.hash_table import EMPTY, empty_table, grown
from looped_actor.utils.compiled import compiled


@compiled
def bits_per_vehicle(longest_line):
    """Bits that hold any offset on a line."""
    bits = 1
    while 1 << bits < longest_line:
        bits += 1
    return bits


@compiled
def pack(offset, bits):
    """Offsets to a key."""
    key = np.uint64(0)
    for i in range(offset.shape[0]):
        key |= np.uint64(offset[i]) << np.uint64(i * bits)
    return key


@compiled
def unpack(key, bits, offset):
    """A key to offsets."""
    mask = np.uint64((1 << bits) - 1)
    for i in range(offset.shape[0]):
        offset[i] = np.int64((key >> np.uint64(i * bits)) & mask)


@compiled
def masks_of(walls, horizontal, line, length):
    """The walls as a mask, and the mask of each vehicle at each offset; a cell is a bit, row by row.

    Offsets beyond its line have all bits set. The last one that has not is where the red car is solved.
    """
    height, width = walls.shape
    wall_mask = np.uint64(0)
    for cell in range(height * width):
        if walls[cell // width, cell % width]:
            wall_mask |= np.uint64(1) << np.uint64(cell)
    masks = np.full((line.shape[0], max(height, width) + 1), ~np.uint64(0), np.uint64)
    for i in range(line.shape[0]):
        span, stride = (width, 1) if horizontal[i] else (height, width)
        first = line[i] * width if horizontal[i] else line[i]
        for offset in range(span - length[i] + 1):
            mask = np.uint64(0)
            for k in range(length[i]):
                mask |= np.uint64(1) << np.uint64(first + stride * (offset + k))
            masks[i, offset] = mask
    return wall_mask, masks


@compiled
def blocked(mask, others):
    """Whether a vehicle cannot stand on these cells: others do, or they are beyond its line."""
    return mask & others != 0 or mask == ~np.uint64(0)


@compiled
def reach(others, masks, i, at):
    """The first and last offset to which vehicle `i` can slide, given the mask of all that is in its way."""
    low = high = at
    while low > 0 and not blocked(masks[i, low - 1], others):
        low -= 1
    while not blocked(masks[i, high + 1], others):
        high += 1
    return low, high


@compiled
def _slot(table, keys, key):
    """The slot of a key: where it is, or where it would be put."""
    mask = np.uint64(table.shape[0] - 1)
    mixed = key * np.uint64(0x9E3779B97F4A7C15)
    slot = (mixed ^ (mixed >> np.uint64(32))) & mask
    while table[slot] != EMPTY and keys[table[slot]] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


@compiled
def _rehashed(keys, count, capacity):
    table = empty_table(capacity)
    for row in range(count):
        table[_slot(table, keys, keys[row])] = row
    return table


@compiled
def solved_offset(masks):
    """The red car's offset at the exit: the last on its line."""
    offset = 0
    while masks[0, offset + 1] != ~np.uint64(0):
        offset += 1
    return offset


@compiled
def occupied_by(wall_mask, masks, offset):
    """All cells that a wall or a vehicle is on."""
    occupied = wall_mask
    for i in range(offset.shape[0]):
        occupied |= masks[i, offset[i]]
    return occupied


@compiled
def solve_kernel(wall_mask, masks, start, node_limit):
    """Breadth first until a board is solved: the status, the moves, and how many boards were stored."""
    vehicles, bits = start.shape[0], bits_per_vehicle(masks.shape[1] - 1)
    solved_at = solved_offset(masks)
    keys = np.empty(256, np.uint64)
    parent = np.empty(256, np.int32)
    moved = np.empty((256, 2), np.int8)
    table = empty_table(1024)
    keys[0], parent[0] = pack(start, bits), -1
    table[_slot(table, keys, keys[0])] = 0
    count, head, goal, status = 1, 0, -1, 1
    if start[0] == solved_at:
        goal = 0
    offset = np.empty(vehicles, np.int64)
    while head < count and goal < 0 and status == 1:
        unpack(keys[head], bits, offset)
        occupied = occupied_by(wall_mask, masks, offset)
        for i in range(vehicles):
            here = offset[i]
            low, high = reach(occupied ^ masks[i, here], masks, i, here)
            for to in range(low, high + 1):
                if to == here:
                    continue
                key = keys[head] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                slot = _slot(table, keys, key)
                if table[slot] != EMPTY:
                    continue
                if count >= node_limit:
                    status = 2
                    break
                if count == keys.shape[0]:
                    keys, parent = grown(keys, 2 * count), grown(parent, 2 * count)
                    moved = grown(moved, 2 * count)
                keys[count], parent[count] = key, head
                moved[count, 0], moved[count, 1] = i, to - here
                table[slot] = count
                count += 1
                if 2 * count > table.shape[0]:
                    table = _rehashed(keys, count, 4 * table.shape[0])
                if i == 0 and to == solved_at:
                    goal = count - 1
                    break
            if goal >= 0 or status == 2:
                break
        head += 1
    if goal < 0:
        return status, np.empty((0, 2), np.int8), count
    steps, state = 0, goal
    while parent[state] >= 0:
        steps += 1
        state = parent[state]
    moves, state = np.empty((steps, 2), np.int8), goal
    for step in range(steps - 1, -1, -1):
        moves[step] = moved[state]
        state = parent[state]
    return 0, moves, count


@compiled
def explore_keys(wall_mask, masks, start, node_limit, only_from_least=False):
    """All boards that can be reached: their keys, how many, whether all were found, and their table.

    `only_from_least` gives up at a board with a smaller key than the start's: so that of all boards of a
    cluster only one explores it to the end.
    """
    vehicles, bits = start.shape[0], bits_per_vehicle(masks.shape[1] - 1)
    keys = np.empty(64, np.uint64)
    table = empty_table(256)
    keys[0] = pack(start, bits)
    table[_slot(table, keys, keys[0])] = 0
    count, head = 1, 0
    offset = np.empty(vehicles, np.int64)
    while head < count:
        unpack(keys[head], bits, offset)
        occupied = occupied_by(wall_mask, masks, offset)
        for i in range(vehicles):
            here = offset[i]
            others = occupied ^ masks[i, here]
            # One cell at a time reaches every board too, with fewer lookups than slides of any distance.
            for to in (here - 1, here + 1):
                if to < 0 or blocked(masks[i, to], others):
                    continue
                key = keys[head] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                slot = _slot(table, keys, key)
                if table[slot] == EMPTY:
                    if count >= node_limit or (only_from_least and key < keys[0]):
                        return keys, count, False, table
                    if count == keys.shape[0]:
                        keys = grown(keys, 2 * count)
                    keys[count] = key
                    table[slot] = count
                    count += 1
                    if 2 * count > table.shape[0]:
                        table = _rehashed(keys, count, 4 * table.shape[0])
        head += 1
    return keys, count, True, table


@compiled
def distances_to_solved(wall_mask, masks, keys, count, table, by_cells=False):
    """Moves from each board of a whole cluster to the nearest solved one, or -1 if there is none.

    With `by_cells`, a move slides a vehicle by one cell only.
    """
    vehicles, bits = masks.shape[0], bits_per_vehicle(masks.shape[1] - 1)
    solved_at, red = np.uint64(solved_offset(masks)), np.uint64((1 << bits) - 1)
    distance = np.full(count, -1, np.int16)
    queue = np.empty(count, np.int32)
    offset = np.empty(vehicles, np.int64)
    head = tail = 0
    for row in range(count):
        if keys[row] & red == solved_at:
            distance[row] = 0
            queue[tail] = row
            tail += 1
    while head < tail:
        row = queue[head]
        head += 1
        unpack(keys[row], bits, offset)
        occupied = occupied_by(wall_mask, masks, offset)
        for i in range(vehicles):
            here = offset[i]
            low, high = reach(occupied ^ masks[i, here], masks, i, here)
            if by_cells:
                low, high = max(low, here - 1), min(high, here + 1)
            for to in range(low, high + 1):
                if to == here:
                    continue
                key = keys[row] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                other = table[_slot(table, keys, key)]
                if other != EMPTY and distance[other] < 0:
                    distance[other] = distance[row] + 1
                    queue[tail] = other
                    tail += 1
    return distance


@compiled
def row_of(table, keys, key):
    """The number of a board of a cluster, or -1 where it is none of its."""
    return table[_slot(table, keys, key)]


@compiled
def hardest(masks, horizontal, keys, distance):
    """The board farthest from solved; of several, the one whose masks, rows before columns, are least."""
    bits = bits_per_vehicle(masks.shape[1] - 1)
    offset = np.empty(masks.shape[0], np.int64)
    chosen, least_rows, least_columns = -1, np.uint64(0), np.uint64(0)
    farthest = distance.max()
    for row in range(distance.shape[0]):
        if distance[row] != farthest:
            continue
        unpack(keys[row], bits, offset)
        rows = columns = np.uint64(0)
        for i in range(masks.shape[0]):
            if horizontal[i]:
                rows |= masks[i, offset[i]]
            else:
                columns |= masks[i, offset[i]]
        if chosen < 0 or rows < least_rows or (rows == least_rows and columns < least_columns):
            chosen, least_rows, least_columns = row, rows, columns
    return chosen


@compiled
def moved_on_the_way(wall_mask, masks, keys, distance, table, row):
    """Which vehicles one optimal solution of a board moves: down the distances of its cluster."""
    vehicles, bits = masks.shape[0], bits_per_vehicle(masks.shape[1] - 1)
    moved, offset = np.zeros(vehicles, np.bool_), np.empty(vehicles, np.int64)
    while distance[row] > 0:
        unpack(keys[row], bits, offset)
        occupied = occupied_by(wall_mask, masks, offset)
        nearer = -1
        for i in range(vehicles):
            here = offset[i]
            low, high = reach(occupied ^ masks[i, here], masks, i, here)
            for to in range(low, high + 1):
                key = keys[row] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                other = table[_slot(table, keys, key)]
                if distance[other] == distance[row] - 1:
                    nearer = other
                    break
            if nearer >= 0:
                moved[i] = True
                break
        row = nearer
    return moved


@compiled
def has_idle_vehicle(wall_mask, masks, keys, distance, table, row, node_limit):
    """Whether some vehicle could be taken off a board without making its solution shorter.

    A vehicle that an optimal solution moves is never idle: without it, that solution is shorter.
    """
    moved = moved_on_the_way(wall_mask, masks, keys, distance, table, row)
    offset = np.empty(masks.shape[0], np.int64)
    unpack(keys[row], bits_per_vehicle(masks.shape[1] - 1), offset)
    for i in range(1, masks.shape[0]):
        if moved[i]:
            continue
        kept = np.arange(masks.shape[0]) != i
        _, moves, _ = solve_kernel(wall_mask, masks[kept], offset[kept], node_limit)
        if moves.shape[0] == distance[row]:
            return True
    return False
