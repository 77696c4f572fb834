"""The boards of the study: what is cropped, and that labels turn and mirror with their boards."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from labels import label_levels, label_trajectory
from looped_actor.games import BoxobanBoard
from looped_actor.games.grid import Direction
from looped_actor.levels.sources import read_boxoban_file
from looped_actor.solvers.boxoban import solve_cells
from looped_actor.solvers.boxoban_advice import advise_boxoban

from boards import SYMMETRIES, crop_border, transform_actions, transform_boards

LEVELS = pathlib.Path(__file__).parents[3] / "shared" / "data" / "boxoban-levels" / "unfiltered"
LIMIT = 100_000

BOARD = """
##########
#@   #####
#  $ #####
#.   #####
#  $ #####
# #. #####
#    #####
##########
##########
##########
"""


@pytest.fixture
def cells() -> np.ndarray:
    return crop_border(BoxobanBoard.parse(BOARD).to_cells()[None])[0]


def test_the_cropped_board_is_the_same_puzzle(cells):
    whole = solve_cells(BoxobanBoard.parse(BOARD).to_cells(), node_limit=LIMIT)
    cropped = solve_cells(cells, node_limit=LIMIT)
    assert cells.shape == (8, 8)
    assert len(whole.moves) == len(cropped.moves) > 0


def test_a_border_with_something_in_it_is_refused(cells):
    with pytest.raises(ValueError, match="outer ring"):
        crop_border(cells[None])


@pytest.mark.skipif(not LEVELS.is_dir(), reason="needs boxoban-levels")
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_the_border_of_real_levels_is_wall(split):
    for path in sorted((LEVELS / split).glob("*.txt"))[::20]:
        crop_border(read_boxoban_file(path))


def test_a_transformed_board_has_the_transformed_optimal_moves(cells):
    labels = label_levels(cells[None], 0)
    assert labels is not None
    assert len(labels.cells) > 20
    for symmetry in range(SYMMETRIES):
        boards = np.ascontiguousarray(transform_boards(labels.cells, symmetry))
        optimal, remaining = advise_boxoban(boards, LIMIT)
        np.testing.assert_array_equal(optimal, transform_actions(labels.optimal, symmetry))
        np.testing.assert_array_equal(remaining, labels.remaining)


def test_the_eight_symmetries_differ(cells):
    assert len({transform_boards(cells[None], s).tobytes() for s in range(SYMMETRIES)}) == SYMMETRIES


def test_a_move_after_a_transformation_is_the_transformed_board_after_the_move(cells):
    for symmetry in range(SYMMETRIES):
        for move in Direction:
            chosen = transform_actions(np.eye(4, dtype=bool)[[move]], symmetry)[0].argmax()
            after = BoxobanBoard.from_cells(cells).move(move).to_cells()
            other = BoxobanBoard.from_cells(transform_boards(cells[None], symmetry)[0]).move(
                Direction(int(chosen))
            )
            np.testing.assert_array_equal(transform_boards(after[None], symmetry)[0], other.to_cells())


def test_a_trajectory_is_optimal_and_ends_solved(cells):
    boards, optimal, remaining = label_trajectory(cells, np.random.default_rng(0).random(120), LIMIT)
    np.testing.assert_array_equal(remaining, np.arange(len(boards), 0, -1))
    for board, moves, after in zip(boards, optimal, boards[1:], strict=False):
        next_boards = [
            BoxobanBoard.from_cells(board).move(Direction(int(m))).to_cells() for m in np.flatnonzero(moves)
        ]
        assert any((one == after).all() for one in next_boards)
    last = [BoxobanBoard.from_cells(boards[-1]).move(Direction(int(m))) for m in np.flatnonzero(optimal[-1])]
    assert last[0].solved
