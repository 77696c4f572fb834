"""Short runs of every learner and arm, as commits 395f374 and cd662b2 made them: the same numbers.

Each zip file is a folder that such a commit wrote, with metrics of four iterations in float64: another order
of sums, or another processor, shows in the last digits only, hence a tolerance. Their configurations,
checkpoints and policies are of version 0.2, so that these tests also show that this version continues its
runs."""

import csv
import json
import pathlib
import zipfile
from dataclasses import replace

import jax
import pytest

from helpers import thorough
from looped_actor.algorithms import PPO
from looped_actor.algorithms.recipe import AUTHORS
from looped_actor.runs.config import read_config
from looped_actor.runs.folder import fingerprint_of, read_run, train_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.registry import run_of
from looped_actor.training import Ending, fit
from looped_actor.training.sharding import all_devices
from looped_actor.utils.errors import UserError

HERE = pathlib.Path(__file__).parent / "runs"
WHOLE = ["ppo-streamed", "imitation-boxoban"]
"""Also evaluated, and with a checkpoint of the second iteration."""
LEARNED = [
    "ppo-iso-flops",
    "gciql",
    "gciql-mlp",
    "ppo-iso-params",
    "ppo-carried",
    "imitation-carried",
    "gciql-differences",
    "gciql-critics",
    # Whose parts the others and the tests of equivalence have too.
    *(
        pytest.param(name, marks=thorough)
        for name in (
            "ppo-in-step",
            "ppo-drc",
            "ppo-fixed-4",
            "imitation-rush-hour",
            "gciql-mapped",
            "gciql-iso-flops",
        )
    ),
]
REFUSED = {"ppo-window": "window", "ppo-random-caps": "min_cap", "ppo-authors": "authors' recipe"}
"""Runs with options that this version does not have."""


@pytest.fixture(autouse=True)
def double_precision(x64):
    """The runs were made in float64, by an option that is now JAX_ENABLE_X64."""


def unpacked(name, tmp_path, *, checkpoint=False):
    """A folder as it was written; without its checkpoint, one that was begun and not trained."""
    with zipfile.ZipFile(HERE / f"{name}.zip") as file:
        names = [n for n in file.namelist() if checkpoint or not n.startswith(("checkpoints", "policy"))]
        file.extractall(tmp_path, names)
    expected = rows_of(tmp_path)
    evaluations = {p.name: json.loads(p.read_text()) for p in tmp_path.glob("evaluations/*.json")}
    if not checkpoint:
        (tmp_path / "metrics.csv").unlink()
    return expected, evaluations


def rows_of(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def assert_equal(found, expected):
    """All columns that were there, but for how loops were packed into the hardware."""
    assert len(found) == len(expected) == 4
    for ours, theirs in zip(found, expected, strict=True):
        for name, value in theirs.items():
            if not name.endswith(("executed", "utilisation")):
                ours_is, theirs_is = (float(text or "nan") for text in (ours[name], value))
                assert ours_is == pytest.approx(theirs_is, rel=1e-9, abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("name", WHOLE)
def test_a_run_is_what_it_was(name, tmp_path):
    expected, evaluations = unpacked(name, tmp_path)
    assert train_run(read_run(tmp_path), tmp_path, all_devices(1)) is Ending.FINISHED
    assert_equal(rows_of(tmp_path), expected)
    for file, facts in evaluations.items():
        found = json.loads((tmp_path / "evaluations" / file).read_text())
        for name in facts.keys() - {
            "interval_95",
            "by_optimal_moves",
            "optimal_actions_interval_95",
            "capped",
        }:
            assert found[name] == pytest.approx(facts[name], rel=1e-9), name
        assert found["interval_95"] == pytest.approx(facts["interval_95"], abs=1e-12)


@pytest.mark.parametrize("name", [*WHOLE, "gciql"])
def test_a_run_goes_on_from_a_checkpoint_of_that_commit(name, tmp_path):
    expected, _ = unpacked(name, tmp_path, checkpoint=True)
    config = read_run(tmp_path)
    assert policy_at(tmp_path, "2").name.endswith("steps")
    if name == "gciql":
        fit_run(tmp_path, run_of(config, tmp_path, all_devices(1)))
    else:
        (tmp_path / "policy" / "policy.safetensors").unlink()
        train_run(config, tmp_path, all_devices(1))
    assert_equal(rows_of(tmp_path), expected)
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",") == list(expected[0])


def fit_run(folder, run, trainer=None):
    """Train without an evaluation: this is about learning, and needs no MuJoCo."""
    fit(
        trainer or run.trainer,
        folder,
        seed=run.config.seed,
        fingerprint=fingerprint_of(folder),
        schedule=run.config.schedule,
        evaluate=lambda state: {"success": 0.0, "loops": 1.0, "prefers": 0.0},
    )


@pytest.mark.parametrize("name", LEARNED)
def test_learning_is_what_it_was(name, tmp_path):
    expected, _ = unpacked(name, tmp_path)
    fit_run(tmp_path, run_of(read_run(tmp_path), tmp_path, all_devices(1)))
    assert_equal(rows_of(tmp_path), expected)


def test_the_authors_recipe_is_what_it_was(tmp_path):
    """With two hard resets, where the recipe has a hundred."""
    expected, _ = unpacked("ppo-authors", tmp_path)
    run = run_of(read_config(tmp_path / "config.json"), tmp_path, all_devices(1))
    assert run.config.recipe == "authors"
    assert isinstance(run.trainer, PPO)
    fit_run(tmp_path, run, replace(run.trainer, recipe=replace(AUTHORS, hard_resets=2)))
    assert_equal(rows_of(tmp_path), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_with_a_removed_option_is_not_continued(name, tmp_path):
    unpacked(name, tmp_path)
    with pytest.raises(UserError, match=rf"{REFUSED[name]}.*continue the run with version 0\.2"):
        read_run(tmp_path)


def test_a_run_in_double_precision_is_continued_in_double_precision_only(tmp_path):
    unpacked("ppo-iso-params", tmp_path)
    with jax.enable_x64(False), pytest.raises(UserError, match="double_precision"):
        read_run(tmp_path)
