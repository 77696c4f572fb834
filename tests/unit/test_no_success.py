"""Environments that report no success: returns are shown, and never a success of 0%."""

import json
from dataclasses import replace

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from rich.console import Console

from looped_actor import CustomConfig
from looped_actor.algorithms import Action
from looped_actor.algorithms.gymnasium_rollout import GymnasiumRollouts, _Step
from looped_actor.analysis.caps import FRONTIER
from looped_actor.analysis.compare import compare_runs
from looped_actor.analysis.tables import read_table
from looped_actor.cli.tables import evaluation_table
from looped_actor.evaluation.episodes import as_vector, play_gymnasium
from looped_actor.evaluation.results import summarize
from looped_actor.loop import empty_carry
from looped_actor.runs.presets import preset
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import write_json

SUCCESS = {"solved": 1, "success": 0.25, "interval_95": [0.05, 0.7]}


def pendulum():
    return gymnasium.make("Pendulum-v1", max_episode_steps=5)


def rush_hour():
    return gymnasium.make("looped_actor/RushHour-v0", time_limit=5, disable_env_checker=True)


def play(env, episodes=3):
    envs = as_vector(env)

    def act(observation, carry=None):
        actions = np.stack([space.sample() for space in [envs.single_action_space] * envs.num_envs])
        once = np.ones(envs.num_envs, int)
        return Action(
            action=actions, loops=once, stop=once, executed=once.sum(), carry=empty_carry(envs.num_envs)
        )

    return play_gymnasium(envs, act, episodes, 1)


def test_an_evaluation_reports_success_only_if_the_environment_does():
    facts = summarize(play(pendulum()))
    assert not {"success", "solved", "interval_95"} & facts.keys()
    assert facts["returns"] < 0
    assert facts["levels"] == 3
    assert {"success", "solved", "interval_95"} <= summarize(play(rush_hour())).keys()


@pytest.mark.parametrize(("success", "shown", "hidden"), [({}, "-12.5", "%"), (SUCCESS, "25.0%", "-12.5")])
def test_the_table_of_an_evaluation_shows_what_was_reported(success, shown, hidden):
    counts = {"episodes": 4, "loops": 2.0, "mean_steps": 200.0, "returns": -12.5}
    console = Console(width=100)
    with console.capture() as captured:
        console.print(evaluation_table({"policy": "runs/swing", "task": "swing", **counts, **success}))
    assert shown in captured.get()
    assert hidden not in captured.get()


def begun(folder, config, **facts):
    """The folder of a run with two evaluations."""
    (folder / "evaluations").mkdir(parents=True)
    write_json(config, folder / "config.json")
    played = {"loops": 2.0, **facts}
    for steps in (10, 20):
        (folder / "evaluations" / f"{steps:012d}.json").write_text(json.dumps(played))
    return folder


def test_compare_shows_returns_where_a_run_reports_no_success(tmp_path):
    swing = begun(tmp_path / "swing", CustomConfig(task="swing"), episodes=4, returns=-12.5)
    boards = begun(tmp_path / "boards", preset("boxoban", "micro"), levels=4, returns=1.5, **SUCCESS)
    said = compare_runs([swing], tmp_path)
    assert "Returns at the end" in said
    assert "-12.5" in said
    assert all(
        row[name] is None for row in read_table(tmp_path / "compare.csv", ()) for name in ("success", "low")
    )
    said = compare_runs([swing, boards], tmp_path)
    assert "Returns at the end" in said
    assert "%" not in said
    assert compare_runs([boards], tmp_path).startswith("Success at the end")
    robots = begun(tmp_path / "robots", preset("cube-double", "micro"), episodes=4, **SUCCESS)
    with pytest.raises(ValueError, match="compare them separately"):
        compare_runs([swing, robots], tmp_path)


def test_compare_says_that_critics_are_no_policy(tmp_path):
    config = replace(preset("cube-double", "micro"), arm=None)
    critics = begun(tmp_path / "critics", config, prefers=0.8)
    with pytest.raises(ValueError, match="critics holds critics and no policy"):
        compare_runs([critics], tmp_path)


def test_the_frontier_shows_returns_where_there_is_no_success():
    about = {"run": "swing", "task": "swing", "arm": "looped", "learner": "PPO", "threshold": 1e-3}
    none = {"success": None, "low": None, "high": None, "flops": 1.0}
    rows = [
        {**about, **none, "start": start, "min_loops": 1, "loops": loops, "returns": returns}
        for start, loops, returns in (("fixed", 3.0, -12.5), ("carried", 2.0, -13.5))
    ]
    said = FRONTIER.draw(rows).caption
    assert "starting from a fixed latent, the best setting returns -12.5 with 3.00 loops" in said
    assert "%" not in said


@pytest.mark.parametrize(("make", "reported"), [(pendulum, False), (rush_hour, True)])
def test_training_counts_success_only_if_it_is_reported(make, reported):
    envs = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    rollouts = GymnasiumRollouts(envs, 2, 5, all_devices(1))
    state = jax.device_get(rollouts.init(0, jax.random.key_data(jax.random.key(0))))
    zeros, action = np.zeros(2, np.float32), envs.action_space.sample()
    parts = dict.fromkeys(_Step._fields, zeros)
    decided = _Step(**parts | {"env_action": action, "carry": jax.device_get(empty_carry(2))})
    _, transition = rollouts._step(state, decided)
    assert np.isnan(transition.episode.success).all() == (not reported)
