"""Configurations: written, read back, changed, refused."""

import functools
import json
import pathlib
import re
import zipfile
from dataclasses import replace
from typing import get_args

import jax.numpy as jnp
import pytest

from helpers import with_hidden_width
from looped_actor import CustomConfig
from looped_actor.algorithms import RECIPES, ImitationConfig, PPOConfig
from looped_actor.loop import FixedLoops, Packed, PolicyKL, Streaming
from looped_actor.loop.microbatch import default_microbatch, default_slots
from looped_actor.models import CoreConfig
from looped_actor.models.arms import Looped, Perceptron, Stacked
from looped_actor.models.tasks import TASKS
from looped_actor.names import ArmName
from looped_actor.policy.pretrained import PRETRAINED
from looped_actor.runs.config import PuzzleConfig, config_from, read_config
from looped_actor.runs.folder import begin_run
from looped_actor.runs.presets import PUZZLE_SCALES, preset
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import ConfigError, field_paths, from_json, replace_fields, to_json, write_json
from looped_actor.utils.files import FileError
from tiny import tiny, tiny_robot


@pytest.mark.parametrize("scale", PUZZLE_SCALES)
@pytest.mark.parametrize("task", TASKS)
def test_every_preset_survives_being_written(task, scale, tmp_path):
    for arm in set(get_args(ArmName)) - set(TASKS[task].unfit_arms):
        config = preset(task, scale, arm)
        write_json(config, tmp_path / "config.json")
        again = read_config(tmp_path / "config.json", resumable=True)
        assert again == config
        assert config.arm.name == config.trained == arm
        assert config.arm.max_loops >= 1
        assert config.iterations * config.steps_per_iteration >= config.total_steps


@pytest.mark.parametrize(
    ("task", "arm", "message"), [("scene", "drc", "board"), ("boxoban", "mlp", "vectors")]
)
def test_an_arm_that_does_not_fit_is_refused(task, arm, message):
    assert arm in get_args(ArmName)
    with pytest.raises(ValueError, match=message):
        preset(task, "micro", arm)


def test_fields_are_changed_by_path():
    config = preset("boxoban", "micro")
    changed = replace_fields(
        config, {"algorithm.learning_rate": 1, "levels.recipe.boxes": 2, "total_steps": 1e5}
    )
    assert changed.algorithm.learning_rate == 1.0
    assert changed.levels.recipe.boxes == 2
    assert changed.total_steps == 100_000
    # Halves that are wrong alone may be right together.
    assert replace_fields(config, {"arm.core.width": 9, "arm.core.heads": 3}).arm.core.width == 9
    assert "arm.halting.threshold" in field_paths(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm.lr": 1}, "there is no field 'algorithm.lr'; fields are "),
        (
            {"algorithm.learning_rate": "fast"},
            "config.algorithm.learning_rate is 'fast'; it must be of type float",
        ),
        ({"algorithm.learning_rate": -1}, "config.algorithm: learning_rate is -1.0; it must be above 0"),
        ({"algorithm.minibatch": 1000}, "do not divide into minibatches of 1000"),
        ({"algorithm.epochs": 1.5}, "config.algorithm.epochs is 1.5; it must be of type int"),
        ({"algorithm.epochs": True}, "config.algorithm.epochs is True; it must be of type int"),
        ({"arm.type": "deep"}, "there is no field 'arm.type'"),
        ({"arm": {"type": "deep"}}, "config.arm has type 'deep'; it must be one of Looped, "),
        ({"board": [6]}, "config.board is [6]; it must be a list of 2"),
        ({"board": [9, 9]}, "the recipe makes levels of 6x7: set both"),
        ({"arm.core.width": 30, "arm.core.heads": 4}, "width 30 is not divisible by 4 heads"),
        ({"arm.halting.max_loops": 1}, "min_loops=2 and max_loops=1"),
        ({"arm.core": 3}, "config.arm.core is 3; it must be an object with the fields of CoreConfig"),
        ({"levels.recipe": {"type": "Soup"}}, "one of BoxobanRecipe, RushHourRecipe"),
        ({"levels.train": "a.levels"}, "give both banks"),
        ({"levels.recipe": None}, "give banks to learn from"),
        ({"seed": -1}, "seed is -1"),
        ({"total_steps": 0}, "total_steps is 0"),
    ],
)
def test_wrong_values_are_named(changes, message):
    with pytest.raises(ConfigError) as error:
        replace_fields(preset("boxoban", "micro"), changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is not a JSON file"),
        ("[]", "it must be one of PuzzleConfig, RobotConfig, CustomConfig"),
        ('{"type": []}', "has type []; it must be one of PuzzleConfig, RobotConfig, CustomConfig"),
        ('{"type": "PuzzleConfig"}', "task"),
        ('{"task": "chess", "levels": {"train": "a", "held_out": "b"}}', "task is 'chess'"),
        ('{"type": "PuzzleConfig", "tusk": 1}', "has no field 'tusk'"),
        ("{}", "has type None; it must be one of PuzzleConfig, RobotConfig, CustomConfig"),
    ],
)
def test_a_wrong_file_is_named(text, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises((FileError, ConfigError)) as error:
        read_config(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match="there is no such file"):
        read_config(tmp_path / "config.json")


def test_json_holds_nothing_but_data():
    text = json.dumps(to_json(preset("rush-hour", "paper", "drc")))
    assert from_json(PuzzleConfig, json.loads(text)) == preset("rush-hour", "paper", "drc")
    # A type is compared with what the field may hold; it is never looked up by its name.
    for name in ("os.system", "PolicyKL", "RushHourRecipe"):
        spoiled = json.loads(text)
        spoiled["arm"]["type"] = name
        message = f"config.arm has type '{name}'; it must be one of Looped, Stacked, RepeatedConvLSTM"
        with pytest.raises(ConfigError, match=re.escape(message)):
            from_json(PuzzleConfig, spoiled)
        spoiled = json.loads(text)
        spoiled["levels"]["type"] = name
        message = f"config.levels has type '{name}'; it must be LevelsConfig"
        with pytest.raises(ConfigError, match=re.escape(message)):
            from_json(PuzzleConfig, spoiled)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm.discount": 1}, "config.algorithm: discount is 1.0; it must be between 0 and 1"),
        ({"algorithm.hidden": []}, "hidden is []; it must name at least one layer"),
        ({"algorithm.bc_weight": -1}, "bc_weight is -1.0"),
        ({"goals.current": 0.5}, "config.goals: shares of goals are (0.5, 0.5, 0.3)"),
        ({"data.transitions": 0}, "config.data: transitions is 0"),
        ({"episodes": 0}, "episodes is 0"),
        ({"arm": {"type": "Perceptron", "hidden": [0]}}, "config.arm: hidden is [0]"),
        ({"algorithm.epochs": 2}, "there is no field 'algorithm.epochs'"),
    ],
)
def test_wrong_values_of_offline_learning_are_named(changes, message):
    with pytest.raises(ConfigError) as error:
        replace_fields(preset("cube-double", "micro"), changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("boxoban", {"arm": {"type": "Perceptron"}}, "config.arm has type 'Perceptron'"),
        ("boxoban", {"arm": "iso-flops"}, "config.arm"),
        ("boxoban", {"arm": {}}, "config.arm has type None"),
        ("boxoban", {"arm": None}, "config.arm has type None"),
        ("boxoban", {"arm": {"type": ["Looped"]}}, "config.arm has type ['Looped']"),
        ("cube-double", {"arm": {"type": "RepeatedConvLSTM"}}, "config.arm has type 'RepeatedConvLSTM'"),
    ],
)
def test_an_arm_of_a_wrong_type_is_named_with_those_that_fit(task, changes, message):
    with pytest.raises(ConfigError) as error:
        replace_fields(preset(task, "micro"), changes)
    assert message in str(error.value)
    last = "RepeatedConvLSTM" if task == "boxoban" else "Perceptron"
    assert str(error.value).endswith(f"it must be one of Looped, Stacked, {last}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": {"type": "GCIQLConfig"}},
            "config.algorithm has type 'GCIQLConfig'; it must be one of ",
        ),
        ({"algorithm": 7}, "it must be one of PPOConfig, ImitationConfig"),
        ({"algorithm": {"num_envs": 64}}, "config.algorithm has type None; it must be one of PPOConfig, "),
        ({"algorithm": {"type": "PPOConfig", "solver_share": 1.0}}, "config.algorithm has no field "),
        ({"algorithm": {"type": "ImitationConfig", "clip": 0.2}}, "config.algorithm has no field 'clip'"),
        ({"arm.halting": {"type": "FixedLoops", "loops": 0}}, "config.arm.halting: loops is 0"),
        ({"arm": {"type": "Stacked", "copies": 0}}, "config.arm: copies is 0; it must be at least 1"),
        ({"arm": {"type": "Stacked", "halting": None}}, "config.arm has no field 'halting'"),
        ({"recipe": "mine"}, "config.recipe is 'mine'; it must be one of 'default', 'authors'"),
        ({"microbatch": 0}, "microbatch is 0; it must be at least 1"),
        ({"slots": 1.5}, "config.slots is 1.5; it must be of type int"),
    ],
)
def test_wrong_parts_of_a_configuration_are_named(changes, message):
    with pytest.raises(ConfigError) as error:
        replace_fields(preset("boxoban", "micro"), changes)
    assert message in str(error.value)


def test_arms_and_algorithms_are_replaced_as_a_whole():
    config = preset("rush-hour", "micro")
    arm = {"type": "Stacked", "core": {"width": 16, "heads": 1}, "copies": 3}
    changed = replace_fields(config, {"arm": arm, "algorithm": {"type": "ImitationConfig", "num_envs": 512}})
    assert changed.arm == Stacked(CoreConfig(width=16, heads=1), copies=3)
    assert changed.algorithm == ImitationConfig(num_envs=512)
    assert (changed.learner, changed.trained) == ("imitation", "iso-flops")


GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "runs"
RESULTS = pathlib.Path(__file__).parents[2] / "results"


def written_by_0_2(name, changes=()):
    """The config.json of a golden run, with some of its fields changed."""
    data = json.loads(zipfile.ZipFile(GOLDEN / f"{name}.zip").read("config.json"))
    for path, value in dict(changes).items():
        *outer, last = path.split(".")
        functools.reduce(dict.__getitem__, outer, data)[last] = value
    return data


MARCH = {"slots": None, "total_steps": 512, "evaluate_every": 3}
NOVEMBER = {"slots": None, "total_steps": 512, "levels__train_count": 40}
"""Sizes of the golden runs, by the time at which they were made."""
CARRIED = {**NOVEMBER, "arm__carry_latent": True}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ppo-streamed", lambda: tiny(**MARCH)),
        ("ppo-in-step", lambda: tiny("rush-hour", **MARCH)),
        ("ppo-fixed-4", lambda: tiny("rush-hour", "fixed-4", **NOVEMBER)),
        ("ppo-iso-params", lambda: tiny("rush-hour", "iso-params", **NOVEMBER)),
        ("ppo-iso-flops", lambda: tiny("rush-hour", "iso-flops", **MARCH)),
        ("ppo-drc", lambda: tiny("boxoban", "drc", **MARCH)),
        ("ppo-carried", lambda: tiny("rush-hour", **CARRIED)),
        ("ppo-authors", lambda: tiny(recipe="authors", arm__halting__reverse=True, **NOVEMBER)),
        ("ppo-random-caps", lambda: tiny("rush-hour", **NOVEMBER)),
        ("imitation-boxoban", lambda: tiny(by="imitation", **MARCH)),
        ("imitation-carried", lambda: tiny("rush-hour", by="imitation", **CARRIED)),
        ("gciql", lambda: tiny_robot(checkpoint_every=2)),
        ("gciql-mapped", lambda: tiny_robot(checkpoint_every=2, data__on_disk=True)),
        ("gciql-mlp", lambda: tiny_robot(arm="mlp", checkpoint_every=2)),
        ("gciql-iso-flops", lambda: tiny_robot(arm="iso-flops")),
        ("gciql-critics", lambda: tiny_robot(arm=None)),
        (
            "gciql-differences",
            lambda: tiny_robot(differences=True, algorithm__n_step=3, goals__near_actor=True),
        ),
    ],
)
def test_a_configuration_of_version_0_2_is_read(name, expected):
    found = config_from(written_by_0_2(name))
    assert with_hidden_width(found) == with_hidden_width(expected())
    assert from_json(type(found), json.loads(json.dumps(to_json(found)))) == found


def test_values_of_version_0_2_come_to_their_new_fields():
    """Each is other than the default, so that a field that is lost is missed."""
    config = config_from(
        written_by_0_2(
            "ppo-fixed-4",
            {
                "core": {"width": 64, "heads": 4, "layers": 3, "expansion": 2.0, "hidden_multiple": 32},
                "core.compute_dtype": "bfloat16",
                "halting.threshold": 0.5,
                "ppo.trace": 0.5,
                "ppo.reward_scale": 0.25,
                "levels.train_checksum": "x",
                "keep_checkpoints": 7,
                "seed": 5,
            },
        )
    )
    core = CoreConfig(width=64, heads=4, layers=3, hidden=96, compute_dtype="bfloat16")
    assert config.arm == Looped(core, FixedLoops(4))  # whose loops the name had, not the halting rule
    assert (config.algorithm.gae_lambda, config.algorithm.reward_scale, config.seed) == (0.5, 0.25, 5)
    robot = config_from(
        written_by_0_2("gciql-mlp", {"mlp": [7, 9], "gciql.behaviour_cost": 0.5, "paired": None})
    )
    assert robot.arm == Perceptron((7, 9))
    assert (robot.algorithm.bc_weight, robot.paired, robot.shapes.paired) == (0.5, None, False)
    authors = {"core.initial": {"type": "InitialWeights", "token_deviation": 0.02}}
    assert config_from(written_by_0_2("gciql-iso-flops", authors)).recipe == "authors"
    critics = written_by_0_2("gciql-critics", {"arm": "mlp", "critics": ""})
    assert (config_from(critics).arm, config_from(critics).trained) == (None, "critics")


def test_a_custom_configuration_of_version_0_2_is_read():
    data = {"type": "OwnConfig", "task": "walk", "arm": "mine", "total_steps": 9, "synchronous": True}
    data["ppo"] = {"type": "PPOConfig", "num_envs": 4, "rollout_steps": 2, "minibatch": 8, "trace": 0.9}
    data["observations"] = {"type": "Observations", "shape": [3], "dtype": "float32"}
    config = config_from(data)
    assert isinstance(config, CustomConfig)
    assert (config.task, config.net, config.trained, config.total_steps) == ("walk", "mine", "mine", 9)
    assert config.algorithm == PPOConfig(num_envs=4, rollout_steps=2, minibatch=8, gae_lambda=0.9)
    assert config.observations.shape == (3,)


@pytest.mark.parametrize(
    ("name", "learner", "arm", "carry_latent", "max_loops"),
    [
        ("rush-hour-micro", "PPO", "looped", False, 8),
        ("rush-hour-carried", "PPO", "looped", True, 8),
        ("boxoban-two-boxes", "imitation", "looped", False, 16),
    ],
)
def test_configurations_of_the_package_s_policies_are_read(name, learner, arm, carry_latent, max_loops):
    config = read_config(PRETRAINED / name / "config.json")
    assert (config.learner, config.trained, config.recipe) == (learner, arm, "default")
    assert (config.arm.carry_latent, config.arm.halting) == (carry_latent, PolicyKL(max_loops=max_loops))
    assert config.arm.core.hidden_width == 96


def test_every_configuration_of_the_results_is_read_unless_it_has_a_window():
    files = sorted(RESULTS.rglob("config.json"))
    assert len(files) > 150
    for file in files:
        if json.loads(file.read_text()).get("window") is None:
            assert read_config(file).trained
        else:
            with pytest.raises(ConfigError, match=r"written by version 0\.2 with window"):
                read_config(file)


SINGLE = {"double_precision": False}


@pytest.mark.parametrize(
    ("name", "changes", "option"),
    [
        ("ppo-window", SINGLE, "window"),
        ("ppo-streamed", {}, "double_precision"),
        ("ppo-random-caps", SINGLE, "min_cap, measure_gradients"),
        ("ppo-random-caps", {**SINGLE, "ppo.min_cap": None}, "measure_gradients"),
        ("ppo-authors", SINGLE, "a part of the authors' recipe"),  # with two hard resets
        (
            "ppo-authors",
            {**SINGLE, "ppo.hard_resets": 100, "ppo.shuffle": "examples"},
            "a part of the authors'",
        ),
        ("ppo-carried", {**SINGLE, "ppo.cell_statistics": True}, "a part of the authors' recipe"),
        ("imitation-carried", {**SINGLE, "imitation.min_cap": 2}, "min_cap"),
    ],
)
def test_training_that_this_version_cannot_continue_is_refused(name, changes, option):
    with pytest.raises(ConfigError) as error:
        config_from(written_by_0_2(name, changes), "runs/old/config.json", resumable=True)
    said = str(error.value)
    assert said.startswith(f"runs/old/config.json was written by version 0.2 with {option}")
    assert said.endswith("which this version does not have: continue the run with version 0.2")


def test_training_that_this_version_can_continue_is_not():
    for name in ("ppo-streamed", "ppo-drc", "ppo-carried", "imitation-carried", "gciql", "gciql-critics"):
        data = written_by_0_2(name, SINGLE)
        assert config_from(data, resumable=True) == config_from(data)
    authors = config_from(written_by_0_2("ppo-authors", {**SINGLE, "ppo.hard_resets": 100}), resumable=True)
    assert authors.recipe == "authors"
    assert authors.recipe_details == RECIPES["authors"]


def test_training_in_float64_is_continued_in_float64(x64):
    config = config_from(written_by_0_2("ppo-streamed"), resumable=True)
    assert run_of(config).dtype == jnp.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner": "chess"}, "config.algorithm has type 'chess'; it must be one of PPOConfig, "),
        ({"learner": []}, "config.algorithm has type []"),
        ({"arm": "fixed-9"}, "config.arm has type 'fixed-9'; it must be one of Looped, Stacked"),
        ({"arm": ["looped"]}, "config.arm has type ['looped']"),
        ({"core.width": 10**400}, "no number here is that large"),
        ({"core.width": -8}, "width is -8; it must be at least 1"),
        ({"ppo.lr": 1}, "config.algorithm has no field 'lr'"),
        ({"halting.threshold": "small"}, "config.arm.halting.threshold is 'small'"),
        ({"task": "cube-double"}, "config.task is 'cube-double'; it must be one of 'boxoban', 'rush-hour'"),
    ],
)
def test_damage_of_a_configuration_of_version_0_2_is_named(changes, message):
    with pytest.raises(ConfigError) as error:
        config_from(written_by_0_2("ppo-streamed", changes))
    assert message in str(error.value)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 5e-324, 1e308, True, "many", None, [], {}])
@pytest.mark.parametrize(
    "field", ["core.expansion", "core.hidden_multiple", "core.width", "halting.max_loops"]
)
def test_no_number_of_version_0_2_makes_anything_but_a_configuration_error(field, value):
    try:
        config = config_from(written_by_0_2("ppo-iso-flops", {field: value}))
    except ConfigError:
        return
    assert config.arm.core.hidden_width >= 1


def test_what_is_chosen_for_the_device_is_in_the_configuration_of_a_run(tmp_path):
    """Latents of 43 tokens of 8 scalars, on a CPU."""
    config, mesh = tiny(slots=None), all_devices(1)
    assert (config.microbatch, config.slots) == (None, None)
    begun = begin_run(config, tmp_path, mesh)
    assert begun == replace(config, microbatch=default_microbatch(43 * 8), slots=default_slots(43 * 8))
    assert (begun.microbatch, begun.slots) == (47, 16)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["microbatch"], written["slots"]) == (47, 16)
    assert read_config(tmp_path / "config.json", resumable=True) == begun
    assert begun.execution == Packed(47)
    assert begun.acting == Streaming(16)
    trainer = run_of(begun, tmp_path, mesh).trainer
    assert (trainer.execution, trainer.acting) == (Packed(47), Streaming(16))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (lambda: tiny(microbatch=3, slots=5), (3, 5)),
        (lambda: tiny(microbatch=3, slots=None), (3, 16)),
        (lambda: tiny(arm="iso-flops", slots=None), (None, None)),
        (lambda: tiny(arm="drc", slots=None), (None, None)),
        (lambda: tiny_robot(paired=True), (default_microbatch(38 * 8), 16)),
        (lambda: tiny_robot(arm=None), (None, None)),
    ],
)
def test_what_was_given_stays_and_nets_of_fixed_depth_need_nothing(config, expected):
    completed = run_of(config(), mesh=all_devices(1)).complete_config()
    assert (completed.microbatch, completed.slots) == expected
    assert replace(completed, microbatch=None, slots=None) == replace(config(), microbatch=None, slots=None)
