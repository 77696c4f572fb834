"""Options that do not apply are refused, and those that were not given change nothing."""

import pathlib

import jax
import pytest
import yaml

from looped_actor import CustomConfig, PolicyKL
from looped_actor.analysis import caps
from looped_actor.analysis.histogram import analyze_histogram
from looped_actor.analysis.options import CapsOptions, HistogramOptions
from looped_actor.cli.train import RunOptions
from looped_actor.evaluation.options import EvaluationOptions
from looped_actor.planning.chips import Topology
from looped_actor.policy.card import CARD_FILE, KEY, read_card, write_card
from looped_actor.policy.policy import Policy, PolicySpec
from looped_actor.policy.pretrained import PRETRAINED
from looped_actor.runs.custom import evaluate_in_env
from looped_actor.runs.load import load_policy
from looped_actor.runs.presets import preset
from looped_actor.runs.puzzle import evaluate_on_levels
from looped_actor.runs.robots import evaluate_on_tasks
from looped_actor.training.sharding import all_devices

PUZZLE, ROBOT, OWN = preset("boxoban", "micro"), preset("cube-double", "micro"), CustomConfig()


def policy_of(config):
    """As much of a policy as is looked at before anything is played."""
    policy = object.__new__(Policy)
    policy.spec = PolicySpec(
        config=config,
        task=config.task,
        arm=config.trained,
        learner=config.learner,
        build=lambda rngs: None,
        observation=None,
        statistics_shape=(),
    )
    return policy


@pytest.mark.parametrize("options", [{"tasks": (1, 2)}, {"tasks": (1, 2, 3, 4, 5)}, {"workers": 2}])
def test_options_of_robots_are_refused_elsewhere(options):
    given, (name,) = EvaluationOptions(**options), options
    with pytest.raises(ValueError, match=f"boxoban has no robots: leave --{name} out"):
        evaluate_on_levels(policy_of(PUZZLE), given, all_devices(1))
    with pytest.raises(ValueError, match=f"leave --{name} out"):
        evaluate_in_env(policy_of(OWN), None, given, all_devices(1))


def test_graded_goals_take_no_tasks():
    with pytest.raises(ValueError, match="--graded has its own goals: leave --tasks out"):
        evaluate_on_tasks(policy_of(ROBOT), EvaluationOptions(graded=True, tasks=(1,)))


@pytest.mark.parametrize(
    ("configs", "options", "said"),
    [
        ([ROBOT, OWN], {"count": 5}, "none of these policies plays a puzzle: leave --count out"),
        ([OWN], {"levels": pathlib.Path("a.levels")}, "leave --levels out"),
        ([PUZZLE], {"episodes": 5}, "leave --episodes out"),
    ],
)
def test_a_histogram_refuses_what_no_policy_needs(configs, options, said, tmp_path):
    given = HistogramOptions(out=tmp_path, **options)
    with pytest.raises(ValueError, match=said):
        analyze_histogram([policy_of(config) for config in configs], given, all_devices(1))


@pytest.mark.parametrize("least", [1, 3])
def test_caps_keep_the_minimum_of_training(least, tmp_path, monkeypatch):
    policy = load_policy("rush-hour-micro")
    policy.spec.net.trunk.halting = PolicyKL(min_loops=least, max_loops=8)
    played = []

    def evaluate(analysis, name, policy, options, step):
        played.append(policy.spec.with_loop(options))
        return {"loops": 2.0, "levels": 1, "solved": 1, "success": 1.0, "interval_95": [0.2, 1.0]}

    monkeypatch.setattr(caps.Analysis, "evaluate", evaluate)
    caps.analyze_caps([policy], CapsOptions(out=tmp_path, caps=(2, 8), fixed=(4,)), all_devices(1))
    assert [rule.min_loops for rule in played] == [min(least, 2), least, 4]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"task": "boxoban"}, "boxoban-micro-ppo-looped-seed0"),
        ({"task": "boxoban", "learner": "imitation"}, "boxoban-micro-imitation-looped-seed0"),
        (
            {"task": "boxoban", "change": ('algorithm={"type":"ImitationConfig"}',)},
            "boxoban-micro-imitation-looped-seed0",
        ),
        ({"task": "boxoban", "arm": "iso-flops", "seed": 3}, "boxoban-micro-ppo-iso-flops-seed3"),
        ({"task": "cube-double", "arm": "mlp"}, "cube-double-micro-gciql-mlp-seed0"),
        ({"task": "cube-double", "arm": "critics"}, "cube-double-micro-gciql-critics-seed0"),
    ],
)
def test_the_default_folder_names_the_learner(options, name):
    run = RunOptions(**options)
    assert run.folder(run.chosen) == pathlib.Path("runs", name)


def test_a_card_of_another_version_is_read(tmp_path):
    card = read_card(PRETRAINED / "rush-hour-micro")
    assert card is not None
    write_card(card, "mine", tmp_path)
    text = (tmp_path / CARD_FILE).read_text()
    facts = yaml.safe_load(text.split("---\n")[1])[KEY]
    del facts["start"], facts["interval_95"]
    (tmp_path / CARD_FILE).write_text(f"---\n{yaml.safe_dump({KEY: {**facts, 'later': 1}})}---\n")
    again = read_card(tmp_path)
    assert again is not None
    assert (again.success, again.start, again.interval_95) == (card.success, "fixed", None)
    del facts["arm"]  # which every version has written
    (tmp_path / CARD_FILE).write_text(f"---\n{yaml.safe_dump({KEY: facts})}---\n")
    with pytest.raises(ValueError, match="front matter is damaged"):
        read_card(tmp_path)


def test_looking_at_a_topology_changes_nothing(monkeypatch):
    """Debuggers and `repr` read properties: none may switch the platform of the process."""
    changed = []
    monkeypatch.setattr(jax.config, "update", lambda *setting: changed.append(setting))
    chips = Topology.parse("v5e:2x2")
    for name in dir(chips):
        getattr(chips, name)
    assert changed == []
