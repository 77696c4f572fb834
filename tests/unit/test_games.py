"""Boards, text and the plain rules."""

import numpy as np
import pytest

from boards import random_boxoban, random_rush_hour
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.catalogue import GAMES, game_named, game_of
from looped_actor.puzzles.grid import Direction, LevelError
from looped_actor.puzzles.rush_hour.rules import RushHourBoard, Vehicle

BOXOBAN = """\
#######
#.@$  #
# $*  #
#  .  #
#######"""


def test_boxoban_moves():
    board = BoxobanBoard.parse(BOXOBAN)
    pushed = board.move(Direction.RIGHT)
    assert pushed.player == (1, 3)
    assert (1, 4) in pushed.boxes
    assert board.move(Direction.UP) is board  # a wall
    assert board.move(Direction.LEFT).player == (1, 1)
    assert board.move(Direction.DOWN).boxes == frozenset({(3, 2), (1, 3), (2, 3)})
    blocked = BoxobanBoard.parse("@$$  ..")
    assert blocked.move(Direction.RIGHT) is blocked
    at_the_border = BoxobanBoard.parse(".@$")
    assert at_the_border.move(Direction.RIGHT) is at_the_border


def test_boxoban_is_solved_when_all_boxes_are_on_targets():
    board = BoxobanBoard.parse("@ $.\n    \n  *  "[:-1])
    assert not board.solved
    assert board.move(Direction.RIGHT).move(Direction.RIGHT).solved


def test_rush_hour_slides():
    board = RushHourBoard.parse("..B.\nAAB.\n....\nxCC.")
    assert board.red == Vehicle(1, 0, 2, True)
    assert board.slide((1, 0), forward=True) is board  # B is in the way
    freed = board.slide((0, 2), forward=True)
    assert Vehicle(1, 2, 2, False) in freed.others
    freed = freed.slide((2, 2), forward=True)
    assert freed.blockers == 1  # C stopped it
    assert board.slide((3, 1), forward=False) is board  # the wall
    assert board.slide((0, 0), forward=True) is board  # nothing there
    moved = board.slide((3, 1), forward=True).slide((0, 2), True).slide((1, 2), True)
    assert str(moved) == "....\nAAB.\n..B.\nx.CC"


def test_a_move_slides_any_distance():
    board = RushHourBoard.parse("AA..\n....\n....\n....")
    assert {b.red.column for b in board.neighbours()} == {1, 2}
    assert sum(b.solved for b in board.neighbours()) == 1


@pytest.mark.parametrize("make", [random_boxoban, random_rush_hour])
def test_text_and_arrays_both_ways(make):
    rng = np.random.default_rng(0)
    for _ in range(100):
        board = make(rng)
        assert type(board).parse(str(board)) == board
        assert type(board).from_cells(board.to_cells()) == board


def test_database_text_is_one_line():
    text = "BCDDE.BCF.EGB.FAAGHHHI.G..JIKKLLJMM."
    board = RushHourBoard.parse(text)
    assert board.flat_text == text
    assert RushHourBoard.parse(text.replace(".", "o")) == board


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no board"),
        ("###\n##", "f:2: this row has 2 cells"),
        ("#?#", "f:1: column 2: '?'"),
        ("@$.@", "2 players"),
        ("$.", "0 players"),
        ("@", "no box"),
        ("@$", "1 boxes for 0 targets"),
        ("#" * 70, "sides of 1 to 64"),
    ],
)
def test_what_is_wrong_with_a_boxoban_board(text, problem):
    with pytest.raises(LevelError, match=r"f:1|f:2") as error:
        BoxobanBoard.parse(text, source="f")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no square board"),
        ("AA...", "no square board"),
        ("....\n....\n....\n....", "no horizontal red car"),
        ("A...\nA...\n....\n....", "no horizontal red car"),
        ("AA..\nB...\n....\n....", "f:2: the cells of 'B' are no vehicle"),
        ("AA..\nBB..\n.B..\n....", "f:2: the cells of 'B' are no vehicle"),
        ("AA..\nB.B.\n....\n....", "f:2: the cells of 'B' are no vehicle"),
        ("AA..\n..1.\n....\n....", "f:2: '1' is no letter"),
        ("AA.A\n....\n....\n....", "the cells of 'A' are no vehicle"),
    ],
)
def test_what_is_wrong_with_a_rush_hour_board(text, problem):
    with pytest.raises(LevelError) as error:
        RushHourBoard.parse(text, source="f")
    assert problem in str(error.value)
    assert str(error.value).startswith("f:")


@pytest.mark.parametrize(("name", "make"), [("boxoban", random_boxoban), ("rush-hour", random_rush_hour)])
def test_many_boards_are_checked_as_one_is(name, make):
    """Boards, most of them with one cell changed."""
    rng, game = np.random.default_rng(1), GAMES[name]
    kinds = np.array(game.kinds, np.uint8)
    boards = []
    for _ in range(400):
        cells = make(rng, shape=(4, 5)).to_cells()
        if rng.random() < 0.7:
            cells[rng.integers(4), rng.integers(5)] = rng.choice(kinds)
        boards.append(cells)
    answers = game.valid(np.stack(boards))
    for cells, answer in zip(boards, answers, strict=True):
        try:
            board = game.board.from_cells(cells)
            np.testing.assert_array_equal(board.to_cells(), cells)
        except LevelError:
            assert not answer
        else:
            assert answer
    assert 50 < answers.sum() < 350


@pytest.mark.parametrize("make", [random_boxoban, random_rush_hour])
def test_every_action_has_one_name(make):
    rng = np.random.default_rng(2)
    for _ in range(30):
        board = make(rng)
        game = game_of(board)
        groups = game.name_actions(board)
        actions = [action for group in groups for action in group.actions]
        assert sorted(actions) == list(range(game.num_actions(board.height, board.width)))
        assert len({group.name for group in groups}) == len(groups)
        for group in groups:
            assert len({game.step(board, action) for action in group.actions}) <= 1
            located = [game.locate_action(board, action) for action in group.actions]
            assert all(place is None or place[1].arrow in group.name for place in located)
            assert all((place is None) == (group.name == "no car") for place in located)


def test_a_game_that_is_not_there():
    with pytest.raises(LevelError, match="'chess' is none of the games boxoban, rush-hour"):
        game_named("chess")
