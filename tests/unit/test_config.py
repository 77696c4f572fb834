"""Configurations: written, read back, changed, refused."""

import json
import re
from typing import get_args

import pytest

from looped_actor.models.arms import ArmName, arms_for
from looped_actor.models.tasks import TASKS
from looped_actor.runs.config import PuzzleConfig, read_config, write_config
from looped_actor.runs.presets import ONLINE, preset
from looped_actor.utils.codec import ConfigError, field_paths, from_json, replace_fields, to_json
from looped_actor.utils.files import FileError


@pytest.mark.parametrize("scale", ONLINE)
@pytest.mark.parametrize("task", TASKS)
def test_every_preset_survives_being_written(task, scale, tmp_path):
    for arm in arms_for(TASKS[task]):
        config = preset(task, scale, arm)
        write_config(config, tmp_path / "config.json")
        again = read_config(tmp_path / "config.json")
        assert again == config
        assert config.chosen_arm.max_loops >= 1
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
    changed = replace_fields(config, {"ppo.learning_rate": 1, "levels.recipe.boxes": 2, "total_steps": 1e5})
    assert changed.ppo.learning_rate == 1.0
    assert changed.levels.recipe.boxes == 2
    assert changed.total_steps == 100_000
    # Halves that are wrong alone may be right together.
    assert replace_fields(config, {"core.width": 9, "core.heads": 3}).core.width == 9
    assert "halting.threshold" in field_paths(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ppo.lr": 1}, "there is no field 'ppo.lr'; fields are "),
        ({"ppo.learning_rate": "fast"}, "config.ppo.learning_rate is 'fast'; it must be of type float"),
        ({"ppo.learning_rate": -1}, "config.ppo: learning_rate is -1.0; it must be above 0"),
        ({"ppo.minibatch": 1000}, "do not divide into minibatches of 1000"),
        ({"ppo.epochs": 1.5}, "config.ppo.epochs is 1.5; it must be of type int"),
        ({"ppo.epochs": True}, "config.ppo.epochs is True; it must be of type int"),
        ({"arm": "deep"}, "config.arm is 'deep'; it must be one of 'looped', "),
        ({"board": [6]}, "config.board is [6]; it must be a list of 2"),
        ({"board": [9, 9]}, "the recipe makes levels of 6x7: set both"),
        ({"core.width": 30, "core.heads": 4}, "width 30 is not divisible by 4 heads"),
        ({"halting.max_loops": 1}, "min_loops=2 and max_loops=1"),
        ({"halting": 3}, "config.halting is 3; it must be an object with the fields of PolicyKL"),
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
        ("[]", "it must be an object with the fields of PuzzleConfig"),
        ('{"task": "chess", "levels": {"train": "a", "held_out": "b"}}', "task is 'chess'"),
        ('{"tusk": 1}', "has no field 'tusk'"),
        ("{}", "task"),
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
        spoiled["drc"]["type"] = name
        with pytest.raises(
            ConfigError, match=re.escape(f"config.drc has type '{name}'; it must be DRCConfig")
        ):
            from_json(PuzzleConfig, spoiled)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gciql.discount": 1}, "config.gciql: discount is 1.0; it must be between 0 and 1"),
        ({"gciql.hidden": []}, "hidden is []; it must name at least one layer"),
        ({"gciql.bc_weight": -1}, "bc_weight is -1.0"),
        ({"goals.current": 0.5}, "config.goals: shares of goals are (0.5, 0.5, 0.3)"),
        ({"data.transitions": 0}, "config.data: transitions is 0"),
        ({"episodes": 0}, "episodes is 0"),
        ({"mlp": [0]}, "mlp is [0]"),
        ({"ppo.epochs": 2}, "there is no field 'ppo.epochs'"),
    ],
)
def test_wrong_values_of_offline_learning_are_named(changes, message):
    with pytest.raises(ConfigError) as error:
        replace_fields(preset("cube-double", "micro"), changes)
    assert message in str(error.value)
