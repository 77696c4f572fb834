"""Cutting off episodes whose board returns changes no success, and saves decisions."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from evaluate import MAX_LOOPS, UntilRepeated, evaluate
from looped_actor.devices import all_devices
from looped_actor.envs.puzzle import Boxoban
from looped_actor.games.boxoban import Cell
from looped_actor.games.catalogue import BOXOBAN
from looped_actor.levels.bank import make_bank
from train import Learner, Setting, StopSignal

from looped_actor.algorithms import Weights
from looped_actor.evaluation.levels import LevelPlayer


def easy_levels() -> np.ndarray:
    """Player, box and target in a row: three pushes in one of four directions solve the level."""
    cells = np.zeros((8, 8, 8), np.uint8)
    for level, (row, direction) in enumerate((row, way) for row in (1, 5) for way in range(4)):
        board = np.zeros((8, 8), np.uint8)
        board[row, 1], board[row, 2], board[row, 5] = Cell.PLAYER, Cell.BOX, Cell.TARGET
        cells[level] = np.rot90(board, direction)
    return cells


def test_a_cut_episode_has_the_same_success_and_fewer_decisions():
    levels, learner = easy_levels(), Learner(Setting("tiny", 8, 1e-3, 1.0, heads=1))
    state = learner.begin()
    weights = Weights(state.average, state.fixed, state.statistics)
    bank = make_bank(BOXOBAN, levels, source="test", licence="none").on_device()
    played = [
        LevelPlayer(env, len(levels), learner.definition, MAX_LOOPS, all_devices(1)).play(weights).episodes
        for env in (Boxoban(bank), UntilRepeated(Boxoban(bank)))
    ]
    np.testing.assert_array_equal(played[0].success, played[1].success)
    assert 0 < played[0].success.sum() < len(levels)
    failed = ~played[0].success
    assert (played[0].length[failed] == 120).all()
    assert (played[1].length[failed] < 60).any()
    found = evaluate(learner.definition, weights, levels, StopSignal())
    assert found is not None
    assert found["success"] == played[0].success.mean()
