"""Runs with the options of the study: the numbers of version 0.2, and what the options do to the weights.

PYTHONPATH=src pytest studies/depth
"""

import csv
import pathlib
import zipfile

import jax
import numpy as np
import pytest
from study_runs import make_config

from looped_actor.models import AUTHORS_INITIAL
from looped_actor.runs.config import config_from, read_config
from looped_actor.runs.registry import run_of
from looped_actor.training import fit
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import to_json
from looped_actor.utils.errors import UserError

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "runs"


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make_run(name, folder, **options):
    """Unpack a run of tests/golden, and return it with options of the study, not trained."""
    with zipfile.ZipFile(GOLDEN / f"{name}.zip") as file:
        file.extractall(folder, [one for one in file.namelist() if one.startswith(("config", "levels"))])
    config = make_config(read_config(folder / "config.json"), {}, **options)
    assert config_from(to_json(config)) == config
    return run_of(config, folder, all_devices(1))


def read_metrics(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def test_random_caps_and_measured_gradients_are_those_of_version_0_2(tmp_path):
    run = make_run("ppo-random-caps", tmp_path, min_cap=2, measure_gradients=True)
    facts = {"success": 0.0, "loops": 1.0}
    schedule = run.config.schedule
    fit(run.trainer, tmp_path, seed=0, fingerprint="", schedule=schedule, evaluate=lambda state: facts)
    expected = read_metrics(zipfile.Path(GOLDEN / "ppo-random-caps.zip", "metrics.csv"))
    found = read_metrics(tmp_path / "metrics.csv")
    assert len(found) == len(expected) == 4
    assert found[0].keys() == expected[0].keys()
    for ours, theirs in zip(found, expected, strict=True):
        for name, value in theirs.items():
            if not name.endswith(("executed", "utilisation")):
                numbers = (float(text or "nan") for text in (ours[name], value))
                assert next(numbers) == pytest.approx(next(numbers), rel=1e-9, abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("blocks", ["apart", "together", None])
def test_blocks_begin_alike_and_stay_alike_only_together(blocks, tmp_path):
    trainer = make_run("ppo-iso-flops", tmp_path, blocks=blocks).trainer

    def are_alike(state):
        cores = jax.tree.leaves(state.learner.parameters["trunk"]["cores"])
        return all(bool((leaf == leaf[:1]).all()) for leaf in cores)

    first = trainer.init(0)
    last, _ = trainer.iterate(trainer.iterate(first)[0])
    assert are_alike(first) == (blocks is not None)
    assert are_alike(last) == (blocks == "together")
    assert any(
        (before != after).any()
        for before, after in zip(
            *(jax.tree.leaves(state.learner.parameters["trunk"]) for state in (first, last)), strict=True
        )
    )


@pytest.mark.parametrize("name", ["ppo-random-caps", "imitation-boxoban"])
def test_initial_weights_are_those_of_the_configuration(name, tmp_path):
    own = make_run(name, tmp_path, measure_gradients=True).trainer
    authors = make_run(name, tmp_path, initial=AUTHORS_INITIAL).trainer
    assert own.recipe.shuffle == authors.recipe.shuffle == "examples"

    def latent(trainer, seed):
        return np.asarray(jax.tree.leaves(trainer.init(seed).fixed)[0])

    assert (latent(authors, 0) == latent(authors, 1)).all()
    assert (latent(own, 0) != latent(own, 1)).any()
    assert "core_gradient" in own.iterate(own.init(0))[1]
    assert "core_gradient" not in authors.iterate(authors.init(0))[1]


def test_a_cap_above_that_of_the_net_is_refused(tmp_path):
    with pytest.raises(UserError, match="min_cap is 5; it must be from 1 to 4"):
        make_run("ppo-random-caps", tmp_path, min_cap=5)
