"""The preset `paper` against the paper's tables of hyperparameters, and against what the authors ran."""

import pytest

from looped_actor.loop import PolicyKL
from looped_actor.models import AUTHORS
from looped_actor.runs.presets import preset

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
        "core.layers": flags["fprm_num_layers"],
        "core.width": flags["fprm_d_model"],
        "core.heads": flags["fprm_num_heads"],
        "core.initial": AUTHORS,
        "halting": PolicyKL(
            flags["halt_kl"], flags["min_think_iters"], flags["max_think_iters"], reverse=True
        ),
        "total_steps": flags["num_timesteps"],
        "time_limit": flags[episode_length],
        "evaluate_every": iterations // flags["num_eval_steps"],
        "levels.evaluate_count": flags["num_eval_envs"],
        "ppo.num_envs": flags["num_envs"],
        "ppo.rollout_steps": flags["rollout_length"],
        "ppo.minibatch": rollout // flags["num_minibatches_per_rollout"],
        "ppo.epochs": flags["num_epochs_per_rollout"],
        "ppo.learning_rate": flags["learning_rate"],
        "ppo.decay_learning_rate": flags["anneal_lr"],
        "ppo.max_gradient_norm": flags["max_grad_norm"],
        "ppo.discount": flags["discount"],
        "ppo.gae_lambda": flags["gae_lambda"],
        "ppo.clip": flags["clipping_epsilon"],
        "ppo.entropy_cost": flags["entropy_cost"],
        "ppo.reward_scale": flags["reward_scaling"],
        "ppo.value_cost": 0.5 * 0.5,  # as ppo.py writes it
        "ppo.hard_resets": flags["num_reset_steps"],
        # Not flags, but what ppo.py does: no bootstrap at a time-out, whole time steps are shuffled, and
        # statistics of every cell count a rollout before it is learned from.
        "ppo.bootstrap_timeouts": False,
        "ppo.shuffle": "steps",
        "ppo.cell_statistics": True,
        "ppo.scale_before_learning": True,
    }


AUTHORS_ROBOT_RUN = {
    "core.layers": GCIQL_DEFAULTS["fprm_num_layers"],
    "core.width": GCIQL_DEFAULTS["fprm_d_model"],
    "core.heads": GCIQL_DEFAULTS["fprm_num_heads"],
    "core.expansion": GCIQL_DEFAULTS["fprm_expansion"],
    "core.convolution": OGBENCH_FLAGS["fprm_use_grid_conv"],
    "core.initial": AUTHORS,
    "halting": PolicyKL(
        OGBENCH_FLAGS["fprm_halt_on_policy_kl"],
        GCIQL_DEFAULTS["fprm_adaptive_min_iters"],
        OGBENCH_FLAGS["fprm_train_iters"],
        reverse=True,
    ),
    "total_steps": OGBENCH_FLAGS["train_steps"],
    "episodes": OGBENCH_FLAGS["eval_episodes"],
    "gciql.bc_weight": OGBENCH_FLAGS["alpha"],
    "gciql.max_gradient_norm": OGBENCH_FLAGS["max_grad_norm"],
    "gciql.learning_rate": GCIQL_DEFAULTS["lr"],
    "gciql.batch": GCIQL_DEFAULTS["batch_size"],
    "gciql.hidden": GCIQL_DEFAULTS["value_hidden_dims"],
    "gciql.discount": GCIQL_DEFAULTS["discount"],
    "gciql.target_rate": GCIQL_DEFAULTS["tau"],
    "gciql.expectile": GCIQL_DEFAULTS["expectile"],
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
    assert config.chosen_arm.halting == config.halting
    assert preset(task, "paper", "iso-flops").chosen_arm.copies == 16
    assert preset(task, "paper", "mlp").chosen_arm.hidden == (512, 512, 512)


@pytest.mark.parametrize(
    ("task", "board", "episode_length"),
    [("boxoban", (10, 10), "sokoban_episode_length"), ("rush-hour", (6, 6), "rushhour_episode_length")],
)
def test_paper_is_the_paper(task, board, episode_length):
    config = preset(task, "paper")
    hold_against(config, MODEL_TABLE | ONLINE_TABLE)
    hold_against(config, authors_puzzle_run(episode_length))
    assert config.board == board
    assert config.chosen_arm.halting == config.halting
    assert config.ppo.updates_per_iteration == 256
    assert config.iterations == 1526  # 1e8 steps are 1525.9 rollouts
    assert preset(task, "paper", "iso-flops").chosen_arm.copies == 16
    assert preset(task, "paper", "iso-params").chosen_arm.copies == 1
    assert preset(task, "paper", "drc").chosen_arm.config.depth == 3
    assert preset(task, "paper", "drc").chosen_arm.config.ticks == 3
    assert [preset(task, "paper", f"fixed-{n}").chosen_arm.max_loops for n in (4, 8, 16)] == [4, 8, 16]
