"""The search for move-optimal solutions of Boxoban, compiled.

A* over the states right after a push. From such a state every push that the player can walk to is one
edge, which costs the walk and the push; so the search visits a state per push, not per step, and the
shortest path is still the shortest in moves. The estimate is the cheapest assignment of boxes to targets,
counted in pushes. States from which some box can never reach a target are dropped. Of several solutions
with the fewest moves it finds one with the fewest pushes, so that the pushes that remain are a property
of a state.
"""

from typing import Any, NamedTuple

import numpy as np

from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.boxoban.solver_board import (
    MOST_ASSIGNED,
    UNREACHABLE,
    estimate_of,
    is_stuck,
    neighbours_of,
    pack,
    push_distances,
    unpack,
    walk,
)
from looped_actor.puzzles.hash_table import EMPTY, empty_table, find, grown, rehashed
from looped_actor.utils.compiled import compiled

_BOX, _TARGET, _PLAYER = int(Cell.BOX), int(Cell.TARGET), int(Cell.PLAYER)


class _Board(NamedTuple):
    """What does not change."""

    neighbours: Any
    distances: Any
    """Pushes to each target from each cell."""
    is_target: Any
    live: Any
    """Cells from which a box can reach some target."""


class _Room(NamedTuple):
    """Arrays that are written over and over."""

    boxes: Any
    moved: Any
    key: Any
    best: Any
    box_at: Any
    frozen: Any
    walked: Any
    queue: Any


class _States(NamedTuple):
    """States by number: their keys, costs in moves and pushes, where each came from, and by which push."""

    keys: Any
    cost: Any
    pushes: Any
    parent: Any
    push: Any
    closed: Any
    table: Any
    """Where each key is."""


class _Queue(NamedTuple):
    """A linked list of entries for each total of cost and estimate."""

    bucket: Any
    next: Any
    state: Any


@compiled
def _larger_queue(queue, rank):
    """A queue with room for such a total, and for as many entries again."""
    bucket = queue.bucket
    while rank >= bucket.shape[0]:
        bucket = np.concatenate((bucket, np.full(bucket.shape[0], -1, np.int32)))
    size = 2 * queue.next.shape[0]
    return _Queue(bucket, grown(queue.next, size), grown(queue.state, size))


@compiled
def _larger_states(states, count):
    """The states with room for as many again."""
    keys, cost, pushes, parent, push, closed, table = states
    size = 2 * count
    keys, cost, pushes, parent = (
        grown(keys, size),
        grown(cost, size),
        grown(pushes, size),
        grown(parent, size),
    )
    table = rehashed(keys, count, 4 * size)
    return _States(keys, cost, pushes, parent, grown(push, size), grown(closed, size), table)


@compiled
def all_at(places, boxes):
    """Whether all boxes are at such places."""
    at = True
    for box in boxes:
        at &= places[box]
    return at


@compiled
def mark(box_at, boxes, there):
    """Put all boxes onto the board, or take them off."""
    for box in boxes:
        box_at[box] = there


@compiled
def with_moved(boxes, b, to, moved):
    """All boxes after a push of one, sorted, so that equal positions are equal keys; and its new place."""
    moved[:] = boxes
    at = b
    while at + 1 < boxes.shape[0] and moved[at + 1] < to:
        moved[at] = moved[at + 1]
        at += 1
    while at > 0 and moved[at - 1] > to:
        moved[at] = moved[at - 1]
        at -= 1
    moved[at] = to
    return at


@compiled
def _expanded(board, room, bits, state, node_limit, states, count, queue, entries):
    """States and queue with all that one push from a state leads to; fewer where the limit is met."""
    boxes, moved, key, box_at, walked = room.boxes, room.moved, room.key, room.box_at, room.walked
    for b in range(boxes.shape[0]):
        box = boxes[b]
        for direction in range(4):
            to, behind = board.neighbours[box, direction], board.neighbours[box, (direction + 2) % 4]
            if to < 0 or behind < 0 or walked[behind] < 0 or box_at[to] or not board.live[to]:
                continue
            with_moved(boxes, b, to, moved)
            cost, pushes = states.cost[state] + walked[behind] + 1, states.pushes[state] + 1
            pack(moved, box, bits, key)
            slot = find(states.table, states.keys, key)
            known = states.table[slot]
            if known != EMPTY and (
                states.cost[known] < cost or (states.cost[known] == cost and states.pushes[known] <= pushes)
            ):
                continue
            if known == EMPTY:
                box_at[box], box_at[to] = False, True
                lost = is_stuck(moved, box_at, board.is_target, board.neighbours, board.live, room.frozen)
                box_at[box], box_at[to] = True, False
                if lost:
                    continue
            estimate = estimate_of(moved, board.distances, room.best)
            if estimate >= UNREACHABLE:
                continue
            if known == EMPTY:
                if count >= node_limit:
                    return states, count, queue, entries, False
                if count == states.keys.shape[0]:
                    states = _larger_states(states, count)
                    slot = find(states.table, states.keys, key)
                known = count
                count += 1
                states.keys[known] = key
                states.table[slot] = known
            states.cost[known], states.pushes[known], states.closed[known] = cost, pushes, False
            states.parent[known], states.push[known] = state, box * 4 + direction
            rank = cost + estimate
            if rank >= queue.bucket.shape[0] or entries == queue.next.shape[0]:
                queue = _larger_queue(queue, rank)
            queue.state[entries], queue.next[entries] = known, queue.bucket[rank]
            queue.bucket[rank] = entries
            entries += 1
    return states, count, queue, entries, True


@compiled
def _begun(board, room, bits, words, start_player):
    """States and queue with the first state, and its estimate."""
    states = _States(
        np.empty((1024, words), np.uint64),
        np.empty(1024, np.int32),
        np.empty(1024, np.int32),
        np.empty(1024, np.int32),
        np.empty(1024, np.int32),
        np.empty(1024, np.bool_),
        empty_table(4096),
    )
    queue = _Queue(np.full(256, -1, np.int32), np.empty(1024, np.int32), np.empty(1024, np.int32))
    estimate = estimate_of(room.boxes, board.distances, room.best)
    if estimate < UNREACHABLE:
        pack(room.boxes, start_player, bits, states.keys[0])
        states.table[find(states.table, states.keys, states.keys[0])] = 0
        states.cost[0], states.pushes[0], states.closed[0] = 0, 0, False
        states.parent[0], states.push[0] = -1, -1
        if estimate >= queue.bucket.shape[0]:
            queue = _larger_queue(queue, estimate)
        queue.state[0], queue.next[0] = 0, -1
        queue.bucket[estimate] = 0
    return states, queue, estimate


@compiled
def board_of(cells):
    """What does not change on a board."""
    flat = cells.ravel()
    neighbours, targets = neighbours_of(cells), np.flatnonzero(flat & _TARGET)
    distances = push_distances(neighbours, targets)
    return _Board(neighbours, distances, (flat & _TARGET) != 0, (distances != UNREACHABLE).sum(axis=0) > 0)


@compiled
def room_of(cells):
    """Arrays for a search on a board, and the boxes at its start."""
    flat = cells.ravel()
    boxes, size = np.flatnonzero(flat & _BOX), flat.shape[0]
    return _Room(
        boxes,
        np.empty(boxes.shape[0], np.int64),
        np.empty(_words(size, boxes.shape[0]), np.uint64),
        np.empty(1 << min(boxes.shape[0], MOST_ASSIGNED), np.int64),
        np.zeros(size, np.bool_),
        np.zeros(size, np.bool_),
        np.empty(size, np.int16),
        np.empty(size, np.int16),
    )


@compiled
def bits_of(cells):
    """In which a cell's number is kept."""
    return 8 if cells <= 256 else 16


@compiled
def _words(cells, boxes):
    """Of a key."""
    bits = bits_of(cells)
    return (boxes + 1 + 64 // bits - 1) // (64 // bits)


@compiled
def search(board, room, start_player, node_limit, all_ways):
    """A*. Returns the status, the states, and of each its parent and the push (cell x 4 + direction).

    Costs are moves, then pushes. The queue is ordered by moves alone, so a state can be reached again with as
    many moves and fewer pushes after it was looked at; and of solved states the first need not be the best.
    With `all_ways` every state of every solution with the fewest moves is looked at, whatever its pushes.
    """
    bits = bits_of(board.neighbours.shape[0])
    states, queue, total = _begun(board, room, bits, room.key.shape[0], start_player)
    count = entries = 1 if total < UNREACHABLE else 0
    goal, within = -1, True
    while within and total < queue.bucket.shape[0]:
        entry = queue.bucket[total]
        if entry < 0:
            if goal >= 0:
                break
            total += 1
            continue
        queue.bucket[total] = queue.next[entry]
        state = queue.state[entry]
        if states.closed[state]:
            continue
        states.closed[state] = True
        # Once a solution is known, only pushes without a step between them can lead to another as short:
        # as many as the estimate, which is what the total leaves.
        fewest = goal >= 0 and not all_ways
        if fewest and states.pushes[state] + total - states.cost[state] >= states.pushes[goal]:
            continue
        player = unpack(states.keys[state], bits, room.boxes)
        if all_at(board.is_target, room.boxes):
            goal = state
            continue
        mark(room.box_at, room.boxes, True)
        walk(player, room.box_at, board.neighbours, room.walked, room.queue)
        states, count, queue, entries, within = _expanded(
            board, room, bits, state, node_limit, states, count, queue, entries
        )
        mark(room.box_at, room.boxes, False)
    solved = goal >= 0 and (within or not all_ways)
    status = 0 if solved else (1 if within else 2)
    return status, goal, count, states


@compiled
def solve_kernel(cells, node_limit):
    """Status, moves, pushes as (box, direction), and states stored."""
    flat = cells.ravel()
    start_boxes, player = np.flatnonzero(flat & _BOX), np.flatnonzero(flat & _PLAYER)[0]
    board = board_of(cells)
    neighbours = board.neighbours
    status, goal, count, states = search(board, room_of(cells), player, node_limit, False)
    if status != 0:
        return status, np.empty(0, np.uint8), np.empty((0, 2), np.uint8), count
    parent, push, cost = states.parent, states.push, states.cost

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
        walk(player, box_at, neighbours, walked, queue)
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
    return status, moves, pushes, count
