"""Small runs compiled for a TPU that is not here, by the command that plans them."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from helpers import thorough
from looped_actor.planning.chips import Topology
from looped_actor.runs.config import write_config
from looped_actor.runs.presets import preset
from looped_actor.utils.codec import replaced
from tiny import CHANGES, WORLD_CHANGES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed, which compiles for TPUs: pip install 'looped-actor[plan]'",
)


def plan(*words, cache):
    command = [sys.executable, "-m", "looped_actor", "plan", *map(str, words)]
    env = os.environ | {"XDG_CACHE_HOME": str(cache)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(
    ("task", "changes"),
    [("puzzle-3x3", WORLD_CHANGES), pytest.param("rush-hour", CHANGES, marks=thorough)],
)
def test_a_small_run_is_planned_for_a_chip(task, changes, tmp_path):
    write_config(replaced(preset(task, "micro"), changes), tmp_path / "config.json")
    asked = ("--config", tmp_path / "config.json", "--topology", "v5e:1", "--json")
    done = plan(*asked, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = {part["name"].partition("_")[0] for parts in found["programs"].values() for part in parts}
    assert {"settle", "tick", "forward", "backward"} <= names
    assert 0 < found["memory"] < found["has"] == 16 * 2**30
    assert 0 < found["seconds"] < 10
    again = plan(*asked, cache=tmp_path)  # which compiles nothing
    assert json.loads(again.stdout) == found


def test_a_topology_that_is_none_is_said_in_one_sentence():
    with pytest.raises(ValueError, match="the compiler knows no such one"):
        Topology.named("v5e:3x7").compile_only_mesh()
