"""The preset `paper` against the paper's tables of hyperparameters, and against what the authors ran."""

import math

import pytest

from looped_actor.loop import PolicyKL
from looped_actor.models import AUTHORS_INITIAL
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of

# Rows that both columns of a table share, then those of one column.
MODEL_TABLE = {
    "arm.core.layers": 2,
    "arm.core.width": 128,
    "arm.core.heads": 4,
    "arm.core.hidden_width": 512,  # 2/3 of an expansion of 4, up to a multiple of 256
    "arm.halting.min_loops": 2,
    "arm.halting.max_loops": 16,
    "arm.halting.threshold": 1e-3,
}
ONLINE_TABLE = {
    "algorithm.learning_rate": 1e-4,
    "algorithm.max_gradient_norm": 1.0,
    "algorithm.minibatch": 1024,
    "total_steps": 10**8,
    "algorithm.discount": 0.99,
    "algorithm.num_envs": 1024,
    "algorithm.rollout_steps": 64,
    "algorithm.epochs": 4,
    "algorithm.gae_lambda": 0.95,
    "algorithm.clip": 0.3,
    "algorithm.entropy_cost": 0.01,
    "algorithm.value_cost": 0.25,
}


OFFLINE_TABLE = {
    "algorithm.learning_rate": 3e-4,
    "algorithm.max_gradient_norm": 1.0,
    "algorithm.batch": 1024,
    "total_steps": 10**6,
    "algorithm.discount": 0.99,
    "algorithm.expectile": 0.9,
    "algorithm.target_rate": 0.005,
    "algorithm.bc_weight": 1.0,
    # Not in the tables, but in the text, and in GCIQL's reference:
    "algorithm.hidden": (512, 512, 512),
    "goals.current": 0.2,
    "goals.future": 0.5,
    "goals.random": 0.3,
    "episodes": 50,
}


# What the authors ran (camail-official/LoopedActor, commit bd65d7d): the flags of
# sokoban/scripts/train.sh and rushhour/scripts/train.sh, which are the same, and the defaults of ppo.py for
# what these leave out.
TRAIN_FLAGS = {
    "fprm_num_layers": 2,
    "max_grad_norm": 1.0,
    "num_envs": 1024,
    "rollout_length": 64,
    "num_minibatches_per_rollout": 64,
    "num_epochs_per_rollout": 4,
    "num_timesteps": 100_000_000,
    "num_eval_steps": 100,
    "num_reset_steps": 100,
    "num_eval_envs": 256,
    "max_think_iters": 16,
    "halt_kl": 1e-3,
}
PPO_DEFAULTS = {
    "sokoban_episode_length": 120,
    "rushhour_episode_length": 150,
    "learning_rate": 1e-4,
    "anneal_lr": False,
    "discount": 0.99,
    "entropy_cost": 0.01,
    "reward_scaling": 1.0,
    "gae_lambda": 0.95,
    "clipping_epsilon": 0.3,
    "fprm_d_model": 128,
    "fprm_num_heads": 4,
    "min_think_iters": 2,
}
# ogbench/scripts/train.sh, then the defaults of agents/gciql_fprm.py.
OGBENCH_FLAGS = {
    "train_steps": 1_000_000,
    "eval_interval": 100_000,
    "eval_episodes": 50,
    "alpha": 1.0,
    "max_grad_norm": 1.0,
    "fprm_use_grid_conv": False,
    "fprm_train_iters": 16,
    "fprm_halt_on_policy_kl": 1e-3,
}
GCIQL_DEFAULTS = {
    "lr": 3e-4,
    "batch_size": 1024,
    "value_hidden_dims": (512, 512, 512),
    "discount": 0.99,
    "tau": 0.005,
    "expectile": 0.9,
    "fprm_d_model": 128,
    "fprm_num_heads": 4,
    "fprm_num_layers": 2,
    "fprm_expansion": 4.0,
    "fprm_adaptive_min_iters": 2,
    "value_p_curgoal": 0.2,
    "value_p_trajgoal": 0.5,
    "value_p_randomgoal": 0.3,
    "actor_geom_sample": False,
}


def authors_puzzle_run(episode_length):
    """Fields of a run on a puzzle, derived from the authors' flags."""
    flags = PPO_DEFAULTS | TRAIN_FLAGS
    rollout = flags["num_envs"] * flags["rollout_length"]
    iterations = flags["num_timesteps"] // rollout
    return {
        "arm.core.layers": flags["fprm_num_layers"],
        "arm.core.width": flags["fprm_d_model"],
        "arm.core.heads": flags["fprm_num_heads"],
        "recipe_details.initial": AUTHORS_INITIAL,
        "arm.halting": PolicyKL(
            flags["halt_kl"], flags["min_think_iters"], flags["max_think_iters"], reverse=True
        ),
        "total_steps": flags["num_timesteps"],
        "time_limit": flags[episode_length],
        "evaluate_every": iterations // flags["num_eval_steps"],
        "levels.evaluate_count": flags["num_eval_envs"],
        "algorithm.num_envs": flags["num_envs"],
        "algorithm.rollout_steps": flags["rollout_length"],
        "algorithm.minibatch": rollout // flags["num_minibatches_per_rollout"],
        "algorithm.epochs": flags["num_epochs_per_rollout"],
        "algorithm.learning_rate": flags["learning_rate"],
        "algorithm.decay_learning_rate": flags["anneal_lr"],
        "algorithm.max_gradient_norm": flags["max_grad_norm"],
        "algorithm.discount": flags["discount"],
        "algorithm.gae_lambda": flags["gae_lambda"],
        "algorithm.clip": flags["clipping_epsilon"],
        "algorithm.entropy_cost": flags["entropy_cost"],
        "algorithm.reward_scale": flags["reward_scaling"],
        "algorithm.value_cost": 0.5 * 0.5,  # as ppo.py writes it
        "recipe_details.hard_resets": flags["num_reset_steps"],
        # Not flags, but what ppo.py does: no bootstrap at a time-out, whole time steps are shuffled, and
        # statistics of every cell count a rollout before it is learned from.
        "recipe_details.bootstrap_timeouts": False,
        "recipe_details.shuffle": "steps",
        "recipe_details.cell_statistics": True,
        "recipe_details.statistics_before_learning": True,
    }


AUTHORS_ROBOT_RUN = {
    "arm.core.layers": GCIQL_DEFAULTS["fprm_num_layers"],
    "arm.core.width": GCIQL_DEFAULTS["fprm_d_model"],
    "arm.core.heads": GCIQL_DEFAULTS["fprm_num_heads"],
    "arm.core.hidden_width": 256 * math.ceil(GCIQL_DEFAULTS["fprm_expansion"] * 128 * 2 / 3 / 256),
    "recipe_details.initial": AUTHORS_INITIAL,
    "arm.halting": PolicyKL(
        OGBENCH_FLAGS["fprm_halt_on_policy_kl"],
        GCIQL_DEFAULTS["fprm_adaptive_min_iters"],
        OGBENCH_FLAGS["fprm_train_iters"],
        reverse=True,
    ),
    "total_steps": OGBENCH_FLAGS["train_steps"],
    "episodes": OGBENCH_FLAGS["eval_episodes"],
    "algorithm.bc_weight": OGBENCH_FLAGS["alpha"],
    "algorithm.max_gradient_norm": OGBENCH_FLAGS["max_grad_norm"],
    "algorithm.learning_rate": GCIQL_DEFAULTS["lr"],
    "algorithm.batch": GCIQL_DEFAULTS["batch_size"],
    "algorithm.hidden": GCIQL_DEFAULTS["value_hidden_dims"],
    "algorithm.discount": GCIQL_DEFAULTS["discount"],
    "algorithm.target_rate": GCIQL_DEFAULTS["tau"],
    "algorithm.expectile": GCIQL_DEFAULTS["expectile"],
    "goals.current": GCIQL_DEFAULTS["value_p_curgoal"],
    "goals.future": GCIQL_DEFAULTS["value_p_trajgoal"],
    "goals.random": GCIQL_DEFAULTS["value_p_randomgoal"],
    "goals.near_actor": GCIQL_DEFAULTS["actor_geom_sample"],
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
    hold_against(config, MODEL_TABLE | OFFLINE_TABLE)
    hold_against(config, AUTHORS_ROBOT_RUN)
    assert config.evaluate_every * config.steps_per_iteration == OGBENCH_FLAGS["eval_interval"]
    assert (run_of(config).spec.net.trunk.core.convolution is not None) == OGBENCH_FLAGS["fprm_use_grid_conv"]
    assert preset(task, "paper", "iso-flops").arm.copies == 16
    assert preset(task, "paper", "mlp").arm.hidden == (512, 512, 512)


@pytest.mark.parametrize(
    ("task", "board", "episode_length"),
    [("boxoban", (10, 10), "sokoban_episode_length"), ("rush-hour", (6, 6), "rushhour_episode_length")],
)
def test_paper_is_the_paper(task, board, episode_length):
    config = preset(task, "paper")
    hold_against(config, MODEL_TABLE | ONLINE_TABLE)
    hold_against(config, authors_puzzle_run(episode_length))
    assert config.board == board
    assert run_of(config).spec.net.trunk.core.convolution is not None
    assert config.algorithm.updates_per_iteration == 256
    assert config.iterations == 1526  # 1e8 steps are 1525.9 rollouts
    assert preset(task, "paper", "iso-flops").arm.copies == 16
    assert preset(task, "paper", "iso-params").arm.copies == 1
    assert preset(task, "paper", "drc").arm.depth == 3
    assert preset(task, "paper", "drc").arm.ticks == 3
    assert [preset(task, "paper", f"fixed-{n}").arm.max_loops for n in (4, 8, 16)] == [4, 8, 16]
