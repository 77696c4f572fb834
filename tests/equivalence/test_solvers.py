"""The compiled solvers against searches that are too simple to be wrong."""

from collections import deque

import numpy as np

from boards import random_boxoban, random_rush_hour
from looped_actor.puzzles.boxoban import solver as boxoban
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.boxoban.solver_board import UNREACHABLE, estimate_pushes
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.rush_hour import solver as rush_hour
from looped_actor.puzzles.rush_hour.rules import RushHourBoard, Vehicle
from looped_actor.puzzles.search import SolveStatus


def fewest_moves(board):
    """Breadth first over single steps; None if no way leads to a solved board."""
    distance, queue = {(board.player, board.boxes): 0}, deque([board])
    while queue:
        here = queue.popleft()
        steps = distance[here.player, here.boxes]
        if here.solved:
            return steps
        for direction in Direction:
            there = here.move(direction)
            if (there.player, there.boxes) not in distance:
                distance[there.player, there.boxes] = steps + 1
                queue.append(there)
    return None


def test_boxoban_is_move_optimal(size):
    """In full: 500 random levels."""
    rng = np.random.default_rng(3)
    seen = dict.fromkeys(SolveStatus, 0)
    for _ in range(size(60, 500)):
        board = random_boxoban(rng, max_side=5, max_boxes=3)
        solution = boxoban.solve(board)
        expected = fewest_moves(board)
        seen[solution.status] += 1
        if expected is None:
            assert solution.status is SolveStatus.UNSOLVABLE, str(board)
            continue
        assert len(solution.moves) == expected, str(board)
        end, boxes, pushes = board, sorted(board.boxes), []
        for move in solution.moves:
            after = end.move(move)
            assert after != end, "a move that changes nothing"
            if after.boxes != end.boxes:
                pushes.append((boxes.index(after.player), move))
                boxes[pushes[-1][0]] = next(iter(after.boxes - end.boxes))
            end = after
        assert end.solved
        assert pushes == [(push.box, push.direction) for push in solution.pushes]
    assert seen[SolveStatus.SOLVED] >= 5
    assert seen[SolveStatus.UNSOLVABLE] >= 5


def all_pushes(board):
    """The pushes of every solution with the fewest moves; no solution, no pushes."""
    seen, ways = set(), {(board, tuple(sorted(board.boxes)), ())}
    while ways:
        solved = {pushes for here, _, pushes in ways if here.solved}
        if solved:
            return solved
        seen |= {here for here, _, _ in ways}
        longer = set()
        for here, boxes, pushes in ways:
            for direction in Direction:
                there = here.move(direction)
                if there in seen:
                    continue
                if there.boxes == here.boxes:
                    longer.add((there, boxes, pushes))
                else:
                    box, (to,) = boxes.index(there.player), there.boxes - here.boxes
                    moved = (*boxes[:box], to, *boxes[box + 1 :])
                    longer.add((there, moved, (*pushes, 4 * box + direction)))
        ways = longer
    return set()


def test_pushes_of_all_shortest_solutions(size):
    """In full: 500 levels without walls, which have many ways."""
    rng, several = np.random.default_rng(4), 0
    inner, cells = [(r, c) for r in (1, 2) for c in (1, 2, 3)], [(r, c) for r in range(4) for c in range(5)]
    for number in range(size(15, 500)):
        boxes = frozenset(inner[i] for i in rng.permutation(len(inner))[: 1 + number % 3])
        targets = frozenset(cells[i] for i in rng.permutation(len(cells))[: len(boxes)])
        board = BoxobanBoard(4, 5, frozenset(), targets, boxes, (0, 0))
        found, ways = boxoban.optimal_pushes(board.to_cells(), 5), all_pushes(board)
        if not ways:
            assert found is None
            continue
        expected = np.zeros_like(found)
        for pushes in ways:
            expected[np.arange(len(pushes[:5])), pushes[:5]] = True
        np.testing.assert_array_equal(found, expected, str(board))
        several += len(ways) > 1
    assert several >= 5
    open_room = BoxobanBoard(4, 5, frozenset(), frozenset({(3, 3)}), frozenset({(1, 1)}), (0, 0))
    assert boxoban.optimal_pushes(open_room.to_cells(), 5, node_limit=1) is None


def test_more_boxes_than_the_assignment_takes():
    """Nine boxes in a row, one step from their targets: the estimate falls back to the nearest target."""
    rows = ["#" * 11, "#" + " " * 9 + "#", "#" + "$" * 9 + "#", "#" + "." * 9 + "#", "#" * 11]
    rows[1] = "#@" + " " * 8 + "#"
    solution = boxoban.solve(boxoban.BoxobanBoard.parse("\n".join(rows)))
    assert solution.status is SolveStatus.SOLVED
    # Down, and for each further box up, right, down.
    assert len(solution.moves) == 1 + 8 * 3


def test_many_boxes_that_are_far_from_their_targets_are_not_unreachable():
    far = np.full((9, 20), 4_000, np.int16)
    assert estimate_pushes(np.arange(9), far, np.empty(1 << 8, np.int64)) == UNREACHABLE - 1


def test_rush_hour_is_optimal(size):
    rng = np.random.default_rng(4)
    seen = dict.fromkeys(SolveStatus, 0)
    for _ in range(size(40, 400)):
        board = random_rush_hour(rng, max_side=size(5, 6), max_vehicles=8)
        fast, plain = rush_hour.solve(board), rush_hour.solve_plainly(board, node_limit=size(300, 4000))
        if plain.status is SolveStatus.NOT_WITHIN_LIMIT:
            continue
        seen[fast.status] += 1
        assert fast.status is plain.status, str(board)
        assert len(fast.moves) == len(plain.moves), str(board)
        if fast.status is SolveStatus.SOLVED:
            assert rush_hour.replay(board, fast.moves)[-1].solved
            assert rush_hour.replay(board, plain.moves)[-1].solved
    assert seen[SolveStatus.SOLVED] >= 5
    assert seen[SolveStatus.UNSOLVABLE] >= 5


def test_rush_hour_with_more_vehicles_than_a_byte_counts():
    """Full rows above the red car, and a blocker that is the last of 181 other vehicles."""
    full = [Vehicle(row, column, 2, True) for row in range(18) for column in range(0, 20, 2)]
    board = RushHourBoard(
        height=22,
        width=20,
        walls=frozenset(),
        red=Vehicle(18, 0, 2, True),
        others=(*full, Vehicle(18, 10, 2, False)),
    )
    packed = rush_hour.solve_cells(board.to_cells())
    assert packed.moves[0, 0] == len(board.others) == 181
    assert rush_hour.replay(board, packed.moves)[-1].solved


def test_clusters_are_all_that_can_be_reached(size):
    rng = np.random.default_rng(6)
    explored = 0
    while explored < size(10, 60):
        board = random_rush_hour(rng, max_side=5, max_vehicles=7)
        cluster = rush_hour.explore(board, node_limit=size(300, 1500))
        if not cluster.complete:
            continue
        explored += 1
        found, queue = {board}, [board]
        while queue:
            fresh = set(queue.pop().neighbours()) - found
            found |= fresh
            queue += fresh
        boards = {cluster.board(i) for i in range(len(cluster.keys))}
        assert boards == found
        for i in range(0, len(cluster.keys), max(1, len(cluster.keys) // 3)):
            solution = rush_hour.solve(cluster.board(i))
            expected = len(solution.moves) if solution.status is SolveStatus.SOLVED else -1
            assert cluster.distance[i] == expected
