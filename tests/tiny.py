"""Runs that are small enough for a test."""

from looped_actor.runs.presets import preset
from looped_actor.utils.codec import replaced

CHANGES = {
    "core.width": 8,
    "core.heads": 1,
    "core.hidden_multiple": 8,
    "halting.max_loops": 4,
    "drc.channels": 4,
    "drc.depth": 2,
    "drc.ticks": 2,
    "drc.hidden": 8,
    "ppo.num_envs": 16,
    "ppo.rollout_steps": 8,
    "ppo.minibatch": 32,
    "imitation.num_envs": 16,
    "imitation.rollout_steps": 8,
    "imitation.minibatch": 32,
    "levels.train_count": 60,
    "levels.held_out_count": 20,
    "levels.evaluate_count": 10,
    "evaluate_every": 4,
    "checkpoint_every": 2,
    "total_steps": 6 * 128,
}

WORLD_CHANGES = {
    "core.width": 8,
    "core.heads": 1,
    "core.hidden_multiple": 8,
    "halting.max_loops": 3,
    "mlp": [8],
    "gciql.hidden": [8],
    "gciql.batch": 16,
    "gciql.updates_per_iteration": 5,
    "data.transitions": 40,
    "data.episode_transitions": 20,
    "episodes": 1,
    "time_limit": 3,
    "evaluate_every": 100,
    "checkpoint_every": 1,
    "total_steps": 20,
}


def tiny(task="boxoban", arm="looped", by="ppo", **changes):
    """A run of six iterations; changes as ppo__epochs=1."""
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return replaced(preset(task, "micro", arm, by), CHANGES | named)
