"""The solvers as teachers, against breadth-first search by the plain rules."""

import numpy as np
import pytest

from looped_actor.envs.teacher import Teacher
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.boxoban.generator import BoxobanRecipe
from looped_actor.puzzles.boxoban.teacher import BoxobanTeacher
from looped_actor.puzzles.generate import generate
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.rush_hour.generator import RushHourRecipe
from looped_actor.puzzles.rush_hour.rules import RushHourBoard
from looped_actor.puzzles.rush_hour.teacher import RushHourTeacher
from looped_actor.puzzles.teachers import cells_of, planes_of

BOXOBAN = BoxobanRecipe(height=5, width=6, boxes=2, min_pulls=2, max_pulls=20, floor=0.9)
RUSH_HOUR = RushHourRecipe(height=4, width=5, min_moves=1, max_moves=9, min_vehicles=3, max_vehicles=5)


def boxoban_steps(board):
    return {int(direction): board.move(direction) for direction in Direction}


def rush_hour_steps(board):
    cells = [(r, c) for r in range(board.height) for c in range(board.width)]
    return {
        2 * i + forward: board.slide(cell, bool(forward))
        for i, cell in enumerate(cells)
        for forward in (0, 1)
    }


def steps_to_solved(board, steps, known):
    """Of every board that can be reached: breadth first from each that is new."""
    forward, frontier = {}, [board]
    while frontier:
        here = frontier.pop()
        if here in forward:
            continue
        forward[here] = [] if here.solved else [there for there in steps(here).values() if there != here]
        frontier += forward[here]
    distance = {here: 0 for here in forward if here.solved}
    for far in range(1, len(forward) + 1):
        found = [h for h, after in forward.items() if h not in distance and any(a in distance for a in after)]
        if not found:
            break
        distance |= dict.fromkeys(found, far)
    known.update({here: distance.get(here, -1) for here in forward})


CASES = {
    "boxoban": (BOXOBAN, BoxobanTeacher(), boxoban_steps, 4),
    "rush-hour": (RUSH_HOUR, RushHourTeacher(), rush_hour_steps, 7),
}


@pytest.mark.parametrize("game", CASES)
def test_labels_are_those_of_an_exhaustive_search(game):
    recipe, teacher, steps, planes = CASES[game]
    bank = generate(recipe, {"few": 2}, workers=1)["few"]
    chance, known, boards = np.random.default_rng(0), {}, []
    for level in range(len(bank)):
        board = bank.board(level)
        steps_to_solved(board, steps, known)
        for _ in range(40):  # where a policy that knows nothing gets to
            boards.append(board)
            after = [there for there in steps(board).values() if there != board]
            board = after[chance.integers(len(after))]
            board = bank.board(level) if board.solved else board
    observation = planes_of(np.stack([board.to_cells() for board in boards]), planes)
    assert (cells_of(observation) == np.stack([board.to_cells() for board in boards])).all()
    assert isinstance(teacher, Teacher)
    labels = teacher.label(observation)
    lost = 0
    for board, optimal, remaining in zip(boards, *labels, strict=True):
        assert remaining == known[board]
        lost += remaining < 0
        expected = {
            action
            for action, there in steps(board).items()
            if there != board and known[board] > 0 and known[there] == known[board] - 1
        }
        assert set(np.flatnonzero(optimal)) == expected
    assert game == "rush-hour" or lost > 5  # states that cannot be solved any more were among them


@pytest.mark.parametrize("game", CASES)
def test_a_demonstration_solves_in_as_few_steps(game):
    _, teacher, steps, planes = CASES[game]
    bank = starter_bank(game)
    cells = bank.cells(slice(0, 6))
    observation = planes_of(cells, planes)
    remaining = teacher.label(observation).remaining
    longest = int(remaining.max()) + 2
    for board, actions, count in zip(
        [bank.board(i) for i in range(6)], teacher.demonstrate(observation, longest), remaining, strict=True
    ):
        assert (actions[:count] >= 0).all()
        assert (actions[count:] == -1).all()
        for action in actions[:count]:
            assert not board.solved
            board = steps(board)[int(action)]
        assert board.solved
    few = teacher.demonstrate(observation, 2)
    assert (few == teacher.demonstrate(observation, longest)[:, :2]).all()


def test_a_search_that_gives_up_knows_nothing():
    bank = starter_bank("boxoban")
    labels = BoxobanTeacher(node_limit=2).label(planes_of(bank.cells(slice(0, 3)), 4))
    assert (labels.remaining == -1).all()
    assert not labels.optimal.any()
    cells = starter_bank("rush-hour").cells(slice(0, 3))
    assert (RushHourTeacher(node_limit=2).label(planes_of(cells, 7)).remaining == -1).all()


def test_what_is_too_large_to_teach_is_refused():
    board = RushHourBoard.parse("\n".join(["AA......."] + ["........."] * 8))
    with pytest.raises(ValueError, match="boards of up to 64 cells and 16 vehicles can be taught, not 9x9"):
        RushHourTeacher().label(planes_of(board.to_cells()[None], 7))
