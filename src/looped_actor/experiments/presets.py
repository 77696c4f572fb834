"""The scales of a run. `paper` is the paper's tables; the others are smaller worlds with smaller nets."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from looped_actor.algorithms import PPOConfig
from looped_actor.experiments.arms import ArmName
from looped_actor.experiments.config import LevelsConfig, RunConfig
from looped_actor.games.catalogue import GAMES
from looped_actor.levels.boxoban_generator import BoxobanRecipe
from looped_actor.levels.rush_hour_generator import RushHourRecipe
from looped_actor.loop import PolicyKL
from looped_actor.models import CoreConfig, DRCConfig

Scale = Literal["micro", "small", "paper"]
OnlineTask = Literal["boxoban", "rush-hour"]


def paper(task: OnlineTask) -> RunConfig:
    """The paper's tables: for one large accelerator or several."""
    levels = {
        "boxoban": LevelsConfig(
            train="levels/boxoban-unfiltered-train.levels", held_out="levels/boxoban-unfiltered-test.levels"
        ),
        "rush-hour": LevelsConfig(
            train="levels/rush-hour-train.levels", held_out="levels/rush-hour-test.levels"
        ),
    }[task]
    return RunConfig(
        task,
        levels,
        scale="paper",
        total_steps=100_000_000,
        time_limit=GAMES[task].time_limit,
        board={"boxoban": (10, 10), "rush-hour": (6, 6)}[task],
        core=CoreConfig(width=128, heads=4, layers=2, expansion=4.0, convolution=True),
        halting=PolicyKL(threshold=1e-3, min_loops=2, max_loops=16),
        drc=DRCConfig(),
        ppo=PPOConfig(
            num_envs=1024,
            rollout_steps=64,
            minibatch=1024,
            epochs=4,
            learning_rate=1e-4,
            max_gradient_norm=1.0,
            discount=0.99,
            trace=0.95,
            clip=0.3,
            entropy_cost=0.01,
            value_cost=0.25,
        ),
        evaluate_every=50,
        checkpoint_every=10,
    )


def small(task: OnlineTask) -> RunConfig:
    """For one GPU and about an hour: mid-sized boards, half the width."""
    recipe = {
        "boxoban": BoxobanRecipe(height=8, width=8, boxes=2, min_pulls=2, max_pulls=40),
        "rush-hour": RushHourRecipe(height=6, width=6, min_moves=1, max_moves=12),
    }[task]
    return RunConfig(
        task,
        LevelsConfig(recipe=recipe, train_count=50_000, held_out_count=1_000),
        scale="small",
        total_steps=10_000_000,
        time_limit=80,
        board=(recipe.height, recipe.width),
        core=CoreConfig(width=64, heads=4, layers=2, hidden_multiple=64),
        halting=PolicyKL(max_loops=16),
        drc=DRCConfig(hidden=128),
        ppo=PPOConfig(
            num_envs=512,
            rollout_steps=32,
            minibatch=512,
            epochs=2,
            learning_rate=5e-4,
            discount=0.98,
            reward_scale=0.1,
        ),
        evaluate_every=60,
        checkpoint_every=20,
    )


def micro(task: OnlineTask) -> RunConfig:
    """For two CPU cores and some minutes: small boards of mixed difficulty, a narrow net.

    Boxoban is learned from levels of which many are a few moves from solved, since rewards are rare, and
    evaluated on ones of which a greedy player solves less than half.
    """
    levels = {
        "boxoban": LevelsConfig(
            recipe=BoxobanRecipe(
                height=6, width=7, boxes=1, min_pulls=1, max_pulls=30, direct_share=0.3, seed=1
            ),
            held_out_recipe=BoxobanRecipe(
                height=6, width=7, boxes=1, min_pulls=5, max_pulls=60, direct_share=0.06
            ),
            train_count=8_000,
            evaluate_count=500,
        ),
        "rush-hour": LevelsConfig(
            recipe=RushHourRecipe(
                height=5, width=5, min_moves=1, max_moves=12, min_vehicles=5, max_vehicles=9
            ),
            train_count=8_000,
            evaluate_count=500,
        ),
    }[task]
    assert levels.recipe is not None
    return RunConfig(
        task,
        levels,
        scale="micro",
        total_steps={"boxoban": 1_800_000, "rush-hour": 400_000}[task],
        time_limit={"boxoban": 25, "rush-hour": 40}[task],
        board=(levels.recipe.height, levels.recipe.width),
        core=CoreConfig(width=32, heads=2, layers=1, hidden_multiple=32),
        halting=PolicyKL(max_loops=8),
        drc=DRCConfig(channels=16, hidden=64),
        ppo=PPOConfig(
            num_envs=128,
            rollout_steps=32,
            minibatch=256,
            epochs=2,
            learning_rate=1.5e-3,
            decay_learning_rate=True,
            discount=0.97,
            reward_scale=0.1,
        ),
        evaluate_every=15,
        checkpoint_every=5,
    )


SCALES: dict[str, Callable[[OnlineTask], RunConfig]] = {"micro": micro, "small": small, "paper": paper}


def preset(task: OnlineTask, scale: Scale, arm: ArmName = "looped") -> RunConfig:
    """A run of a task, at a scale, with an arm."""
    return replace(SCALES[scale](task), arm=arm)
