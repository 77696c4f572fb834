"""Pushes of all move-optimal solutions of a Boxoban position at once, compiled.

A search that looks at every state of every shortest solution gives the cost of each state. A state is on a
shortest path if it is solved at the cost of the solution, or if a push leads from it to a state on a shortest
path at exactly the cost between them. From the start on, these pushes are followed layer by layer. Boxes keep
the numbers that they had at the start.
"""

import numpy as np

from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.boxoban.solver_board import pack, unpack, walk
from looped_actor.puzzles.boxoban.solver_kernel import (
    all_boxes_on,
    bits_per_cell,
    make_search_board,
    make_workspace,
    mark_boxes,
    move_box,
    search,
)
from looped_actor.puzzles.hash_table import EMPTY, find_slot, grow_rows
from looped_actor.utils.compiled import compiled

_PLAYER = int(Cell.PLAYER)


@compiled
def optimal_pushes_kernel(cells, count, node_limit):
    """Return the status, and which of the first `count` pushes (4 x box + direction) some solution makes."""
    board, work = make_search_board(cells), make_workspace(cells)
    boxes = work.boxes.shape[0]
    found = np.zeros((count, 4 * boxes), np.bool_)
    player = np.flatnonzero(cells.ravel() & _PLAYER)[0]
    status, goal, stored, states = search(board, work, player, node_limit, True)
    if status != 0:
        return status, found
    pushes, name = np.empty((4 * boxes, 4), np.int64), np.empty(boxes, np.uint8)
    on_path = find_states_on_paths(board, work, states, stored, goal, pushes)
    # The same boxes in the same places may have come there in different ways, as different boxes. So a layer
    # holds states with names: the number at the start of each box, in the order of their cells.
    layer, names, size = np.zeros(1, np.int64), np.arange(boxes).astype(np.uint8).reshape(1, boxes), 1
    for push in range(count):
        next_layer, next_names, next_size = np.empty(16, np.int64), np.empty((16, boxes), np.uint8), 0
        for i in range(size):
            for k in range(list_pushes_on_paths(board, work, states, on_path, layer[i], pushes)):
                before, after, direction, state = pushes[k]
                found[push, 4 * names[i, before] + direction] = True
                _move_name(names[i], before, after, name)
                if _is_in_layer(next_layer, next_names, next_size, state, name):
                    continue
                if next_size == next_layer.shape[0]:
                    next_layer = grow_rows(next_layer, 2 * next_size)
                    next_names = grow_rows(next_names, 2 * next_size)
                next_layer[next_size], next_names[next_size] = state, name
                next_size += 1
        layer, names, size = next_layer, next_names, next_size
    return status, found


@compiled
def find_states_on_paths(board, work, states, count, goal, pushes):
    """Return whether each state is on a shortest solution. `pushes` is overwritten."""
    on_path = np.zeros(count, np.bool_)
    bits = bits_per_cell(board.neighbours.shape[0])
    for state in np.argsort(states.cost[:count])[::-1]:
        if states.closed[state] and states.cost[state] <= states.cost[goal]:
            unpack(states.keys[state], bits, work.boxes)
            if all_boxes_on(board.is_target, work.boxes):
                on_path[state] = states.cost[state] == states.cost[goal]
            else:
                on_path[state] = list_pushes_on_paths(board, work, states, on_path, state, pushes) > 0
    return on_path


@compiled
def list_pushes_on_paths(board, work, states, on_path, state, pushes):
    """Write the pushes of a state that stay on shortest solutions, and return their number.

    A row of `pushes` has the index of the box among the sorted boxes before and after the push, the
    direction, and the state that it leads to.
    """
    bits = bits_per_cell(board.neighbours.shape[0])
    player = unpack(states.keys[state], bits, work.boxes)
    mark_boxes(work.box_at, work.boxes, True)
    walk(player, work.box_at, board.neighbours, work.walked, work.queue)
    made = 0
    for b in range(work.boxes.shape[0]):
        box = work.boxes[b]
        for direction in range(4):
            to, behind = board.neighbours[box, direction], board.neighbours[box, (direction + 2) % 4]
            if to < 0 or behind < 0 or work.walked[behind] < 0 or work.box_at[to]:
                continue
            place = move_box(work.boxes, b, to, work.moved)
            pack(work.moved, box, bits, work.key)
            known = states.table[find_slot(states.table, states.keys, work.key)]
            if known == EMPTY or not on_path[known]:
                continue
            if states.cost[state] + work.walked[behind] + 1 == states.cost[known]:
                pushes[made, 0], pushes[made, 1] = b, place
                pushes[made, 2], pushes[made, 3] = direction, known
                made += 1
    mark_boxes(work.box_at, work.boxes, False)
    return made


@compiled
def _move_name(names, before, after, into):
    """Write the names after the box at index `before` has moved to index `after`."""
    into[:] = names
    step = 1 if after > before else -1
    for at in range(before, after, step):
        into[at] = names[at + step]
    into[after] = names[before]


@compiled
def _is_in_layer(layer, names, size, state, name):
    """Return whether a state with these names is among the first `size` of a layer."""
    found = False
    for i in range(size):
        found |= layer[i] == state and (names[i] == name).all()
    return found
