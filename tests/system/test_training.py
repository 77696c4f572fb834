"""Training runs: folders, interruptions, policies, evaluations, and input that is refused."""

import csv
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from test_commands import COMMAND, ROOT, UNOPTIMISED, run

import looped_actor
from helpers import evaluated, thorough
from looped_actor.puzzles.banks import open_bank, starter_bank, write_bank
from looped_actor.puzzles.boxoban.env import Boxoban
from looped_actor.puzzles.generate import generate
from looped_actor.runs.folder import begin_run, fingerprint_of, read_run, train_run
from looped_actor.runs.load import load_policy
from looped_actor.runs.registry import run_of
from looped_actor.training import BrokenTrainingError, CheckpointError, Ending, fit
from looped_actor.training.sharding import all_devices
from looped_actor.utils.errors import PolicyError
from tiny import CHANGES, LOOPED_CHANGES, tiny

SETTINGS = [f"{name}={json.dumps(value)}" for name, value in (CHANGES | LOOPED_CHANGES).items()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of a run that ended."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    config = begin_run(tiny(), folder)
    assert train_run(config, folder, all_devices(1)) is Ending.FINISHED
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of it, to damage."""
    return pathlib.Path(shutil.copytree(finished, tmp_path / "copy"))


def rows_of(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@thorough
def test_a_run_can_be_timed(finished, tmp_path):
    script = [
        sys.executable,
        str(ROOT / "benchmarks" / "savings.py"),
        "--out",
        str(tmp_path / "timings.json"),
    ]
    words = ["--policy", str(finished), "--work", "iteration", "--quick", "--devices", "1"]
    done = run(*script, *words, **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    timings = json.loads((tmp_path / "timings.json").read_text())["timings"]
    timing = timings[str(finished)]["iteration"]
    for work in (timing, timing["rollout"], timing["update"]):
        assert 1 <= work["mean_loops"] <= work["max_loops"] == 4
        assert work["executed_over_needed"] >= 1
        assert min(work["over_frozen"], work["over_bare"], work["iso_flops_over_frozen"]) > 0
    assert timing["work"] == "iteration"


def test_a_folder_holds_all_of_a_run(finished):
    rows = rows_of(finished)
    assert [int(row["steps"]) for row in rows] == [128 * i for i in range(1, 7)]
    for row in rows:
        assert math.isfinite(float(row["loss"]))
        assert 1 <= float(row["loops"]) <= 4
        assert float(row["acting_executed"]) >= 1
        assert float(row["learning_executed"]) >= 1
    assert len((finished / "timings.csv").read_text().splitlines()) == 7
    assert list((finished / "tensorboard").glob("events.out.tfevents.*"))
    assert sorted(path.name for path in (finished / "evaluations").iterdir()) == [
        "000000000512.json",
        "000000000768.json",
    ]
    results = json.loads((finished / "evaluations" / "000000000768.json").read_text())
    assert results["levels"] == 10
    assert sum(results["loop_histogram"].values()) == round(results["mean_steps"] * 10)
    config = read_run(finished)
    assert min(config.microbatch, config.slots) >= 1  # chosen for the device
    assert config == replace(tiny(), microbatch=config.microbatch, slots=config.slots)
    provenance = json.loads((finished / "provenance.json").read_text())
    splits = ("train", "held_out", "valid")
    banks = {split: open_bank(finished / "levels" / f"{split}.levels") for split in splits}
    assert provenance == {split: bank.info.checksum for split, bank in banks.items()}


def test_three_banks_have_no_level_in_common(finished):
    banks = [open_bank(finished / "levels" / f"{name}.levels") for name in ("train", "valid", "held_out")]
    assert [len(bank) for bank in banks] == [60, 10, 20]
    levels = [cells.tobytes() for bank in banks for cells in bank.cells(slice(None))]
    assert len(set(levels)) == len(levels)


def test_each_bank_is_played_when_it_should_be(finished):
    """Validation levels and as many training levels during training; all test levels at the end."""
    folder, policy = finished / "levels", load_policy(finished)

    def compared(results):
        return [results[name] for name in ("levels", "solved", "loops", "mean_steps", "loop_histogram")]

    last = json.loads((finished / "evaluations" / "000000000768.json").read_text())
    played = {
        split: looped_actor.evaluate(policy, folder / f"{split}.levels", count=count, mesh=all_devices(1))
        for split, count in (("train", 10), ("valid", None), ("held_out", None))
    }
    assert compared(last) == compared(played["valid"])
    assert compared(last["train"]) == compared(played["train"])
    assert compared(json.loads((finished / "test.json").read_text())) == compared(played["held_out"])
    assert len({tuple(map(str, compared(results))) for results in played.values()}) == 3


def test_a_run_of_two_banks_is_validated_on_the_test_levels(tmp_path):
    easy = generate(tiny().levels.recipe, {"held_out": 5, "train": 8})
    for split, bank in easy.items():
        write_bank(bank, tmp_path / f"{split}.levels")
    given = {f"levels__{split}": str(tmp_path / f"{split}.levels") for split in easy}
    run = run_of(tiny(**given), tmp_path / "run")
    assert set(run.prepare()) == {"train", "held_out"}
    assert run.bank("valid").info.checksum == easy["held_out"].info.checksum


def test_a_checkpoint_is_evaluated_without_the_training_levels(copy):
    for split in ("train", "held_out"):
        (copy / "levels" / f"{split}.levels").rename(copy / f"{split}.elsewhere")
    results = evaluated(copy, "best", levels=copy / "held_out.elsewhere", count=5)
    assert results["levels"] == 5
    assert results["policy"].endswith("steps")


def test_a_finished_run_stays_finished(copy):
    before = (copy / "metrics.csv").read_bytes()
    assert train_run(read_run(copy), copy, all_devices(1)) is Ending.FINISHED
    assert (copy / "metrics.csv").read_bytes() == before


def test_a_run_is_not_overwritten(finished):
    with pytest.raises(ValueError, match="is the folder of a run already: `looped-actor resume"):
        begin_run(tiny(), finished)


def test_an_earlier_checkpoint_leads_to_the_same_end(finished, copy):
    """Simulate a kill: newer checkpoints are missing, and metrics.csv is ahead of the last one."""
    for newer in (4, 6):
        shutil.rmtree(copy / "checkpoints" / str(newer), ignore_errors=True)
    assert [path.name for path in (copy / "checkpoints").iterdir()] == ["2"]
    with (copy / "metrics.csv").open("a") as file:
        file.write("7,half a row")
    shutil.rmtree(copy / "policy")
    train_run(read_run(copy), copy, all_devices(1))
    for name in ("metrics.csv", "policy/policy.safetensors", "evaluations/000000000768.json"):
        assert (copy / name).read_bytes() == (finished / name).read_bytes(), name


def test_a_run_that_carries_latents_does_too(tmp_path):
    """The carry is in its checkpoints."""
    whole = begin_run(tiny(arm__carry_latent=True, total_steps=4 * 128), tmp_path / "whole")
    train_run(whole, tmp_path / "whole", all_devices(1))
    copy = pathlib.Path(shutil.copytree(tmp_path / "whole", tmp_path / "copy"))
    shutil.rmtree(copy / "checkpoints" / "4")
    shutil.rmtree(copy / "policy")
    train_run(read_run(copy), copy, all_devices(1))
    for name in ("metrics.csv", "policy/policy.safetensors", "evaluations/000000000512.json"):
        assert (copy / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    results = evaluated(copy, count=5)
    assert results["start"] == "carried"
    assert evaluated(copy, count=5, carry_latent=False)["start"] == "fixed"


@pytest.mark.parametrize(
    ("task", "arm"),
    [
        ("boxoban", "iso-params"),
        ("rush-hour", "iso-flops"),
        ("boxoban", "drc"),
        ("rush-hour", "fixed-4"),
    ],
)
def test_the_other_arms_train_save_and_load(task, arm, tmp_path):
    config = begin_run(tiny(task, arm, total_steps=128), tmp_path / "run")
    train_run(config, tmp_path / "run", all_devices(1))
    policy = load_policy(tmp_path / "run")
    assert policy.spec.arm == policy.config.arm.name == arm
    results = evaluated(tmp_path / "run", count=5)
    assert results["levels"] == 5
    assert results["max_loops"] == {"iso-params": 1, "iso-flops": 4, "drc": 2, "fixed-4": 4}[arm]
    if arm == "fixed-4":
        assert evaluated(tmp_path / "run", count=5, max_loops=6)["loops"] == 6
    else:
        for change in ({"max_loops": 6}, {"carry_latent": True}):
            with pytest.raises(ValueError, match=f"{arm} does not loop"):
                evaluated(tmp_path / "run", count=5, **change)


def test_a_run_in_double_precision_is_evaluated(x64, tmp_path):
    train_run(begin_run(tiny(total_steps=128), tmp_path), tmp_path, all_devices(1))
    tensors = safetensors.numpy.load_file(tmp_path / "policy" / "policy.safetensors")
    assert {array.dtype for name, array in tensors.items() if "parameters" in name} == {np.dtype("float64")}
    results = evaluated(tmp_path, count=5)
    assert results["levels"] == 5
    assert 1 <= results["loops"] <= 4


def test_a_policy_loads_and_acts_as_it_did(finished):
    policy = looped_actor.load_policy(finished / "policy")
    bank = open_bank(finished / "levels" / "held_out.levels")
    env = Boxoban(bank.on_device(), policy.config.time_limit)
    boards = jax.vmap(env.observe)(jax.vmap(env.reset_to)(jnp.arange(10)))
    output = policy(boards)
    assert output.distribution.logits.shape == (10, 4)
    assert output.value.shape == (10,)
    deeper = policy(boards, halting=looped_actor.PolicyKL(threshold=0.0, max_loops=9))
    assert (deeper.loop.loops == 9).all()
    # Level by level and step by step, it does what the evaluation reports.
    results = evaluated(finished, count=8)
    solved, loops = 0, []

    @jax.jit
    def step(state):
        output = policy(env.observe(state)[None])
        state, outcome = env.step(state, output.distribution.mode()[0])
        return state, outcome.terminated, output.loop.loops[0]

    for level in range(8):
        state, ended = env.reset_to(jnp.int32(level)), False
        for _ in range(env.time_limit):
            if not ended:
                state, ended, needed = step(state)
                loops.append(int(needed))
        solved += bool(ended)
    assert results["solved"] == solved
    assert results["loops"] == pytest.approx(np.mean(loops))


def test_the_policy_of_the_recorded_run_still_plays(tmp_path):
    """The record: 93.2% of 1,000 test levels, of which these are the first hundred."""
    recipe = load_policy(ROOT / "results" / "micro_rush_hour").config.levels.recipe
    write_bank(generate(recipe, {"held_out": 100})["held_out"], tmp_path / "held_out.levels")
    results = evaluated(ROOT / "results" / "micro_rush_hour", levels=tmp_path / "held_out.levels")
    assert results["success"] > 0.85
    by_length = [row["loops"] for row in results["by_optimal_moves"]]
    assert by_length[-1] > by_length[0]  # more loops on levels with longer solutions


def test_caps_and_thresholds_change_at_test_time(finished):
    def loops(**options):
        return evaluated(finished, count=10, **options)

    assert loops(max_loops=1)["loops"] == 1
    assert loops(max_loops=12, threshold=0.0)["loops"] == 12
    assert loops(min_loops=3)["loops"] >= 3
    assert loops(checkpoint="best")["policy"].endswith("steps")
    assert loops(checkpoint="4")["policy"].endswith("512 steps")
    assert loops(levels=pathlib.Path(starter_bank("boxoban").name))["levels"] == 10  # boards of another size


def test_baselines_are_played_on_request(finished):
    results = evaluated(finished, baselines=True)
    assert set(results["baselines"]) == {"at random", "greedily"}
    assert sum(row["levels"] for row in results["by_optimal_moves"]) == results["levels"] == 20


def damage(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (
            lambda folder: evaluated(folder, checkpoint="newest"),
            "best, latest or an iteration",
        ),
        (lambda folder: evaluated(folder, checkpoint="5"), "no checkpoint 5; there are [2, 4, 6]"),
        (lambda folder: evaluated(folder, levels=folder / "none"), "there is no such file"),
        (lambda folder: evaluated(folder / "policy", checkpoint="best"), "has no checkpoints"),
        (lambda folder: evaluated(folder / "nowhere"), "is not a folder"),
        (lambda folder: evaluated(folder / "levels"), "is not the folder of a run"),
        (lambda folder: evaluated(folder, threshold=-1.0), "threshold is -1"),
        (lambda folder: evaluated(folder, count=0), "count is 0"),
        (
            lambda folder: evaluated(folder, levels=pathlib.Path(starter_bank("rush-hour").name)),
            "holds levels of rush-hour; this run plays boxoban",
        ),
    ],
)
def test_impossible_evaluations_are_refused(evaluate, message, finished):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        evaluate(finished)
    assert message in str(error.value)


def resumed(folder):
    return train_run(read_run(folder), folder, all_devices(1))


def test_a_truncated_checkpoint_is_named(copy):
    place = copy / "checkpoints" / "6" / "state"
    data = max(place.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    damage(data, lambda data: data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="delete this folder to resume from checkpoint 4"):
        resumed(copy)


@pytest.mark.parametrize("where", [0.2, 0.5, 0.8])
def test_a_flipped_bit_is_noticed(where, copy):
    place = copy / "checkpoints" / "6" / "state"
    for data in place.rglob("d/*"):
        damage(data, lambda data: flipped(data, int(len(data) * where)))
    with pytest.raises(CheckpointError, match="this checkpoint is damaged"):
        resumed(copy)


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


def test_a_missing_bookmark_is_named(copy):
    shutil.rmtree(copy / "checkpoints" / "6" / "bookmark")
    with pytest.raises(CheckpointError, match="this checkpoint is damaged"):
        resumed(copy)


def test_a_changed_configuration_is_noticed(copy):
    damage(copy / "config.json", lambda text: text.replace(b'"epochs": 2', b'"epochs": 3'))
    with pytest.raises(CheckpointError, match="another configuration"):
        resumed(copy)


def test_a_checkpoint_of_another_net_is_named_by_its_shapes(finished):
    from looped_actor.training import Checkpoints

    checkpoints = Checkpoints(finished / "checkpoints", fingerprint_of(finished), read_only=True)
    like = run_of(tiny(arm__core__width=16), finished, all_devices(1)).trainer.init(0)
    with pytest.raises(CheckpointError, match=r"is \(.*\) in the checkpoint and \(.*\) in this run"):
        checkpoints.restore(like)


def test_shortened_metrics_are_noticed(copy):
    damage(copy / "metrics.csv", lambda text: text[:-10])
    shutil.rmtree(copy / "checkpoints" / "6")
    damage(copy / "metrics.csv", lambda text: text[:300])
    with pytest.raises(ValueError, match="was changed or cut since"):
        resumed(copy)


def test_exchanged_levels_are_noticed(copy):
    shutil.copy(copy / "levels" / "held_out.levels", copy / "levels" / "train.levels")
    with pytest.raises(ValueError, match="not the levels that the run began with"):
        resumed(copy)


def test_missing_levels_are_named(copy):
    (copy / "levels" / "train.levels").unlink()
    with pytest.raises(ValueError, match=r"train.levels.*there is no such file"):
        resumed(copy)


def rewritten(change):
    def damaged(data):
        tensors = safetensors.numpy.load(data)
        change(tensors)
        return safetensors.numpy.save(tensors, metadata={"format": "looped-actor policy 1"})

    return damaged


def first(tensors):
    return next(name for name in tensors if "qkv" in name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:200], "this is not a safetensors file"),
        (lambda data: b"\x80\x04" + data, "this is not a safetensors file"),
        (lambda data: b"", "this is not a safetensors file"),
        (
            rewritten(lambda t: t.update({first(t): np.zeros((3, 3), np.float32)})),
            "is (3, 3); for its",
        ),
        (rewritten(lambda t: t.pop(first(t))), "is missing; for its config.json it must be (8, 24)"),
        (rewritten(lambda t: t.update(extra=np.zeros(2, np.float32))), "unexpected tensor extra"),
        (rewritten(lambda t: t[first(t)].fill(np.nan)), "not finite floating-point numbers"),
        (
            rewritten(lambda t: t.update({first(t): t[first(t)].astype(np.int32)})),
            "not finite floating-point numbers",
        ),
        (lambda data: safetensors.numpy.save(safetensors.numpy.load(data)), "format None"),
    ],
)
def test_a_tampered_policy_is_refused(change, message, copy):
    damage(copy / "policy" / "policy.safetensors", change)
    with pytest.raises(PolicyError) as error:
        load_policy(copy)
    assert message in str(error.value)


def test_a_policy_needs_its_configuration(copy):
    damage(copy / "policy" / "config.json", lambda text: text.replace(b'"width": 8', b'"width": 16'))
    with pytest.raises(PolicyError, match=r"for its config.json it must be \(16,"):
        load_policy(copy / "policy")
    (copy / "policy" / "config.json").unlink()
    with pytest.raises(PolicyError, match="there is no such file"):
        load_policy(copy / "policy")
    with pytest.raises(PolicyError, match="a run writes its policy when it ends"):
        load_policy(copy / "levels")


def test_a_run_that_breaks_stops_with_its_last_good_checkpoint(tmp_path, monkeypatch):
    """Advantages turn to NaN in the fifth iteration: a fault that only an injection can bring."""
    from looped_actor.algorithms import ppo

    advantages, learn, at = ppo.advantages, ppo.PPO._learn, {}

    def advantages_with_nan(*rollout, **options):
        found = advantages(*rollout, **options)
        return found._replace(advantage=found.advantage * jnp.where(at["iteration"] >= 4, jnp.nan, 1.0))

    def learn_and_note(self, vector, state, env_state, rollout):
        at["iteration"] = state.iteration
        return learn(self, vector, state, env_state, rollout)

    monkeypatch.setattr(ppo, "advantages", advantages_with_nan)
    monkeypatch.setattr(ppo.PPO, "_learn", learn_and_note)
    monkeypatch.setattr(sys.modules[fit.__module__], "MAX_SKIPPED_IN_A_ROW", 12)
    folder = tmp_path / "run"
    config = begin_run(tiny(total_steps=50 * 128), folder)
    with pytest.raises(BrokenTrainingError) as error:
        train_run(config, folder, all_devices(1))
    assert "not finite in the last 16 updates" in str(error.value)  # two iterations of 8
    assert "the last good checkpoint is that of iteration 4" in str(error.value)
    rows = rows_of(folder)
    assert [int(row["skipped_updates"]) for row in rows] == [0, 0, 0, 0, 8, 16]
    monkeypatch.undo()
    results = evaluated(folder, checkpoint="latest")
    assert results["policy"].endswith("512 steps")


def start(*words):
    """Start a command."""
    command = [*COMMAND, *map(str, words)]
    flags = os.environ | UNOPTIMISED
    return subprocess.Popen(command, env=flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def started(folder, *settings):
    """Start a process that trains the tiny run, and wait until it has written three rows."""
    process = start("train", "boxoban", "--devices", 1, "--out", folder, "--set", *SETTINGS, *settings)
    while not (folder / "metrics.csv").exists() or len(rows_of(folder)) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    return process


def test_sigterm_saves_and_ends(tmp_path):
    folder = tmp_path / "run"
    process = started(folder, "checkpoint_every=1000", "evaluate_every=1000", "total_steps=10000000")
    process.send_signal(signal.SIGTERM)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert f"saved; continue with: looped-actor resume {folder}" in " ".join(output.split())
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [str(len(rows_of(folder)))]
    assert not (folder / "policy").exists()


@thorough  # in CI, a grid of such runs is killed
def test_a_run_that_was_killed_ends_as_one_that_was_not(finished, tmp_path):
    """SIGKILL at any moment: the resumed run ends with the bytes of one that was not interrupted."""
    folder = tmp_path / "run"
    process = started(folder)
    process.kill()
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert train_run(read_run(folder), folder, all_devices(1)) is Ending.FINISHED
    for name in ("metrics.csv", "policy/policy.safetensors", "evaluations/000000000768.json"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes(), name


@pytest.mark.parametrize(
    ("script", "options", "shown"),
    [
        pytest.param(
            "tests/faults/resume.py",
            ["--kills", "2", "--steps", "1920", "--task", "rush-hour"],
            '"exact": true',
            marks=thorough,
        ),
        pytest.param(
            "studies/scaling/devices.py",
            ["--precisions", "float64", "--processes"],
            '"agree": true',
            marks=thorough,
        ),
    ],
)
def test_what_the_studies_show_holds_at_small_size(script, options, shown):
    """Killed and resumed, or on several devices and processes, a run ends as one on one device does."""
    done = subprocess.run(
        [sys.executable, ROOT / script, *options],
        env=os.environ | UNOPTIMISED,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown in done.stdout


@pytest.mark.parametrize("command", [["train"], ["resume"], ["eval"], ["robots", "collect"]])
def test_help_shows_an_example(command):
    done = run(*COMMAND, *command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Example: looped-actor " + " ".join(command) in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train"], "which environment?"),
        (["train", "scene", "--data", "nowhere.npz"], "nowhere.npz: there is no such file; make it with"),
        (["train", "scene", "--levels", "a", "b"], "scene does not learn from levels: leave --levels out"),
        (["train", "boxoban", "--data", "a.npz"], "boxoban does not learn from data: leave --data out"),
        (["train", "scene", "--arm", "drc"], "needs a board"),
        (["train", "rush-hour", "--arm", "mlp"], "needs vectors"),
        (["robots", "collect", "kitchen"], "cube-double"),
        (["robots", "collect", "scene", "--transitions", "0"], "transitions is 0; it must be at least 1"),
        (["robots", "film", "nowhere"], "nowhere is not a folder"),
        (["robots", "film", "nowhere", "--every", "0"], "--every is too small"),
        (
            ["robots", "film", "nowhere", "--deviation", "2"],
            "--deviation is 2.0; it must be between 0 and 1",
        ),
        (["train", "boxoban", "--set", "algorithm.lr=1"], "there is no field 'algorithm.lr'"),
        (["train", "boxoban", "--set", "seed"], "write FIELD=VALUE"),
        (["train", "boxoban", "--arm", "critics"], "boxoban has no critics"),
        (["train", "scene", "--learner", "imitation"], "scene has no solver to imitate"),
        (["train", "boxoban", "--devices", "0"], "0 devices"),
        (["train", "boxoban", "--processes", "2"], "needs a coordinator"),
        (["train", "boxoban", "--scale", "paper", "--out", "/nonexistent/x"], "there is no such file"),
        (["train", "boxoban", "--levels", "a", "b"], "there is no such file"),
        (["train", "boxoban", "--config", "none.json"], "none.json: there is no such file"),
        (["resume", "nowhere"], "nowhere is not the folder of a run"),
        (["eval", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_mistakes_end_in_a_line(command, message, capsys, monkeypatch):
    from looped_actor.cli.main import main

    monkeypatch.setattr("sys.argv", ["looped-actor", *command])
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)  # devices are there already
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_dry_run_prints_fields_and_cost():
    command = [*COMMAND, "train", "rush-hour", "--dry-run", "--devices", "1", "--set", *SETTINGS]
    done = run(*command, COLUMNS="120", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    for words in ("parameters", "MFLOPs", "memory: a gradient", "algorithm.clip", "arm.core.width"):
        assert words in done.stdout


def test_a_plan_with_timings():
    command = [*COMMAND, "plan", "rush-hour", "--time", "--rounds", "1", "--set", *SETTINGS]
    done = run(*command, COLUMNS="120", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    for words in ("parameters", "MFLOPs", "memory: a gradient", "like this one", "fastest here"):
        assert words in done.stdout


def test_eval_prints_a_table_or_json(finished, tmp_path):
    done = run(*COMMAND, "eval", str(finished), "--count", "10", COLUMNS="120", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    assert "95% interval" in done.stdout
    assert "stopped by the cap" in done.stdout
    words = ["--count", "10", "--json", "--out", str(tmp_path / "e.json")]
    done = run(*COMMAND, "eval", str(finished), *words, **UNOPTIMISED)
    assert json.loads(done.stdout) == json.loads((tmp_path / "e.json").read_text())
