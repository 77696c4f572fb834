"""The search for move-optimal solutions of Boxoban, compiled.

A* over the states right after a push. From such a state every push that the player can walk to is one
edge, which costs the walk and the push; so the search visits a state per push, not per step, and the
shortest path is still the shortest in moves. The estimate is the cheapest assignment of boxes to targets,
counted in pushes. States from which some box can never reach a target are dropped. Of several solutions
with the fewest moves it finds one with the fewest pushes, so that the pushes that remain are a property
of a state.
"""

import numpy as np

from looped_actor.compiled import compiled
from looped_actor.games.boxoban import Cell
from looped_actor.solvers.table import EMPTY, empty_table, find, grown, rehashed

UNREACHABLE = 30_000
_WALL, _BOX, _TARGET, _PLAYER = int(Cell.WALL), int(Cell.BOX), int(Cell.TARGET), int(Cell.PLAYER)
_MOST_ASSIGNED = 8  # boxes for which the assignment is worth its 2^n n operations


@compiled
def _neighbours(cells):
    """Of each cell the next one up, right, down, left, or -1 where there is a wall."""
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
def _push_distances(neighbours, targets):
    """Pushes from each cell to each target, as if there were no other box."""
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
def _estimate(boxes, distances, best):
    """The least number of pushes in which all boxes could reach a target each, alone on the board."""
    count = boxes.shape[0]
    if count > _MOST_ASSIGNED:
        total = 0
        for b in range(count):
            nearest = UNREACHABLE
            for t in range(count):
                nearest = min(nearest, distances[t, boxes[b]])
            if nearest == UNREACHABLE:
                return UNREACHABLE
            total += nearest
        return total
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
def _is_stuck(boxes, box_at, is_target, neighbours, live, frozen):
    """Whether a box off target can never be pushed again.

    The largest set of boxes that hold each other: drop every box that has a free axis, given the others
    that are left. An axis is not free if a wall or a box of the set is on one of its sides, or if both
    sides are cells from which a box cannot be brought to a target.
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
def _walk(player, box_at, neighbours, distance, queue):
    """Steps to each cell without pushing, -1 where there is no way."""
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
def pushes_kernel(cells):
    """Whether each push, `4 x box + direction`, can be made at once: after a walk, and without collision."""
    flat = cells.ravel()
    neighbours = _neighbours(cells)
    boxes, box_at = np.flatnonzero(flat & _BOX), (flat & _BOX) != 0
    walked, queue = np.empty(flat.shape[0], np.int16), np.empty(flat.shape[0], np.int16)
    _walk(np.flatnonzero(flat & _PLAYER)[0], box_at, neighbours, walked, queue)
    possible = np.zeros(4 * boxes.shape[0], np.bool_)
    for b in range(boxes.shape[0]):
        for direction in range(4):
            to, behind = neighbours[boxes[b], direction], neighbours[boxes[b], (direction + 2) % 4]
            possible[4 * b + direction] = to >= 0 and behind >= 0 and not box_at[to] and walked[behind] >= 0
    return possible


@compiled
def _pack(boxes, player, bits, key):
    key[:] = 0
    per_word = 64 // bits
    for i in range(boxes.shape[0] + 1):
        value = player if i == boxes.shape[0] else boxes[i]
        key[i // per_word] |= np.uint64(value) << np.uint64(i % per_word * bits)


@compiled
def _unpack(key, bits, boxes):
    """Fill in the boxes, and return the player."""
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


@compiled
def _search(neighbours, distances, is_target, start_boxes, start_player, node_limit):
    """A*. Returns the status, the states, and of each its parent and the push (cell x 4 + direction).

    Costs are moves, then pushes. The queue is ordered by moves alone, so a state can be reached again with as
    many moves and fewer pushes after it was looked at; and of solved states the first need not be the best.
    """
    cells, count = neighbours.shape[0], start_boxes.shape[0]
    bits = 8 if cells <= 256 else 16
    words = (count + 1 + 64 // bits - 1) // (64 // bits)
    live = np.zeros(cells, np.bool_)
    for t in range(count):
        for cell in range(cells):
            live[cell] |= distances[t, cell] != UNREACHABLE

    # States, by number.
    keys = np.empty((1024, words), np.uint64)
    cost = np.empty(1024, np.int32)
    pushes = np.empty(1024, np.int32)
    parent = np.empty(1024, np.int32)
    push = np.empty(1024, np.int32)
    closed = np.empty(1024, np.bool_)
    table = empty_table(4096)
    # Entries of the queue: a linked list for each total of cost and estimate.
    bucket = np.full(256, -1, np.int32)
    entry_next = np.empty(1024, np.int32)
    entry_state = np.empty(1024, np.int32)

    boxes = np.empty(count, np.int64)
    moved = np.empty(count, np.int64)
    key = np.empty(words, np.uint64)
    best = np.empty(1 << min(count, _MOST_ASSIGNED), np.int64)
    box_at = np.zeros(cells, np.bool_)
    frozen = np.zeros(cells, np.bool_)
    walked = np.empty(cells, np.int16)
    queue = np.empty(cells, np.int16)

    states, entries, goal, status = 0, 0, -1, 1
    boxes[:] = np.sort(start_boxes)
    estimate = _estimate(boxes, distances, best)
    if estimate < UNREACHABLE:
        _pack(boxes, start_player, bits, keys[0])
        table[find(table, keys, keys[0])] = 0
        cost[0], pushes[0], parent[0], push[0], closed[0] = 0, 0, -1, -1, False
        while estimate >= bucket.shape[0]:
            bucket = np.concatenate((bucket, np.full(bucket.shape[0], -1, np.int32)))
        entry_state[0], entry_next[0] = 0, -1
        bucket[estimate] = 0
        states, entries = 1, 1

    total = estimate
    while total < bucket.shape[0]:
        entry = bucket[total]
        if entry < 0:
            if goal >= 0:
                break
            total += 1
            continue
        bucket[total] = entry_next[entry]
        state = entry_state[entry]
        if closed[state]:
            continue
        closed[state] = True
        # Once a solution is known, only pushes without a step between them can lead to another as short:
        # as many as the estimate, which is what the total leaves.
        if goal >= 0 and pushes[state] + total - cost[state] >= pushes[goal]:
            continue
        player = _unpack(keys[state], bits, boxes)
        done = True
        for b in range(count):
            done &= is_target[boxes[b]]
        if done:
            goal = state
            continue
        for b in range(count):
            box_at[boxes[b]] = True
        _walk(player, box_at, neighbours, walked, queue)
        for b in range(count):
            box = boxes[b]
            for direction in range(4):
                to, behind = neighbours[box, direction], neighbours[box, (direction + 2) % 4]
                if to < 0 or behind < 0 or walked[behind] < 0 or box_at[to] or not live[to]:
                    continue
                # Sorted, so that equal positions are equal keys.
                moved[:] = boxes
                at = b
                while at + 1 < count and moved[at + 1] < to:
                    moved[at] = moved[at + 1]
                    at += 1
                while at > 0 and moved[at - 1] > to:
                    moved[at] = moved[at - 1]
                    at -= 1
                moved[at] = to
                new_cost = cost[state] + walked[behind] + 1
                _pack(moved, box, bits, key)
                slot = find(table, keys, key)
                known = table[slot]
                if known != EMPTY and (
                    cost[known] < new_cost or (cost[known] == new_cost and pushes[known] <= pushes[state] + 1)
                ):
                    continue
                if known == EMPTY:
                    box_at[box], box_at[to] = False, True
                    lost = _is_stuck(moved, box_at, is_target, neighbours, live, frozen)
                    box_at[box], box_at[to] = True, False
                    if lost:
                        continue
                estimate = _estimate(moved, distances, best)
                if estimate >= UNREACHABLE:
                    continue
                if known == EMPTY:
                    if states >= node_limit:
                        status = 2
                        break
                    if states == keys.shape[0]:
                        keys, cost, parent = (
                            grown(keys, 2 * states),
                            grown(cost, 2 * states),
                            grown(parent, 2 * states),
                        )
                        push, closed = grown(push, 2 * states), grown(closed, 2 * states)
                        pushes = grown(pushes, 2 * states)
                    known = states
                    states += 1
                    keys[known] = key
                    table[slot] = known
                    if 2 * states > table.shape[0]:
                        table = rehashed(keys, states, 4 * table.shape[0])
                cost[known], pushes[known], closed[known] = new_cost, pushes[state] + 1, False
                parent[known], push[known] = state, box * 4 + direction
                rank = new_cost + estimate
                while rank >= bucket.shape[0]:
                    bucket = np.concatenate((bucket, np.full(bucket.shape[0], -1, np.int32)))
                if entries == entry_next.shape[0]:
                    entry_next, entry_state = grown(entry_next, 2 * entries), grown(entry_state, 2 * entries)
                entry_state[entries], entry_next[entries] = known, bucket[rank]
                bucket[rank] = entries
                entries += 1
            if status == 2:
                break
        for b in range(count):
            box_at[boxes[b]] = False
        if status == 2:
            break
    if goal >= 0:
        status = 0
    return status, goal, states, parent, push, cost


@compiled
def solve_kernel(cells, node_limit):
    """Status, moves, pushes as (box, direction), and states stored."""
    flat = cells.ravel()
    neighbours = _neighbours(cells)
    start_boxes = np.flatnonzero(flat & _BOX)
    player = np.flatnonzero(flat & _PLAYER)[0]
    targets = np.flatnonzero(flat & _TARGET)
    is_target = (flat & _TARGET) != 0
    distances = _push_distances(neighbours, targets)
    status, goal, states, parent, push, cost = _search(
        neighbours, distances, is_target, start_boxes, player, node_limit
    )
    if status != 0:
        return status, np.empty(0, np.uint8), np.empty((0, 2), np.uint8), states

    length = 0
    state = goal
    while parent[state] >= 0:
        length += 1
        state = parent[state]
    pushes = np.empty((length, 2), np.uint8)
    order = np.empty(length, np.int64)
    state = goal
    for i in range(length - 1, -1, -1):
        order[i] = push[state]
        state = parent[state]

    moves = np.empty(cost[goal], np.uint8)
    boxes = start_boxes.copy()
    box_at = np.zeros(flat.shape[0], np.bool_)
    for box in boxes:
        box_at[box] = True
    walked = np.empty(flat.shape[0], np.int16)
    queue = np.empty(flat.shape[0], np.int16)
    made = 0
    for i in range(length):
        box, direction = order[i] // 4, order[i] % 4
        behind = neighbours[box, (direction + 2) % 4]
        _walk(player, box_at, neighbours, walked, queue)
        # From behind the box back to the player: each step lowers the distance by one.
        made += walked[behind]
        at, cell = made, behind
        while cell != player:
            for back in range(4):
                nearer = neighbours[cell, back]
                if nearer >= 0 and walked[nearer] == walked[cell] - 1 and not box_at[nearer]:
                    at -= 1
                    moves[at] = (back + 2) % 4
                    cell = nearer
                    break
        moves[made] = direction
        made += 1
        for b in range(boxes.shape[0]):
            if boxes[b] == box:
                pushes[i, 0], pushes[i, 1] = b, direction
                boxes[b] = neighbours[box, direction]
        box_at[box], box_at[neighbours[box, direction]] = False, True
        player = box
    return status, moves, pushes, states
