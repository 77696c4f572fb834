"""The preset `paper` against the two hyperparameter tables of the paper, and against the authors' code."""

import pytest

from looped_actor.configs.presets import preset
from looped_actor.loop import PolicyKL
from looped_actor.models import AUTHORS

# Rows that both columns of a table share, then those of one column.
MODEL_TABLE = {
    "core.layers": 2,
    "core.width": 128,
    "core.heads": 4,
    "core.expansion": 4,
    "halting.min_loops": 2,
    "halting.max_loops": 16,
    "halting.threshold": 1e-3,
}
ONLINE_TABLE = {
    "core.convolution": True,
    "ppo.learning_rate": 1e-4,
    "ppo.max_gradient_norm": 1.0,
    "ppo.minibatch": 1024,
    "total_steps": 10**8,
    "ppo.discount": 0.99,
    "ppo.num_envs": 1024,
    "ppo.rollout_steps": 64,
    "ppo.epochs": 4,
    "ppo.gae_lambda": 0.95,
    "ppo.clip": 0.3,
    "ppo.entropy_cost": 0.01,
    "ppo.value_cost": 0.25,
}


OFFLINE_TABLE = {
    "core.convolution": False,
    "gciql.learning_rate": 3e-4,
    "gciql.max_gradient_norm": 1.0,
    "gciql.batch": 1024,
    "total_steps": 10**6,
    "gciql.discount": 0.99,
    "gciql.expectile": 0.9,
    "gciql.target_rate": 0.005,
    "gciql.bc_weight": 1.0,
    # Not in the tables, but in the text, and in GCIQL's reference:
    "gciql.hidden": (512, 512, 512),
    "goals.current": 0.2,
    "goals.future": 0.5,
    "goals.random": 0.3,
    "episodes": 50,
}


AUTHORS_CODE = {
    "core.initial": AUTHORS,
    "halting.reverse": True,
}
AUTHORS_PPO = {
    "ppo.bootstrap_timeouts": False,
    "ppo.shuffle": "steps",
    "ppo.hard_resets": 50,
    "ppo.cell_statistics": True,
    "ppo.scale_before_learning": True,
    "ppo.decay_learning_rate": False,
    "levels.evaluate_count": 256,
    "evaluate_every": 15,  # about a million steps
}


def hold_against(config, table):
    for path, expected in table.items():
        value = config
        for name in path.split("."):
            value = getattr(value, name)
        assert value == expected, path


@pytest.mark.parametrize("task", ["cube-double", "cube-triple", "puzzle-3x3", "scene"])
def test_paper_is_the_paper_offline(task):
    config = preset(task, "paper")
    hold_against(config, MODEL_TABLE | OFFLINE_TABLE | AUTHORS_CODE)
    assert config.evaluate_every * config.steps_per_iteration == 100_000
    assert config.chosen_arm.halting == PolicyKL(reverse=True)
    assert preset(task, "paper", "iso-flops").chosen_arm.copies == 16
    assert preset(task, "paper", "mlp").chosen_arm.hidden == (512, 512, 512)


@pytest.mark.parametrize(("task", "board", "limit"), [("boxoban", (10, 10), 120), ("rush-hour", (6, 6), 150)])
def test_paper_is_the_paper(task, board, limit):
    config = preset(task, "paper")
    hold_against(config, MODEL_TABLE | ONLINE_TABLE | AUTHORS_CODE | AUTHORS_PPO)
    assert config.board == board
    assert config.time_limit == limit
    assert config.chosen_arm.halting == PolicyKL(reverse=True)
    assert config.ppo.updates_per_iteration == 256
    assert config.iterations == 1526  # 1e8 steps are 1525.9 rollouts
    assert preset(task, "paper", "iso-flops").chosen_arm.copies == 16
    assert preset(task, "paper", "iso-params").chosen_arm.copies == 1
    assert preset(task, "paper", "drc").chosen_arm.config.depth == 3
    assert preset(task, "paper", "drc").chosen_arm.config.ticks == 3
    assert [preset(task, "paper", f"fixed-{n}").chosen_arm.max_loops for n in (4, 8, 16)] == [4, 8, 16]
