"""Every version of every file format that was ever written is read.

`formats` holds files as version 0.2.0 wrote them (commit 36dae51); those of runs are read in `test_runs.py`.
A format that gets a second version gets a second file: the first one stays.
"""

import pathlib
import re
import zipfile

import jax
import numpy as np
import pytest

import looped_actor
from looped_actor.analysis.latents import open_latents
from looped_actor.analysis.probes import read_probes
from looped_actor.puzzles.banks import open_bank
from looped_actor.puzzles.solutions import open_solutions, solution_wins
from looped_actor.runs.robots import CRITICS_FORMAT
from looped_actor.utils.tensors import read_weights

HERE = pathlib.Path(__file__).parent
FORMATS = HERE / "formats"
IN_RUNS = {"looped-actor checkpoint 1", "looped-actor checkpoint 2", "looped-actor policy 1"}
NOT_FOR_GOOD = {"looped-actor program 1"}
"""JAX reads a program for six months."""


@pytest.fixture
def bank(tmp_path):
    with zipfile.ZipFile(HERE / "runs" / "imitation-boxoban.zip") as file:
        return open_bank(file.extract("levels/held_out.levels", tmp_path))


def test_levels_and_their_solutions(bank):
    solutions = open_solutions(FORMATS / "boxoban.solutions", bank)
    assert len(bank) == 20
    assert len(solutions) == 8
    assert all(solution_wins(bank, solutions, index) for index in range(8))


def test_critics():
    arrays = read_weights(FORMATS / "critics.safetensors", CRITICS_FORMAT)
    assert {name.split(".")[0] for name in arrays} == {"value", "critics"}
    assert all(np.isfinite(array).all() for array in arrays.values())


def test_latents():
    latents = open_latents(FORMATS / "latents")
    assert latents.info.places == (0, 1, 2)
    assert latents.at(2).shape == (4, 43, 8)
    assert np.abs(latents.at(2)).max() > 0


def test_probes():
    probes = read_probes(FORMATS / "boxoban.probes")
    assert (probes.places, probes.pushes, probes.boxes) == ((0, 2), (1,), 2)
    assert {leaf.shape[:3] for leaf in jax.tree.leaves(probes.probes)} == {(2, 1, 1)}


def test_no_format_is_forgotten():
    sources = pathlib.Path(looped_actor.__file__).parent.rglob("*.py")
    named = {name for path in sources for name in re.findall(r'"(looped-actor \w+ \d+)"', path.read_text())}
    tested = {f"looped-actor {name} 1" for name in ("levels", "solutions", "critics", "latents", "probes")}
    assert named == tested | IN_RUNS | NOT_FOR_GOOD
