"""Facts about a Boxoban board that need no search, compiled: distances, estimates, deadlocks, walks.

Cells are numbered row by row. Boxes are an array of their cells, sorted. A push is numbered `4 x box +
direction`, where the box is its index in that array.
"""

import numpy as np

from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.utils.compiled import compiled

UNREACHABLE = 30_000
"""Distance to a target that a box cannot reach."""
MAX_ASSIGNED = 8
"""Most boxes for which the cheapest assignment is worth its 2^n n operations."""
_WALL, _BOX, _PLAYER = int(Cell.WALL), int(Cell.BOX), int(Cell.PLAYER)


@compiled
def find_neighbours(cells):
    """Return the neighbours of each cell, shape [cells, 4]: up, right, down, left; -1 for a wall."""
    height, width = cells.shape
    result = np.full((height * width, 4), -1, np.int16)
    for row in range(height):
        for column in range(width):
            if cells[row, column] & _WALL:
                continue
            for direction in range(4):
                r = row + (direction == 2) - (direction == 0)
                c = column + (direction == 1) - (direction == 3)
                if 0 <= r < height and 0 <= c < width and not cells[r, c] & _WALL:
                    result[row * width + column, direction] = r * width + c
    return result


@compiled
def count_pushes(neighbours, targets):
    """Return the pushes to each target from each cell, shape [targets, cells], if there were no other box."""
    distances = np.full((targets.shape[0], neighbours.shape[0]), UNREACHABLE, np.int16)
    queue = np.empty(neighbours.shape[0], np.int16)
    for t in range(targets.shape[0]):
        distances[t, targets[t]] = 0
        queue[0], head, tail = targets[t], 0, 1
        while head < tail:
            cell = queue[head]
            head += 1
            for direction in range(4):
                before = neighbours[cell, direction]
                if before < 0 or neighbours[before, direction] < 0:  # no room for box or player
                    continue
                if distances[t, before] == UNREACHABLE:
                    distances[t, before] = distances[t, cell] + 1
                    queue[tail] = before
                    tail += 1
    return distances


@compiled
def estimate_pushes(boxes, distances, best):
    """Return a lower bound of the pushes to a solved board.

    It is the cheapest assignment of targets to boxes, as if each were alone on the board. With more than
    `MAX_ASSIGNED` boxes, each is counted to its nearest target. `best` has room for 2^boxes numbers.
    """
    count = boxes.shape[0]
    if count > MAX_ASSIGNED:
        total = 0
        for b in range(count):
            nearest = UNREACHABLE
            for t in range(count):
                nearest = min(nearest, distances[t, boxes[b]])
            if nearest == UNREACHABLE:
                return UNREACHABLE
            total += nearest
        return min(total, UNREACHABLE - 1)
    # best[set] is the cheapest way to give the first |set| boxes the targets of that set.
    best[0] = 0
    for chosen in range(1, 1 << count):
        size = 0
        for t in range(count):
            size += (chosen >> t) & 1
        box, cheapest = boxes[size - 1], UNREACHABLE
        for t in range(count):
            if chosen >> t & 1:
                cheapest = min(cheapest, best[chosen ^ (1 << t)] + distances[t, box])
        best[chosen] = cheapest
    return best[(1 << count) - 1]


@compiled
def is_stuck(boxes, box_at, is_target, neighbours, live, frozen):
    """Return whether a box off target can never be pushed again.

    This finds the largest set of boxes that hold each other: it drops every box that has a free axis, given
    the others that are left. An axis is not free if a wall or a box of the set is on one of its sides, or if
    both sides are cells from which a box cannot be brought to a target.
    """
    for box in boxes:
        frozen[box] = True
    changed = True
    while changed:
        changed = False
        for box in boxes:
            if not frozen[box]:
                continue
            for direction in range(2):
                one, other = neighbours[box, direction], neighbours[box, direction + 2]
                held = (
                    one < 0 or other < 0 or (box_at[one] and frozen[one]) or (box_at[other] and frozen[other])
                )
                if not held and (live[one] or live[other]):
                    frozen[box] = False
                    changed = True
                    break
    stuck = False
    for box in boxes:
        if frozen[box] and not is_target[box]:
            stuck = True
        frozen[box] = False
    return stuck


@compiled
def walk(player, box_at, neighbours, distance, queue):
    """Write into `distance` the steps to each cell without pushing, or -1 if there is no way."""
    distance[:] = -1
    distance[player] = 0
    queue[0], head, tail = player, 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        for direction in range(4):
            further = neighbours[cell, direction]
            if further >= 0 and distance[further] < 0 and not box_at[further]:
                distance[further] = distance[cell] + 1
                queue[tail] = further
                tail += 1


@compiled
def find_possible_pushes(cells):
    """Return whether each push is possible now, perhaps after a walk."""
    flat = cells.ravel()
    neighbours = find_neighbours(cells)
    boxes, box_at = np.flatnonzero(flat & _BOX), (flat & _BOX) != 0
    walked, queue = np.empty(flat.shape[0], np.int16), np.empty(flat.shape[0], np.int16)
    walk(np.flatnonzero(flat & _PLAYER)[0], box_at, neighbours, walked, queue)
    possible = np.zeros(4 * boxes.shape[0], np.bool_)
    for b in range(boxes.shape[0]):
        for direction in range(4):
            to, behind = neighbours[boxes[b], direction], neighbours[boxes[b], (direction + 2) % 4]
            possible[4 * b + direction] = to >= 0 and behind >= 0 and not box_at[to] and walked[behind] >= 0
    return possible


@compiled
def pack(boxes, player, bits, key):
    """Write boxes and player into the 64-bit words of a key, `bits` for each of them."""
    key[:] = 0
    per_word = 64 // bits
    for i in range(boxes.shape[0] + 1):
        value = player if i == boxes.shape[0] else boxes[i]
        key[i // per_word] |= np.uint64(value) << np.uint64(i % per_word * bits)


@compiled
def unpack(key, bits, boxes):
    """Write the boxes of a key into `boxes`, and return the player."""
    per_word = 64 // bits
    mask = np.uint64((1 << bits) - 1)
    player = 0
    for i in range(boxes.shape[0] + 1):
        value = np.int64((key[i // per_word] >> np.uint64(i % per_word * bits)) & mask)
        if i == boxes.shape[0]:
            player = value
        else:
            boxes[i] = value
    return player
