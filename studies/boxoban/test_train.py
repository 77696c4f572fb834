"""A run that is stopped and goes on ends where an uninterrupted one does."""

import pathlib
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from labels import Labels
from looped_actor.games.boxoban import Cell
from train import STATE, Material, Progress, Run, Setting, halved, read_state, write_state

SETTING = Setting(
    "tiny",
    8,
    1e-3,
    1e9,
    heads=1,
    batch=4,
    chunk=2,
    decay_from=5,
    decay_updates=7,
    evaluate_minutes=1e9,
    levels=2,
)


class StopAfter:
    """A signal that comes when it has been looked at so many times."""

    def __init__(self, looks: int):
        self.looks = looks

    @property
    def asked(self) -> bool:
        self.looks -= 1
        return self.looks < 0


@pytest.fixture(scope="module")
def material() -> Material:
    cells = np.zeros((5, 8, 8), np.uint8)
    cells[:, 0, 0], cells[:, 3, 3], cells[:, 5, 5] = Cell.PLAYER, Cell.BOX, Cell.TARGET
    cells[:, 7] = np.where(np.random.default_rng(0).random((5, 8)) < 0.5, Cell.WALL, 0)
    labels = Labels(
        cells, np.eye(4, dtype=bool)[[0, 1, 2, 3, 1]], np.ones(5, np.uint8), np.zeros(5, np.uint16)
    )
    return Material(labels, labels, cells[:2])


def test_a_stopped_run_goes_on_exactly(tmp_path, material):
    whole = Run(SETTING, tmp_path / "whole")
    whole._block(material.labels, StopAfter(12))
    first = Run(SETTING, tmp_path / "stopped")
    first._block(material.labels, StopAfter(5))
    first.save()
    second = Run(SETTING, tmp_path / "stopped")
    assert 0 < second.progress.step < whole.progress.step == 12
    second._block(material.labels, StopAfter(12 - second.progress.step))
    assert second.progress.step == 12
    jax.tree.map(np.testing.assert_array_equal, second.state, whole.state)


def test_a_state_of_another_setting_is_refused(tmp_path):
    Run(SETTING, tmp_path / "one").save()
    with pytest.raises(ValueError, match="width"):
        Run(replace(SETTING, width=16), tmp_path / "one")


def test_a_halved_state_is_nearly_the_same(tmp_path, material):
    run = Run(SETTING, tmp_path / "one")
    run._block(material.labels, StopAfter(3))
    write_state(tmp_path / STATE, halved(run.state), Progress(3), SETTING)
    state, progress = read_state(tmp_path / STATE, run.state, SETTING)
    assert progress.step == 3
    jax.tree.map(np.testing.assert_array_equal, state.learner.parameters, run.state.learner.parameters)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-6), state, run.state)
