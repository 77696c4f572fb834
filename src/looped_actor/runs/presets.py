"""The scales of a run. `paper` is the paper's tables; the others are smaller worlds with smaller nets."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from looped_actor.algorithms import GCIQLConfig, ImitationConfig, PPOConfig
from looped_actor.loop import PolicyKL
from looped_actor.models import AUTHORS, CoreConfig, DRCConfig
from looped_actor.names import ArmName, PuzzleName, Scale, WorldName
from looped_actor.puzzles.boxoban.generator import BoxobanRecipe
from looped_actor.puzzles.catalogue import GAMES
from looped_actor.puzzles.rush_hour.generator import RushHourRecipe
from looped_actor.robots.ogbench import WORLDS, dataset_name
from looped_actor.runs.config import OfflineConfig, OnlineConfig
from looped_actor.runs.material import DataConfig, LevelsConfig
from looped_actor.utils.errors import UserError

STUDY_STEPS = {
    ("boxoban", "ppo"): 100_000,
    ("boxoban", "imitation"): 80_000,
    ("rush-hour", "ppo"): 120_000,
    ("rush-hour", "imitation"): 48_000,
}
"""Steps of a puzzle run of `looped-actor reproduce` at `micro`: fewer than those of `looped-actor train`, so
that a whole grid of runs ends within hours. Its other runs have the steps of `train`."""
STUDY_RATES = {("rush-hour", "ppo", "looped"): 3e-3, ("rush-hour", "ppo", "iso-flops"): 3e-3}
"""The best learning rate of each arm for which several were tried at about `STUDY_STEPS`: part E of
results/depth_study. Other arms and learners have the preset's."""
STUDY_EVALUATIONS = 5
"""Evaluations of each of them."""


def _paper_online(task: PuzzleName) -> OnlineConfig:
    """The paper's tables, and where these are silent, what the authors' code does (docs/paper.md)."""
    name = {"boxoban": "boxoban-unfiltered", "rush-hour": "rush-hour"}[task]
    train, valid, test = (f"levels/{name}-{split}.levels" for split in ("train", "valid", "test"))
    return OnlineConfig(
        task=task,
        levels=LevelsConfig(train=train, valid=valid, held_out=test, evaluate_count=256),
        scale="paper",
        total_steps=100_000_000,
        time_limit=GAMES[task].time_limit,
        board={"boxoban": (10, 10), "rush-hour": (6, 6)}[task],
        core=CoreConfig(width=128, heads=4, layers=2, expansion=4.0, convolution=True, initial=AUTHORS),
        halting=PolicyKL(threshold=1e-3, min_loops=2, max_loops=16, reverse=True),
        drc=DRCConfig(),
        ppo=PPOConfig(
            num_envs=1024,
            rollout_steps=64,
            minibatch=1024,
            epochs=4,
            learning_rate=1e-4,
            max_gradient_norm=1.0,
            discount=0.99,
            gae_lambda=0.95,
            clip=0.3,
            entropy_cost=0.01,
            value_cost=0.25,
            bootstrap_timeouts=False,
            shuffle="steps",
            hard_resets=100,
            cell_statistics=True,
            scale_before_learning=True,
        ),
        evaluate_every=15,
        checkpoint_every=10,
    )


def _small_online(task: PuzzleName) -> OnlineConfig:
    """For one GPU and about an hour: mid-sized boards, half the width."""
    recipe = {
        "boxoban": BoxobanRecipe(height=8, width=8, boxes=2, min_pulls=2, max_pulls=40),
        "rush-hour": RushHourRecipe(height=6, width=6, min_moves=1, max_moves=12),
    }[task]
    return OnlineConfig(
        task=task,
        levels=LevelsConfig(recipe=recipe, train_count=50_000, held_out_count=1_000),
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


def _micro_online(task: PuzzleName) -> OnlineConfig:
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
    return OnlineConfig(
        task=task,
        levels=levels,
        scale="micro",
        total_steps={"boxoban": 1_800_000, "rush-hour": 400_000}[task],
        time_limit={"boxoban": 25, "rush-hour": 40}[task],
        board=(levels.recipe.height, levels.recipe.width),
        core=CoreConfig(width=32, heads=2, layers=1, hidden_multiple=32),
        halting=PolicyKL(max_loops=8),
        drc=DRCConfig(channels=8, hidden=32),
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


def _paper_offline(task: WorldName) -> OfflineConfig:
    """The paper's tables: for one accelerator, with OGBench's own data of 1 to 3 million transitions."""
    return OfflineConfig(
        task=task,
        data=DataConfig(train=f"data/{dataset_name(task)}.npz"),
        scale="paper",
        total_steps=1_000_000,
        core=CoreConfig(width=128, heads=4, layers=2, expansion=4.0, convolution=False, initial=AUTHORS),
        halting=PolicyKL(threshold=1e-3, min_loops=2, max_loops=16, reverse=True),
        gciql=GCIQLConfig(
            batch=1024,
            updates_per_iteration=500,
            learning_rate=3e-4,
            max_gradient_norm=1.0,
            discount=0.99,
            expectile=0.9,
            target_rate=0.005,
            bc_weight=1.0,
        ),
        episodes=50,
        evaluate_every=200,
        checkpoint_every=20,
    )


def _small_offline(task: WorldName) -> OfflineConfig:
    """For one GPU and about an hour: half the width, half a million transitions collected on its host."""
    return OfflineConfig(
        task=task,
        data=DataConfig(transitions=500_000),
        scale="small",
        total_steps=100_000,
        core=CoreConfig(width=64, heads=4, layers=2, hidden_multiple=64, convolution=False),
        halting=PolicyKL(max_loops=16),
        gciql=GCIQLConfig(batch=512, updates_per_iteration=500),
        episodes=20,
        evaluate_every=50,
        checkpoint_every=10,
    )


def _micro_offline(task: WorldName) -> OfflineConfig:
    """For two CPU cores and half an hour: a narrow net, small critics, a tenth of OGBench's data.

    Episodes are short, so that goals are a move or two ahead, and a token is a pair of scalars. It shows the
    system at work; it is far too little to solve a task.
    """
    return OfflineConfig(
        task=task,
        data=DataConfig(transitions=120_000, episode_transitions=120),
        scale="micro",
        total_steps=10_000,
        core=CoreConfig(width=32, heads=2, layers=1, hidden_multiple=32, convolution=False),
        halting=PolicyKL(max_loops=6),
        gciql=GCIQLConfig(
            batch=256,
            updates_per_iteration=100,
            learning_rate=1e-3,
            decay_learning_rate=True,
            discount=0.98,
            bc_weight=3.0,
            hidden=(256, 256),
        ),
        mlp=(256, 256, 256),
        paired=True,
        episodes=6,
        evaluate_every=50,
        checkpoint_every=10,
    )


def _imitation(config: OnlineConfig) -> OnlineConfig:
    """The same run by imitation: of fewer steps, since every state says what is right."""
    if config.scale != "micro":
        # What PPO plays in an iteration, an eighth of the steps, and a rate that supervision bears.
        ppo = config.ppo
        learning = ImitationConfig(
            ppo.num_envs,
            ppo.rollout_steps,
            ppo.minibatch,
            ppo.epochs,
            learning_rate=5e-4,
            decay_learning_rate=True,
        )
        return replace(config, learner="imitation", imitation=learning, total_steps=config.total_steps // 8)
    levels = config.levels
    if config.task == "boxoban":
        # Two boxes: one pass through a core of this size does not see a solution.
        recipe = BoxobanRecipe(
            height=6, width=7, boxes=2, min_pulls=5, max_pulls=60, floor=0.8, direct_share=0.3
        )
        levels = LevelsConfig(recipe=recipe, train_count=8_000, evaluate_count=500)
    return replace(
        config,
        learner="imitation",
        levels=levels,
        total_steps=300_000,
        time_limit=40,
        imitation=ImitationConfig(
            num_envs=128,
            rollout_steps=16,
            minibatch=256,
            epochs=2,
            learning_rate=2e-3,
            decay_learning_rate=True,
        ),
        evaluate_every=30,
        checkpoint_every=10,
    )


ONLINE: dict[str, Callable[[PuzzleName], OnlineConfig]] = {
    "micro": _micro_online,
    "small": _small_online,
    "paper": _paper_online,
}
OFFLINE: dict[str, Callable[[WorldName], OfflineConfig]] = {
    "micro": _micro_offline,
    "small": _small_offline,
    "paper": _paper_offline,
}


def preset(
    task: str, scale: Scale, arm: ArmName = "looped", learner: str = "ppo", *, study: bool = False
) -> Any:
    """A run of a task, at a scale, with an arm: an `OnlineConfig` or an `OfflineConfig`.

    With `study`, as one of the many runs of `looped-actor reproduce`, which differ as `STUDY_STEPS` and
    `STUDY_RATES` say.
    """
    scales: Any = OFFLINE if task in WORLDS else ONLINE
    chosen = replace(scales[scale](task), arm=arm)
    if learner == "imitation":
        if task in WORLDS:
            raise UserError(f"{task} has no solver to imitate; it is learned from data")
        chosen = _imitation(chosen)
    if study and scale == "micro" and task not in WORLDS:
        chosen = replace(chosen, total_steps=STUDY_STEPS[task, learner])
        if rate := STUDY_RATES.get((task, learner, arm)):
            chosen = replace(chosen, ppo=replace(chosen.ppo, learning_rate=rate))
    return chosen
