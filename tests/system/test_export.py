"""Exported policies, which run with JAX alone, and the package as a wheel."""

import importlib.metadata
import json
import pathlib
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from packaging.requirements import Requirement
from test_commands import command

import looped_actor
from looped_actor.envs import VectorEnv
from looped_actor.evaluation.options import ExportOptions
from looped_actor.models import GoalObservation
from looped_actor.policy.export import export_policy
from looped_actor.policy.policy import save_policy
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.rush_hour.env import RushHour
from looped_actor.runs.load import policy_at
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.utils.codec import replace_fields

ROOT = pathlib.Path(__file__).parents[2]
TRAINED = ROOT / "results" / "micro_rush_hour" / "policy"

WITHOUT_THIS_PACKAGE = """
import sys
sys.path[:0] = [sys.argv[1]]
import numpy as np
from jax.export import deserialize

folder = sys.argv[2]
for name in ("looped_actor", "flax", "optax", "orbax", "safetensors", "gymnasium"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} is installed: this is not JAX alone")
program = deserialize(bytearray(open(f"{folder}/policy.stablehlo", "rb").read()))
inputs = np.load(f"{folder}/inputs.npz")
for batch in (1, 3, len(inputs["0"])):
    results = program.call(*(inputs[name][:batch] for name in inputs.files))
    np.savez(f"{folder}/results-{batch}.npz", **results)
"""


@pytest.fixture(scope="module")
def jax_alone(tmp_path_factory):
    """Return a folder of packages with JAX and its requirements, and nothing else."""
    folder = tmp_path_factory.mktemp("jax-alone")
    pending, seen = ["jax", "flatbuffers"], set()
    while pending:
        name = pending.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        for path in {pathlib.Path(file).parts[0] for file in distribution.files or []} - {
            "..",
            "__pycache__",
        }:
            link = folder / path
            if not link.exists():
                link.symlink_to(distribution.locate_file(path))
        wanted = (Requirement(text) for text in distribution.requires or [])
        pending += [
            want.name for want in wanted if want.marker is None or want.marker.evaluate({"extra": ""})
        ]
    return folder


def run_with_jax_alone(jax_alone, folder, *inputs):
    """Run the program of a folder in another process, and return its results by batch size."""
    np.savez(folder / "inputs.npz", **{str(i): array for i, array in enumerate(inputs)})
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", WITHOUT_THIS_PACKAGE, str(jax_alone), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return {batch: dict(np.load(folder / f"results-{batch}.npz")) for batch in (1, 3, len(inputs[0]))}


def assert_agrees(results, output):
    """Check that actions and loops are equal, and other outputs up to rounding."""
    for batch, found in results.items():
        assert (found["loops"] == output.loop.loops[:batch]).all()
        expected = {"action": output.distribution.mode()}
        if "value" in found:
            expected |= {"logits": output.distribution.logits, "value": output.value}
            assert (found["action"] == expected.pop("action")[:batch]).all()
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array[:batch], rtol=1e-5, atol=1e-5)


def test_a_trained_policy_acts_the_same_with_jax_alone(monkeypatch, tmp_path, capsys, jax_alone):
    command(monkeypatch, "export", str(TRAINED), "--board", "6", "6", "--out", str(tmp_path))
    assert "input observation: uint8[batch, 6, 6, 7]" in capsys.readouterr().out
    assert json.loads((tmp_path / "signature.json").read_text())["platforms"] == ["cpu", "cuda", "tpu"]
    vector = VectorEnv(RushHour(starter_bank("rush-hour").on_device()), num_envs=64)
    _, boards = vector.reset(jax.random.key(0))
    output = looped_actor.load_policy(TRAINED)(boards)
    assert len(set(output.loop.loops.tolist())) > 2  # adaptive depth is tested
    assert_agrees(run_with_jax_alone(jax_alone, tmp_path, boards), output)
    again = looped_actor.load_policy(tmp_path)(boards)
    assert (again.distribution.logits == output.distribution.logits).all()


def test_a_robot_policy_acts_the_same_with_jax_alone(tmp_path, jax_alone):
    changes = {"arm.core.width": 8, "arm.core.heads": 1, "arm.core.hidden": 24}
    changes["arm.halting.threshold"] = 0.03
    config = replace_fields(preset("cube-double", "micro", "looped"), changes)
    save_policy(config, run_of(config).spec.init_weights(), tmp_path / "policy")
    signature = export_policy(
        policy_at(tmp_path / "policy"), ExportOptions(platforms=("cpu",)), tmp_path / "out"
    )
    assert list(signature["inputs"]) == ["state", "goal"]
    state, goal = np.random.default_rng(0).normal(0, 2, (2, 20, 37)).astype(np.float32)
    output = looped_actor.load_policy(tmp_path / "policy")(GoalObservation(state, goal))
    results = run_with_jax_alone(jax_alone, tmp_path / "out", state, goal)
    assert (np.abs(results[20]["action"]) <= 1).all()
    for found in results.values():
        found["action"] = found["mean"]
    assert_agrees(results, output)


def test_a_program_takes_and_returns_the_carried_latent(tmp_path, jax_alone):
    policy = policy_at(TRAINED).with_carry(True)
    options = ExportOptions(platforms=("cpu",), carry_latent=True)
    signature = export_policy(policy_at(TRAINED), options, tmp_path)
    assert list(signature["inputs"]) == ["observation", "latent", "reset"]
    assert signature["start"] == "carried"
    vector = VectorEnv(RushHour(starter_bank("rush-hour").on_device()), num_envs=8)
    _, boards = vector.reset(jax.random.key(0))
    boards = np.asarray(boards)[:, :5, :5]  # such a policy reads boards of any size
    carry = policy.act(boards[::-1]).carry.restart(np.arange(8) < 4)
    results = run_with_jax_alone(jax_alone, tmp_path, boards, *map(np.asarray, carry))
    output = policy(boards, carry=carry)
    assert_agrees(results, output)
    np.testing.assert_allclose(results[8]["latent"], output.loop.latent, rtol=1e-4, atol=1e-4)


def test_halting_rules_can_be_changed_and_mistakes_are_reported(tmp_path):
    options = ExportOptions(max_loops=16, threshold=1e-4, platforms=("cpu",))
    signature = export_policy(policy_at(TRAINED), options, tmp_path)
    assert signature["halting"]["max_loops"] == 16
    assert signature["platforms"] == ["cpu"]
    with pytest.raises(ValueError, match="has no cells"):
        export_policy(policy_at(TRAINED), replace(options, board=(0, 5)), tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        policy_at(tmp_path / "nothing")


def test_a_wheel_holds_all_that_is_needed(tmp_path):
    """Build, unpack and use the wheel in another folder; only its requirements come from here."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels, unpacked = tmp_path / "wheels", tmp_path / "unpacked"
    building = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels)]
    subprocess.run([*pip, *building], check=True, timeout=300)
    (wheel,) = wheels.iterdir()
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(unpacked), str(wheel)], check=True, timeout=300
    )
    use = f"""
import runpy, sys
sys.path[:0] = [{str(unpacked)!r}]
import gymnasium, looped_actor
assert looped_actor.__file__.startswith({str(unpacked)!r}), looped_actor.__file__
observation, _ = gymnasium.make("looped_actor/RushHour-v0").reset(seed=0)
print(looped_actor.load_policy({str(TRAINED)!r})(observation[None]).loop.loops)
sys.argv = ["looped-actor", "--help"]
runpy.run_module("looped_actor", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", use], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Adaptive-depth policies." in done.stdout
