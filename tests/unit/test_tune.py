"""What suits the hardware at hand is timed, remembered, and used."""

import json
import subprocess
import sys

import jax
import pytest

from helpers import thorough
from looped_actor.loop.hardware import CPU, default_chunk, default_slots, remember, suited, tuned_file
from looped_actor.planning import tune
from looped_actor.planning.bench_work import asked_work
from looped_actor.training.sharding import all_devices
from looped_actor.utils.files import FileError


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_was_tuned_is_used_for_its_kind_of_device_alone():
    remember("TPU v5 lite", 10_000, 20_000)
    assert suited() == CPU
    remember(jax.devices()[0].device_kind, 4_000, 9_000)
    assert (default_chunk(1000), default_slots(1000)) == (4, 9)
    assert json.loads(tuned_file().read_text()).keys() == {"TPU v5 lite", "cpu"}


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"cpu": 3}', '{"cpu": {"chunk": 1}}', '{"cpu": {"chunk": 1, "slots": true}}']
)
def test_a_file_that_is_damaged_is_named(text):
    tuned_file().parent.mkdir()
    tuned_file().write_text(text)
    with pytest.raises(FileError, match=r"tuned\.json"):
        suited()


def test_a_change_must_be_worth_it():
    times = {2: 1.0, 1: 0.98, 4: 1.2}
    assert tune.Tuned("cpu", times, times | {8: 0.9}, 100).chunk == 2
    assert tune.Tuned("cpu", times, times | {8: 0.9}, 100).slot == 8


SMALL = {"core.width": 8, "core.heads": 1, "core.hidden_multiple": 8}
"""A net of the paper's size takes minutes without XLA's optimisations."""


def test_rollouts_and_updates_are_timed(monkeypatch):
    monkeypatch.setattr(tune, "FACTORS", (1,))
    found = tune.tune(asked_work("easy", True, SMALL), all_devices(1), 1, lambda fraction, what: None)
    assert found == tune.Tuned("cpu", {16: 1.0}, {16: 1.0}, 101 * 8)


def test_candidates_are_different_programs():
    work, mesh = asked_work("easy", True, SMALL), all_devices(1)

    def text(slots):
        program, given = tune._job(work, mesh, "collect", (None,), slots=slots)
        return program.lower(*given).as_text()

    assert text(8) != text(16)


@thorough
def test_the_command_remembers_what_it_chose(tmp_path):
    command = [sys.executable, "-m", "looped_actor", "tune", "--rounds", "1", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    wanted = {"chunk": found["chunk"] * found["latent"], "slots": found["slot"] * found["latent"]}
    assert json.loads((tmp_path / "looped-actor" / "tuned.json").read_text()) == {"cpu": wanted}
