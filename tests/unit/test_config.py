"""Configurations: written, read back, changed, refused."""

import json
import pathlib
import re
from dataclasses import replace
from typing import get_args

import pytest

from looped_actor.models.arms import Looped, Perceptron
from looped_actor.models.tasks import TASKS
from looped_actor.names import ArmName
from looped_actor.runs.config import PuzzleConfig, read_config
from looped_actor.runs.presets import PUZZLE_SCALES, preset
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import ConfigError, field_paths, from_json, replace_fields, to_json, write_json
from looped_actor.utils.files import FileError


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
        run_of(preset(task, "micro", arm)).complete_config()


def test_fields_are_changed_by_path():
    config = preset("boxoban", "micro")
    changed = replace_fields(config, {"algorithm.learning_rate": 1, "levels.recipe.boxes": 2, "total_steps": 1e5})
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
        ({"algorithm.learning_rate": "fast"}, "config.algorithm.learning_rate is 'fast'; it must be of type float"),
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
        ("{", "this is no JSON"),
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
