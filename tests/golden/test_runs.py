"""Short runs of every learner and arm, as commits 395f374 and cd662b2 made them: the same numbers, and their
folders still go on.

Each zip file is a folder that this commit wrote, with metrics of four iterations in float64: another order of
sums, or another processor, shows in the last digits only, hence a tolerance.
"""

import csv
import json
import pathlib
import zipfile

import jax
import pytest

from helpers import thorough
from looped_actor.devices import all_devices
from looped_actor.policies.load import policy_at
from looped_actor.runs.folder import fingerprint_of, read_run, train_run
from looped_actor.runs.kinds import run_of
from looped_actor.training import Ending, fit

HERE = pathlib.Path(__file__).parent / "runs"
WHOLE = ["ppo-streamed", "imitation-boxoban"]
"""Also evaluated, and with a checkpoint of the second iteration."""
LEARNED = [
    "ppo-iso-flops",
    "gciql",
    "gciql-mlp",
    "ppo-iso-params",
    "ppo-carried",
    "ppo-authors",
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
            "ppo-window",
            "ppo-random-caps",
            "imitation-rush-hour",
            "gciql-mapped",
            "gciql-iso-flops",
        )
    ),
]


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
        fitted(tmp_path, config)
    else:
        (tmp_path / "policy" / "policy.safetensors").unlink()
        train_run(config, tmp_path, all_devices(1))
    assert_equal(rows_of(tmp_path), expected)
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",") == list(expected[0])


def fitted(folder, config):
    """Trained without an evaluation: this is about learning, and needs no MuJoCo."""
    with jax.enable_x64(True):
        fit(
            run_of(config, folder, all_devices(1)).trainer,
            folder,
            seed=config.seed,
            fingerprint=fingerprint_of(folder),
            schedule=config.schedule,
            evaluate=lambda state: {"success": 0.0, "loops": 1.0, "prefers": 0.0},
        )


@pytest.mark.parametrize("name", LEARNED)
def test_learning_is_what_it_was(name, tmp_path):
    expected, _ = unpacked(name, tmp_path)
    fitted(tmp_path, read_run(tmp_path))
    assert_equal(rows_of(tmp_path), expected)
