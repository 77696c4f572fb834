"""Presets: configurations of runs at three scales. `paper` follows the paper's tables; the others are
smaller."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from looped_actor.algorithms import GCIQLConfig, ImitationConfig, PPOConfig
from looped_actor.loop import PolicyKL
from looped_actor.models import CoreConfig, DRCConfig
from looped_actor.models.arms import arm_named
from looped_actor.models.tasks import TASKS
from looped_actor.names import ArmName, PuzzleName, RobotName, Scale
from looped_actor.puzzles.boxoban.generator import BoxobanRecipe
from looped_actor.puzzles.catalogue import GAMES
from looped_actor.puzzles.rush_hour.generator import RushHourRecipe
from looped_actor.robots.ogbench import ENVIRONMENTS, dataset_name
from looped_actor.runs.config import DataConfig, LevelsConfig, PuzzleConfig, RobotConfig
from looped_actor.utils.errors import UserError

STUDY_STEPS = {
    ("boxoban", "ppo"): 100_000,
    ("boxoban", "imitation"): 80_000,
    ("rush-hour", "ppo"): 120_000,
    ("rush-hour", "imitation"): 48_000,
}
"""Steps of a puzzle run of `looped-actor reproduce` at `micro`: fewer than those of `looped-actor train`, so
that a grid of runs ends within hours. Its other runs have the steps of `train`."""
STUDY_RATES = {("rush-hour", "ppo", "looped"): 3e-3, ("rush-hour", "ppo", "iso-flops"): 3e-3}
"""Best learning rate of each arm for which several were tried at about `STUDY_STEPS`: part E of the depth
study. Other arms and learners have the preset's."""
STUDY_EVALUATIONS = 5
"""Evaluations during each of these runs."""


Arms = tuple[CoreConfig, PolicyKL, DRCConfig, tuple[int, ...]]
"""Shapes from which the arms of a scale are built: core, halting rule, DRC, layers of the MLP."""
MLP = (512, 512, 512)


def _paper_puzzle(task: PuzzleName) -> tuple[PuzzleConfig, Arms]:
    """The paper's tables, and where these are silent, what the authors' code does (docs/paper.md)."""
    name = {"boxoban": "boxoban-unfiltered", "rush-hour": "rush-hour"}[task]
    train, valid, test = (f"levels/{name}-{split}.levels" for split in ("train", "valid", "test"))
    config = PuzzleConfig(
        task=task,
        levels=LevelsConfig(train=train, valid=valid, held_out=test, evaluate_count=256),
        total_steps=100_000_000,
        time_limit=GAMES[task].time_limit,
        board={"boxoban": (10, 10), "rush-hour": (6, 6)}[task],
        recipe="authors",
        algorithm=PPOConfig(
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
        ),
        evaluate_every=15,
        checkpoint_every=10,
    )
    return config, _paper_arms()


def _paper_arms() -> Arms:
    core = CoreConfig(width=128, heads=4, layers=2)
    halting = PolicyKL(threshold=1e-3, min_loops=2, max_loops=16, reverse=True)
    return core, halting, DRCConfig(), MLP


def _small_puzzle(task: PuzzleName) -> tuple[PuzzleConfig, Arms]:
    """For one GPU and about an hour: mid-sized boards, half the width."""
    recipe = {
        "boxoban": BoxobanRecipe(height=8, width=8, boxes=2, min_pulls=2, max_pulls=40),
        "rush-hour": RushHourRecipe(height=6, width=6, min_moves=1, max_moves=12),
    }[task]
    config = PuzzleConfig(
        task=task,
        levels=LevelsConfig(recipe=recipe, train_count=50_000, held_out_count=1_000),
        total_steps=10_000_000,
        time_limit=80,
        board=(recipe.height, recipe.width),
        algorithm=PPOConfig(
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
    core = CoreConfig(width=64, heads=4, layers=2)
    return config, (core, PolicyKL(max_loops=16), DRCConfig(hidden=128), MLP)


def _micro_puzzle(task: PuzzleName) -> tuple[PuzzleConfig, Arms]:
    """For two CPU cores and some minutes: small boards of mixed difficulty, a narrow net.

    Boxoban is learned from levels of which many are a few moves from solved, since rewards are rare, and
    evaluated on levels of which a greedy player solves less than half.
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
    config = PuzzleConfig(
        task=task,
        levels=levels,
        total_steps={"boxoban": 1_800_000, "rush-hour": 400_000}[task],
        time_limit={"boxoban": 25, "rush-hour": 40}[task],
        board=(levels.recipe.height, levels.recipe.width),
        algorithm=PPOConfig(
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
    core = CoreConfig(width=32, heads=2, layers=1)
    return config, (core, PolicyKL(max_loops=8), DRCConfig(channels=8, hidden=32), MLP)


def _paper_robot(task: RobotName) -> tuple[RobotConfig, Arms]:
    """The paper's tables: for one accelerator, with OGBench's own data of 1 to 3 million transitions."""
    config = RobotConfig(
        task=task,
        data=DataConfig(train=f"data/{dataset_name(task)}.npz"),
        total_steps=1_000_000,
        recipe="authors",
        algorithm=GCIQLConfig(
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
    return config, _paper_arms()


def _small_robot(task: RobotName) -> tuple[RobotConfig, Arms]:
    """For one GPU and about an hour: half the width, half a million transitions collected on its host."""
    config = RobotConfig(
        task=task,
        data=DataConfig(transitions=500_000),
        total_steps=100_000,
        algorithm=GCIQLConfig(batch=512, updates_per_iteration=500),
        episodes=20,
        evaluate_every=50,
        checkpoint_every=10,
    )
    return config, (CoreConfig(width=64, heads=4, layers=2), PolicyKL(max_loops=16), DRCConfig(), MLP)


def _micro_robot(task: RobotName) -> tuple[RobotConfig, Arms]:
    """For two CPU cores and half an hour: a narrow net, small critics, a tenth of OGBench's data.

    Episodes are short: goals are a move or two ahead. A token is a pair of scalars. Far too little to solve a
    task: it shows that everything works.
    """
    config = RobotConfig(
        task=task,
        data=DataConfig(transitions=120_000, episode_transitions=120),
        total_steps=10_000,
        algorithm=GCIQLConfig(
            batch=256,
            updates_per_iteration=100,
            learning_rate=1e-3,
            decay_learning_rate=True,
            discount=0.98,
            bc_weight=3.0,
            hidden=(256, 256),
        ),
        paired=True,
        episodes=6,
        evaluate_every=50,
        checkpoint_every=10,
    )
    core = CoreConfig(width=32, heads=2, layers=1)
    return config, (core, PolicyKL(max_loops=6), DRCConfig(), (256, 256, 256))


def _by_imitation(config: PuzzleConfig, scale: Scale) -> PuzzleConfig:
    """Return the run by imitation, with fewer steps, since every state has a label."""
    ppo = config.algorithm
    if scale != "micro":
        # The rollouts and minibatches of PPO, an eighth of the steps, and a rate that supervision bears.
        algorithm = ImitationConfig(
            num_envs=ppo.num_envs,
            rollout_steps=ppo.rollout_steps,
            minibatch=ppo.minibatch,
            epochs=ppo.epochs,
            learning_rate=5e-4,
            decay_learning_rate=True,
        )
        # Imitation has no hard resets and shuffles examples, so that the authors' recipe does not apply.
        return replace(config, algorithm=algorithm, total_steps=config.total_steps // 8, recipe="default")
    levels = config.levels
    if config.task == "boxoban":
        # Two boxes: one pass through a core of this size does not find a solution.
        recipe = BoxobanRecipe(
            height=6, width=7, boxes=2, min_pulls=5, max_pulls=60, floor=0.8, direct_share=0.3
        )
        levels = LevelsConfig(recipe=recipe, train_count=8_000, evaluate_count=500)
    return replace(
        config,
        algorithm=ImitationConfig(
            num_envs=128,
            rollout_steps=16,
            minibatch=256,
            epochs=2,
            learning_rate=2e-3,
            decay_learning_rate=True,
        ),
        levels=levels,
        total_steps=300_000,
        time_limit=40,
        evaluate_every=30,
        checkpoint_every=10,
    )


PUZZLE_SCALES: dict[str, Callable[[PuzzleName], tuple[PuzzleConfig, Arms]]] = {
    "micro": _micro_puzzle,
    "small": _small_puzzle,
    "paper": _paper_puzzle,
}
ROBOT_SCALES: dict[str, Callable[[RobotName], tuple[RobotConfig, Arms]]] = {
    "micro": _micro_robot,
    "small": _small_robot,
    "paper": _paper_robot,
}


def preset(
    task: str, scale: Scale, arm: ArmName = "looped", learner: str = "ppo", *, study: bool = False
) -> Any:
    """Return the configuration of a task at a scale.

    Args:
      task: a puzzle or a robot environment.
      scale: `micro` for two CPU cores and minutes, `small` for one GPU and an hour, or `paper`.
      arm: the net.
      learner: of puzzles: `ppo` or `imitation`.
      study: as one of the many runs of `looped-actor reproduce`, by `STUDY_STEPS` and `STUDY_RATES`.
    """
    if arm in TASKS[task].unfit_arms:
        raise UserError(f"{arm} does not fit {task}: drc needs a board, mlp needs vectors")
    scales: Any = ROBOT_SCALES if task in ENVIRONMENTS else PUZZLE_SCALES
    config, arms = scales[scale](task)
    if learner == "imitation":
        if task in ENVIRONMENTS:
            raise UserError(f"{task} has no solver to imitate; it is learned from data")
        config = _by_imitation(config, scale)
    config = replace(config, arm=arm_named(arm, *arms))
    if study and scale == "micro" and task not in ENVIRONMENTS:
        config = replace(config, total_steps=STUDY_STEPS[task, learner])
        if rate := STUDY_RATES.get((task, learner, arm)):
            config = replace(config, algorithm=replace(config.algorithm, learning_rate=rate))
    return config
