"""Small runs compiled for a TPU that is not attached."""

import importlib.util
import json
import subprocess
import sys

import pytest

from helpers import thorough
from looped_actor.planning.chips import Topology

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed, which compiles for TPUs: pip install 'looped-actor[plan]'",
)

PLAN = """
import json, pathlib, sys
from looped_actor.planning.chips import Topology
from looped_actor.planning.plan import plan_run
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.utils.codec import replace_fields

task, changes, cache = sys.argv[1], json.loads(sys.argv[2]), pathlib.Path(sys.argv[3])
topology = Topology.parse("v5e:1")
run = run_of(replace_fields(preset(task, "micro"), changes), mesh=topology.compile_only_mesh())
print(json.dumps(plan_run(run, topology, cache=cache).results))
"""
NET = {"arm.core.width": 8, "arm.core.heads": 1, "arm.core.hidden": 24, "arm.halting.max_loops": 3}
PUZZLE = NET | {
    "algorithm.num_envs": 16,
    "algorithm.rollout_steps": 8,
    "algorithm.minibatch": 32,
    "levels.train_count": 60,
    "levels.held_out_count": 20,
    "levels.evaluate_count": 10,
}
ROBOT = NET | {
    "algorithm.batch": 16,
    "algorithm.updates_per_iteration": 5,
    "algorithm.hidden": [8],
    "data.transitions": 40,
    "episodes": 1,
}


def plan(task, changes, cache):
    """Plan in a process of its own: a compiler for TPUs changes JAX for the whole process."""
    words = [sys.executable, "-c", PLAN, task, json.dumps(changes), str(cache)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("task", "changes"), [("puzzle-3x3", ROBOT), pytest.param("rush-hour", PUZZLE, marks=thorough)]
)
def test_a_small_run_is_planned_for_a_chip(task, changes, tmp_path):
    found = plan(task, changes, tmp_path)
    names = {loop["name"].partition("_")[0] for loops in found["programs"].values() for loop in loops}
    assert {"settle", "tick", "forward", "backward"} <= names
    assert 0 < found["memory"] < found["chip_memory"] == 16 * 2**30
    assert 0 < found["seconds"] < 10
    assert plan(task, changes, tmp_path) == found  # from the cache: the seconds of compiling are the same


def test_a_topology_that_does_not_exist_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="the compiler does not know it"):
        Topology.parse("v5e:3x7").compile_only_mesh()
