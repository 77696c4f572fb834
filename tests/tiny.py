"""Runs that are small enough for a test."""

from dataclasses import replace

from looped_actor.loop import FixedLoops
from looped_actor.models import CoreConfig
from looped_actor.models.arms import Looped, Perceptron, RepeatedConvLSTM, Stacked
from looped_actor.runs.presets import preset
from looped_actor.utils.codec import replace_fields

CHANGES = {
    "algorithm.num_envs": 16,
    "algorithm.rollout_steps": 8,
    "algorithm.minibatch": 32,
    "levels.train_count": 60,
    "levels.held_out_count": 20,
    "levels.evaluate_count": 10,
    "evaluate_every": 4,
    "checkpoint_every": 2,
    "total_steps": 6 * 128,
    "slots": 2,  # a stream compiles one program for each width to which it shrinks
}
LOOPED_CHANGES = {"arm.core.width": 8, "arm.core.heads": 1, "arm.halting.max_loops": 4}
"""The same net as `tiny` has for the looped arm, as changes for --set."""
ROBOT_CHANGES = {
    "algorithm.hidden": [8],
    "algorithm.batch": 16,
    "algorithm.updates_per_iteration": 5,
    "data.transitions": 40,
    "data.episode_transitions": 20,
    "episodes": 1,
    "time_limit": 3,
    "evaluate_every": 100,
    "checkpoint_every": 1,
    "total_steps": 20,
}
CORE = CoreConfig(width=8, heads=1, layers=1)
DRC = RepeatedConvLSTM(channels=4, depth=2, ticks=2, hidden=8)


def shrink(arm, max_loops):
    """The arm with a small net."""
    if isinstance(arm, RepeatedConvLSTM):
        return DRC
    if isinstance(arm, Perceptron):
        return Perceptron((8,))
    if isinstance(arm, Stacked):
        return Stacked(CORE, min(arm.copies, max_loops))
    if isinstance(arm, Looped) and not isinstance(arm.halting, FixedLoops):
        return replace(arm, core=CORE, halting=replace(arm.halting, max_loops=max_loops))
    return replace(arm, core=CORE)


def tiny(task="boxoban", arm="looped", by="ppo", **changes):
    """A run of six iterations; changes as algorithm__epochs=1."""
    config = preset(task, "micro", arm, by)
    return _change(replace(config, arm=shrink(config.arm, 4)), CHANGES, changes)


def tiny_robot(task="cube-double", arm="looped", **changes):
    """A run of four iterations of five updates."""
    config = preset(task, "micro", "looped" if arm is None else arm)
    config = replace(config, arm=None if arm is None else shrink(config.arm, 3))
    return _change(config, ROBOT_CHANGES, changes)


def _change(config, defaults, changes):
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return replace_fields(config, defaults | named)
