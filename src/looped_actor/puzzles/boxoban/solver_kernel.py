"""The search for move-optimal solutions of Boxoban, compiled.

A* over the states right after a push. From such a state every push that the player can walk to is one edge,
which costs the walk and the push. So there is a state per push, not per step, and the shortest path is still
the shortest in moves. The estimate is the cheapest assignment of boxes to targets, counted in pushes. States
from which some box can never reach a target are dropped. Of several solutions with the fewest moves the
search finds one with the fewest pushes: so the number of pushes that remain is a property of a state.
"""

from typing import NamedTuple

import numpy as np

from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.boxoban.solver_board import (
    MAX_ASSIGNED,
    UNREACHABLE,
    count_pushes,
    estimate_pushes,
    find_neighbours,
    is_stuck,
    pack,
    unpack,
    walk,
)
from looped_actor.puzzles.hash_table import EMPTY, empty_table, find_slot, grow_rows, rehash
from looped_actor.utils.compiled import compiled

_BOX, _TARGET, _PLAYER = int(Cell.BOX), int(Cell.TARGET), int(Cell.PLAYER)


class SearchBoard(NamedTuple):
    """Facts about a board that no move changes."""

    neighbours: np.ndarray
    distances: np.ndarray
    """Pushes to each target from each cell."""
    is_target: np.ndarray
    live: np.ndarray
    """Mask of the cells from which a box can reach some target."""


class Workspace(NamedTuple):
    """Arrays that a search writes over and over."""

    boxes: np.ndarray
    """Cells of the boxes, sorted."""
    moved: np.ndarray
    """Estimate after a push."""
    key: np.ndarray
    best: np.ndarray
    """Scratch memory of `estimate_pushes`."""
    box_at: np.ndarray
    """Mask of the cells with a box."""
    frozen: np.ndarray
    """Scratch memory of `is_stuck`."""
    walked: np.ndarray
    """Steps to each cell."""
    queue: np.ndarray


class States(NamedTuple):
    """All states that were found, by number."""

    keys: np.ndarray
    cost: np.ndarray
    """Moves from the start."""
    pushes: np.ndarray
    """Pushes from the start."""
    parent: np.ndarray
    push: np.ndarray
    """The push that leads here from the parent: `4 x cell of the box + direction`."""
    closed: np.ndarray
    """Mask of the expanded states."""
    table: np.ndarray
    """Hash table from keys to numbers."""


class _Queue(NamedTuple):
    """A linked list of entries for each sum of cost and estimate."""

    bucket: np.ndarray
    """First entry of each sum, or -1."""
    next: np.ndarray
    """Next entry after each entry, or -1."""
    state: np.ndarray


@compiled
def solve_kernel(cells, node_limit):
    """Return the status, the moves, the pushes as (box, direction), and the number of states stored."""
    board, work = make_search_board(cells), make_workspace(cells)
    boxes, player = work.boxes.copy(), np.flatnonzero(cells.ravel() & _PLAYER)[0]
    status, goal, count, states = search(board, work, player, node_limit, False)
    if status != 0:
        return status, np.empty(0, np.uint8), np.empty((0, 2), np.uint8), count
    order = _pushes_to(states, goal)
    moves, pushes = np.empty(states.cost[goal], np.uint8), np.empty((order.shape[0], 2), np.uint8)
    mark_boxes(work.box_at, boxes, True)
    made = 0
    for i in range(order.shape[0]):
        box, direction = order[i] // 4, order[i] % 4
        behind, to = board.neighbours[box, (direction + 2) % 4], board.neighbours[box, direction]
        walk(player, work.box_at, board.neighbours, work.walked, work.queue)
        # From behind the box back to the player: each step lowers the distance by one.
        made += work.walked[behind]
        at, cell = made, behind
        while cell != player:
            for back in range(4):
                nearer = board.neighbours[cell, back]
                if nearer >= 0 and work.walked[nearer] == work.walked[cell] - 1 and not work.box_at[nearer]:
                    at -= 1
                    moves[at] = (back + 2) % 4
                    cell = nearer
                    break
        moves[made] = direction
        made += 1
        for b in range(boxes.shape[0]):
            if boxes[b] == box:
                pushes[i, 0], pushes[i, 1] = b, direction
                boxes[b] = to
        work.box_at[box], work.box_at[to] = False, True
        player = box
    return status, moves, pushes, count


@compiled
def _pushes_to(states, goal):
    """Return the pushes that lead from the start to a state, in order."""
    length, state = 0, goal
    while states.parent[state] >= 0:
        length += 1
        state = states.parent[state]
    order, state = np.empty(length, np.int64), goal
    for i in range(length - 1, -1, -1):
        order[i] = states.push[state]
        state = states.parent[state]
    return order


@compiled
def search(board, work, player, node_limit, all_paths):
    """Return the status, the goal or -1, the number of states, and the states of an A* search.

    Costs are moves, then pushes. The queue is ordered by moves alone, so a state can be reached again with as
    many moves and fewer pushes after it was looked at, and the first solved state need not be the best.
    With `all_paths` every state of every solution with the fewest moves is looked at, whatever its pushes.
    """
    bits = bits_per_cell(board.neighbours.shape[0])
    states, queue, total = _begin(board, work, bits, player)
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
        fewest = goal >= 0 and not all_paths
        if fewest and states.pushes[state] + total - states.cost[state] >= states.pushes[goal]:
            continue
        player = unpack(states.keys[state], bits, work.boxes)
        if all_boxes_on(board.is_target, work.boxes):
            goal = state
            continue
        mark_boxes(work.box_at, work.boxes, True)
        walk(player, work.box_at, board.neighbours, work.walked, work.queue)
        states, count, queue, entries, within = _expand(
            board, work, bits, state, node_limit, states, count, queue, entries
        )
        mark_boxes(work.box_at, work.boxes, False)
    solved = goal >= 0 and (within or not all_paths)
    status = 0 if solved else (1 if within else 2)
    return status, goal, count, states


@compiled
def _begin(board, work, bits, player):
    """Return states and queue with the first state, and its estimate."""
    states = States(
        keys=np.empty((1024, work.key.shape[0]), np.uint64),
        cost=np.empty(1024, np.int32),
        pushes=np.empty(1024, np.int32),
        parent=np.empty(1024, np.int32),
        push=np.empty(1024, np.int32),
        closed=np.empty(1024, np.bool_),
        table=empty_table(4096),
    )
    queue = _Queue(np.full(256, -1, np.int32), np.empty(1024, np.int32), np.empty(1024, np.int32))
    estimate = estimate_pushes(work.boxes, board.distances, work.best)
    if estimate < UNREACHABLE:
        pack(work.boxes, player, bits, states.keys[0])
        states.table[find_slot(states.table, states.keys, states.keys[0])] = 0
        states.cost[0], states.pushes[0], states.closed[0] = 0, 0, False
        states.parent[0], states.push[0] = -1, -1
        if estimate >= queue.bucket.shape[0]:
            queue = _grow_queue(queue, estimate)
        queue.state[0], queue.next[0] = 0, -1
        queue.bucket[estimate] = 0
    return states, queue, estimate


@compiled
def _expand(board, work, bits, state, node_limit, states, count, queue, entries):
    """Add all states that one push leads to.

    Return states and queue, their sizes, and False if the limit was met.
    """
    boxes, moved, key, box_at, walked = work.boxes, work.moved, work.key, work.box_at, work.walked
    for b in range(boxes.shape[0]):
        box = boxes[b]
        for direction in range(4):
            to, behind = board.neighbours[box, direction], board.neighbours[box, (direction + 2) % 4]
            if to < 0 or behind < 0 or walked[behind] < 0 or box_at[to] or not board.live[to]:
                continue
            move_box(boxes, b, to, moved)
            cost, pushes = states.cost[state] + walked[behind] + 1, states.pushes[state] + 1
            pack(moved, box, bits, key)
            slot = find_slot(states.table, states.keys, key)
            known = states.table[slot]
            if known != EMPTY and (
                states.cost[known] < cost or (states.cost[known] == cost and states.pushes[known] <= pushes)
            ):
                continue
            if known == EMPTY:
                box_at[box], box_at[to] = False, True
                lost = is_stuck(moved, box_at, board.is_target, board.neighbours, board.live, work.frozen)
                box_at[box], box_at[to] = True, False
                if lost:
                    continue
            estimate = estimate_pushes(moved, board.distances, work.best)
            if estimate >= UNREACHABLE:
                continue
            if known == EMPTY:
                if count >= node_limit:
                    return states, count, queue, entries, False
                if count == states.keys.shape[0]:
                    states = _grow_states(states, count)
                    slot = find_slot(states.table, states.keys, key)
                known = count
                count += 1
                states.keys[known] = key
                states.table[slot] = known
            states.cost[known], states.pushes[known], states.closed[known] = cost, pushes, False
            states.parent[known], states.push[known] = state, box * 4 + direction
            rank = cost + estimate
            if rank >= queue.bucket.shape[0] or entries == queue.next.shape[0]:
                queue = _grow_queue(queue, rank)
            queue.state[entries], queue.next[entries] = known, queue.bucket[rank]
            queue.bucket[rank] = entries
            entries += 1
    return states, count, queue, entries, True


@compiled
def make_search_board(cells):
    """Return the facts about a board that no move changes."""
    flat = cells.ravel()
    neighbours, targets = find_neighbours(cells), np.flatnonzero(flat & _TARGET)
    distances = count_pushes(neighbours, targets)
    return SearchBoard(
        neighbours=neighbours,
        distances=distances,
        is_target=(flat & _TARGET) != 0,
        live=(distances != UNREACHABLE).sum(axis=0) > 0,
    )


@compiled
def make_workspace(cells):
    """Return the arrays of a search on a board, with the boxes at its start."""
    flat = cells.ravel()
    boxes, size = np.flatnonzero(flat & _BOX), flat.shape[0]
    return Workspace(
        boxes=boxes,
        moved=np.empty(boxes.shape[0], np.int64),
        key=np.empty(_words_per_key(size, boxes.shape[0]), np.uint64),
        best=np.empty(1 << min(boxes.shape[0], MAX_ASSIGNED), np.int64),
        box_at=np.zeros(size, np.bool_),
        frozen=np.zeros(size, np.bool_),
        walked=np.empty(size, np.int16),
        queue=np.empty(size, np.int16),
    )


@compiled
def bits_per_cell(cells):
    """Return the bits that the index of a cell takes in a key, on a board of that many cells."""
    return 8 if cells <= 256 else 16


@compiled
def _words_per_key(cells, boxes):
    bits = bits_per_cell(cells)
    return (boxes + 1 + 64 // bits - 1) // (64 // bits)


@compiled
def all_boxes_on(places, boxes):
    """Return whether all boxes are on cells where `places` is true."""
    on = True
    for box in boxes:
        on &= places[box]
    return on


@compiled
def mark_boxes(box_at, boxes, there):
    """Put all boxes onto the board, or take them off."""
    for box in boxes:
        box_at[box] = there


@compiled
def move_box(boxes, b, to, moved):
    """Write all boxes after a push of one into `moved`, sorted, and return its new place in the order."""
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
def _grow_queue(queue, rank):
    """Return the queue with room for this sum, and for twice the entries."""
    bucket = queue.bucket
    while rank >= bucket.shape[0]:
        bucket = np.concatenate((bucket, np.full(bucket.shape[0], -1, np.int32)))
    size = 2 * queue.next.shape[0]
    return _Queue(bucket, grow_rows(queue.next, size), grow_rows(queue.state, size))


@compiled
def _grow_states(states, count):
    """Return the states with room for twice as many."""
    size = 2 * count
    keys = grow_rows(states.keys, size)
    return States(
        keys=keys,
        cost=grow_rows(states.cost, size),
        pushes=grow_rows(states.pushes, size),
        parent=grow_rows(states.parent, size),
        push=grow_rows(states.push, size),
        closed=grow_rows(states.closed, size),
        table=rehash(keys, count, 4 * size),
    )
