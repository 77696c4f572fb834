"""All move-optimal solutions of a Boxoban position at once, compiled.

A search that looks at every state of every shortest solution leaves the cost of each. From the end back,
those from which a push leads on to another at exactly the cost between them are on a way; from the start on,
pushes are followed along the ways, and each box is known by the number that it had at the start.
"""

import numpy as np

from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.boxoban.solver_board import pack, unpack, walk
from looped_actor.puzzles.boxoban.solver_kernel import (
    all_at,
    bits_of,
    board_of,
    mark,
    room_of,
    search,
    with_moved,
)
from looped_actor.puzzles.hash_table import EMPTY, find, grown
from looped_actor.utils.compiled import compiled

_PLAYER = int(Cell.PLAYER)


@compiled
def _ahead(board, room, states, on_way, state, pushes):
    """How many pushes lead from a state along a way.

    A row of `pushes` is the place of the box among all before and after, the direction, the state.
    """
    bits = bits_of(board.neighbours.shape[0])
    player = unpack(states.keys[state], bits, room.boxes)
    mark(room.box_at, room.boxes, True)
    walk(player, room.box_at, board.neighbours, room.walked, room.queue)
    made = 0
    for b in range(room.boxes.shape[0]):
        box = room.boxes[b]
        for direction in range(4):
            to, behind = board.neighbours[box, direction], board.neighbours[box, (direction + 2) % 4]
            if to < 0 or behind < 0 or room.walked[behind] < 0 or room.box_at[to]:
                continue
            place = with_moved(room.boxes, b, to, room.moved)
            pack(room.moved, box, bits, room.key)
            known = states.table[find(states.table, states.keys, room.key)]
            if known == EMPTY or not on_way[known]:
                continue
            if states.cost[state] + room.walked[behind] + 1 == states.cost[known]:
                pushes[made, 0], pushes[made, 1], pushes[made, 2], pushes[made, 3] = (
                    b,
                    place,
                    direction,
                    known,
                )
                made += 1
    mark(room.box_at, room.boxes, False)
    return made


@compiled
def _ways(board, room, states, count, goal, pushes):
    """Whether each state is on a shortest solution."""
    on_way = np.zeros(count, np.bool_)
    bits = bits_of(board.neighbours.shape[0])
    for state in np.argsort(states.cost[:count])[::-1]:
        if states.closed[state] and states.cost[state] <= states.cost[goal]:
            unpack(states.keys[state], bits, room.boxes)
            if all_at(board.is_target, room.boxes):
                on_way[state] = states.cost[state] == states.cost[goal]
            else:
                on_way[state] = _ahead(board, room, states, on_way, state, pushes) > 0
    return on_way


@compiled
def _renamed(names, before, after, into):
    """The numbers of boxes in the order of their places, after the one at a place came to another."""
    into[:] = names
    step = 1 if after > before else -1
    for at in range(before, after, step):
        into[at] = names[at + step]
    into[after] = names[before]


@compiled
def _is_there(layer, names, size, state, name):
    """Whether a state is among the first of a layer, with its boxes so named."""
    there = False
    for i in range(size):
        there |= layer[i] == state and (names[i] == name).all()
    return there


@compiled
def ways_kernel(cells, count, node_limit):
    """Status, and for each of the first `count` pushes which ones (4 x box + direction) a solution makes."""
    flat = cells.ravel()
    board, room = board_of(cells), room_of(cells)
    boxes = room.boxes.shape[0]
    found = np.zeros((count, 4 * boxes), np.bool_)
    player = np.flatnonzero(flat & _PLAYER)[0]
    status, goal, stored, states = search(board, room, player, node_limit, True)
    if status != 0:
        return status, found
    pushes, name = np.empty((4 * boxes, 4), np.int64), np.empty(boxes, np.uint8)
    on_way = _ways(board, room, states, stored, goal, pushes)
    # The same boxes in the same places may have come there in different ways, as different boxes.
    layer, names, size = np.zeros(1, np.int64), np.arange(boxes).astype(np.uint8).reshape(1, boxes), 1
    for push in range(count):
        next_layer, next_names, next_size = np.empty(16, np.int64), np.empty((16, boxes), np.uint8), 0
        for i in range(size):
            for k in range(_ahead(board, room, states, on_way, layer[i], pushes)):
                before, after, direction, state = pushes[k]
                found[push, 4 * names[i, before] + direction] = True
                _renamed(names[i], before, after, name)
                if _is_there(next_layer, next_names, next_size, state, name):
                    continue
                if next_size == next_layer.shape[0]:
                    next_layer, next_names = (
                        grown(next_layer, 2 * next_size),
                        grown(next_names, 2 * next_size),
                    )
                next_layer[next_size], next_names[next_size] = state, name
                next_size += 1
        layer, names, size = next_layer, next_names, next_size
    return status, found
