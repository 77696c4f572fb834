"""Searches of Rush Hour boards, compiled.

Vehicles never leave their line, so the offsets of all vehicles describe a board. They are packed into one
64-bit key, and the cells of a vehicle are one 64-bit mask. Searches are breadth first. Every move can be
taken back, so distances from the solved boards are the optimal lengths of a whole cluster. Searches take a
board as `masks_of` returns it: `wall_mask`, and `masks` of each vehicle, the red car first, at each of its
offsets.
"""

import numpy as np

from looped_actor.puzzles.hash_table import EMPTY, empty_table, grow_rows
from looped_actor.puzzles.rush_hour.rules import Cell
from looped_actor.utils.compiled import compiled

NO_LIMIT = 1 << 31
"""More boards than any cluster has."""
_RED, _WALL = int(Cell.RED), int(Cell.WALL)
_HORIZONTAL, _VERTICAL = int(Cell.HORIZONTAL), int(Cell.VERTICAL)
_LINK_RIGHT, _LINK_DOWN = int(Cell.LINK_RIGHT), int(Cell.LINK_DOWN)


@compiled
def bits_per_vehicle(longest_line):
    """Return the bits that any offset on a line takes in a key."""
    bits = 1
    while 1 << bits < longest_line:
        bits += 1
    return bits


@compiled
def pack(offset, bits):
    """Return the key of some offsets."""
    key = np.uint64(0)
    for i in range(offset.shape[0]):
        key |= np.uint64(offset[i]) << np.uint64(i * bits)
    return key


@compiled
def unpack(key, bits, offset):
    """Write the offsets of a key."""
    mask = np.uint64((1 << bits) - 1)
    for i in range(offset.shape[0]):
        offset[i] = np.int64((key >> np.uint64(i * bits)) & mask)


@compiled
def vehicles_of(cells):
    """Return the walls, and of each vehicle whether it is horizontal, its line, length and offset.

    The order is one that no move changes: the red car, rows from the top, columns from the left; vehicles of
    a line in the order along it.
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
def masks_of(walls, horizontal, line, length):
    """Return the walls as a mask, and the mask of each vehicle at each offset, shape [vehicles, offsets].

    A cell is a bit, row by row. At offsets beyond its line, the mask of a vehicle has all bits set.
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
def is_blocked(mask, others):
    """Return whether a vehicle cannot be on these cells: they are taken, or beyond its line."""
    return mask & others != 0 or mask == ~np.uint64(0)


@compiled
def reach(others, masks, i, at):
    """Return the first and last offset that vehicle `i` can slide to.

    `others` is the mask of all cells that are taken by walls and other vehicles.
    """
    low = high = at
    while low > 0 and not is_blocked(masks[i, low - 1], others):
        low -= 1
    while not is_blocked(masks[i, high + 1], others):
        high += 1
    return low, high


@compiled
def _find_slot(table, keys, key):
    """Return the slot of a key; of a new key, the slot to put it into. See `hash_table`."""
    mask = np.uint64(table.shape[0] - 1)
    mixed = key * np.uint64(0x9E3779B97F4A7C15)
    slot = (mixed ^ (mixed >> np.uint64(32))) & mask
    while table[slot] != EMPTY and keys[table[slot]] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


@compiled
def _rehash(keys, count, capacity):
    table = empty_table(capacity)
    for row in range(count):
        table[_find_slot(table, keys, keys[row])] = row
    return table


@compiled
def exit_offset(masks):
    """Return the red car's offset at the exit: the last on its line."""
    offset = 0
    while masks[0, offset + 1] != ~np.uint64(0):
        offset += 1
    return offset


@compiled
def occupied_cells(wall_mask, masks, offset):
    """Return the mask of all cells of walls and vehicles."""
    occupied = wall_mask
    for i in range(offset.shape[0]):
        occupied |= masks[i, offset[i]]
    return occupied


@compiled
def solve_kernel(wall_mask, masks, start, node_limit):
    """Search until a board is solved. Return the status, the moves, and the number of boards stored."""
    vehicles, bits = start.shape[0], bits_per_vehicle(masks.shape[1] - 1)
    solved_at = exit_offset(masks)
    keys = np.empty(256, np.uint64)
    parent = np.empty(256, np.int32)
    moved = np.empty((256, 2), np.int8)
    table = empty_table(1024)
    keys[0], parent[0] = pack(start, bits), -1
    table[_find_slot(table, keys, keys[0])] = 0
    count, head, goal, status = 1, 0, -1, 1
    if start[0] == solved_at:
        goal = 0
    offset = np.empty(vehicles, np.int64)
    while head < count and goal < 0 and status == 1:
        unpack(keys[head], bits, offset)
        occupied = occupied_cells(wall_mask, masks, offset)
        for i in range(vehicles):
            here = offset[i]
            low, high = reach(occupied ^ masks[i, here], masks, i, here)
            for to in range(low, high + 1):
                if to == here:
                    continue
                key = keys[head] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                slot = _find_slot(table, keys, key)
                if table[slot] != EMPTY:
                    continue
                if count >= node_limit:
                    status = 2
                    break
                if count == keys.shape[0]:
                    keys, parent = grow_rows(keys, 2 * count), grow_rows(parent, 2 * count)
                    moved = grow_rows(moved, 2 * count)
                keys[count], parent[count] = key, head
                moved[count, 0], moved[count, 1] = i, to - here
                table[slot] = count
                count += 1
                if 2 * count > table.shape[0]:
                    table = _rehash(keys, count, 4 * table.shape[0])
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
    """Return all boards that can be reached: keys, number, whether all were found, and the table.

    `only_from_least` gives up at a board with a smaller key than the start's: so only one of the boards of a
    cluster explores it to the end.
    """
    vehicles, bits = start.shape[0], bits_per_vehicle(masks.shape[1] - 1)
    keys = np.empty(64, np.uint64)
    table = empty_table(256)
    keys[0] = pack(start, bits)
    table[_find_slot(table, keys, keys[0])] = 0
    count, head = 1, 0
    offset = np.empty(vehicles, np.int64)
    while head < count:
        unpack(keys[head], bits, offset)
        occupied = occupied_cells(wall_mask, masks, offset)
        for i in range(vehicles):
            here = offset[i]
            others = occupied ^ masks[i, here]
            # One cell at a time reaches every board too, with fewer lookups than slides of any distance.
            for to in (here - 1, here + 1):
                if to < 0 or is_blocked(masks[i, to], others):
                    continue
                key = keys[head] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                slot = _find_slot(table, keys, key)
                if table[slot] == EMPTY:
                    if count >= node_limit or (only_from_least and key < keys[0]):
                        return keys, count, False, table
                    if count == keys.shape[0]:
                        keys = grow_rows(keys, 2 * count)
                    keys[count] = key
                    table[slot] = count
                    count += 1
                    if 2 * count > table.shape[0]:
                        table = _rehash(keys, count, 4 * table.shape[0])
        head += 1
    return keys, count, True, table


@compiled
def distances_to_solved(wall_mask, masks, keys, count, table, by_cells=False):
    """Return the moves from each board of a cluster to the nearest solved one, or -1 if there is none.

    With `by_cells`, a move slides a vehicle by one cell only.
    """
    vehicles, bits = masks.shape[0], bits_per_vehicle(masks.shape[1] - 1)
    solved_at, red = np.uint64(exit_offset(masks)), np.uint64((1 << bits) - 1)
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
        occupied = occupied_cells(wall_mask, masks, offset)
        for i in range(vehicles):
            here = offset[i]
            low, high = reach(occupied ^ masks[i, here], masks, i, here)
            if by_cells:
                low, high = max(low, here - 1), min(high, here + 1)
            for to in range(low, high + 1):
                if to == here:
                    continue
                key = keys[row] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                other = table[_find_slot(table, keys, key)]
                if other != EMPTY and distance[other] < 0:
                    distance[other] = distance[row] + 1
                    queue[tail] = other
                    tail += 1
    return distance


@compiled
def find_board(table, keys, key):
    """Return the number of a board in a cluster, or -1 if the cluster does not have it."""
    return table[_find_slot(table, keys, key)]


@compiled
def find_hardest(masks, horizontal, keys, distance):
    """Return the board farthest from solved.

    Of several, it is the one whose masks, rows before columns, are least.
    """
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
def find_moved_vehicles(wall_mask, masks, keys, distance, table, row):
    """Return which vehicles an optimal solution of a board moves.

    The solution goes down the distances of the cluster.
    """
    vehicles, bits = masks.shape[0], bits_per_vehicle(masks.shape[1] - 1)
    moved, offset = np.zeros(vehicles, np.bool_), np.empty(vehicles, np.int64)
    while distance[row] > 0:
        unpack(keys[row], bits, offset)
        occupied = occupied_cells(wall_mask, masks, offset)
        nearer = -1
        for i in range(vehicles):
            here = offset[i]
            low, high = reach(occupied ^ masks[i, here], masks, i, here)
            for to in range(low, high + 1):
                key = keys[row] ^ (np.uint64(here ^ to) << np.uint64(i * bits))
                other = table[_find_slot(table, keys, key)]
                if distance[other] == distance[row] - 1:
                    nearer = other
                    break
            if nearer >= 0:
                moved[i] = True
                break
        row = nearer
    return moved


@compiled
def has_idle_vehicle(wall_mask, masks, keys, distance, table, row):
    """Return whether some vehicle can be taken off a board without making its solution shorter.

    A vehicle that an optimal solution moves is never idle: without it, that solution is shorter.
    """
    moved = find_moved_vehicles(wall_mask, masks, keys, distance, table, row)
    offset = np.empty(masks.shape[0], np.int64)
    unpack(keys[row], bits_per_vehicle(masks.shape[1] - 1), offset)
    for i in range(1, masks.shape[0]):
        if moved[i]:
            continue
        kept = np.arange(masks.shape[0]) != i
        _, moves, _ = solve_kernel(wall_mask, masks[kept], offset[kept], NO_LIMIT)
        if moves.shape[0] == distance[row]:
            return True
    return False
