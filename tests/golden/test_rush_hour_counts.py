"""Counts that others found by exhaustive enumeration of Rush Hour."""

import pytest

from looped_actor.puzzles.rush_hour.enumeration import enumerate_positions
from looped_actor.puzzles.rush_hour.rules import RushHourBoard
from looped_actor.puzzles.rush_hour.solver import explore, replay, solve

HARDEST = "BCDDE.BCF.EGB.FAAGHHHI.G..JIKKLLJMM."


def test_the_hardest_6x6_board_takes_51_moves():
    board = RushHourBoard.parse(HARDEST)
    solution = solve(board)
    assert len(solution.moves) == 51
    assert replay(board, solution.moves)[-1].solved
    cluster = explore(board)
    assert cluster.complete
    assert len(cluster.keys) == 4780
    assert cluster.distance.max() == 51


@pytest.mark.parametrize(
    ("side", "boards", "clusters", "solvable", "puzzles", "hardest"),
    [(4, 1_349, 880, 493, 32, [7]), (5, 268_109, 130_299, 62_106, 1_730, [20, 20])],
)
def test_enumeration(side, boards, clusters, solvable, puzzles, hardest):
    found = enumerate_positions(side, side)
    assert (found.boards, found.clusters, found.solvable) == (boards, clusters, solvable)
    assert len(found.puzzles) == puzzles
    assert [p.moves for p in found.puzzles[: len(hardest)]] == hardest
    assert found.puzzles[len(hardest)].moves < hardest[0] or side == 4
    if side == 5:
        assert [p.cluster_size for p in found.puzzles[:2]] == [299, 299]
    assert all(len(solve(p.board).moves) == p.moves for p in found.puzzles[::50])
