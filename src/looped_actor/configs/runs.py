"""A run of training as data: `config.json` holds it, and everything can be rebuilt from it."""

import abc
import json
import pathlib
from dataclasses import dataclass, field, replace
from typing import Any

from looped_actor.algorithms import (
    Acting,
    GCIQLConfig,
    ImitationConfig,
    PPOConfig,
    RolloutConfig,
    Synchronous,
)
from looped_actor.checks import at_least_one
from looped_actor.codec import from_json, to_json
from looped_actor.configs.material import DataConfig, LevelsConfig
from looped_actor.envs.spaces import ContinuousActions, DiscreteActions, Observations
from looped_actor.errors import UserError
from looped_actor.files import read_json, write_whole
from looped_actor.levels.boxoban_generator import BoxobanRecipe
from looped_actor.levels.rush_hour_generator import RushHourRecipe
from looped_actor.loop import PolicyKL, Streaming
from looped_actor.models import CoreConfig, DRCConfig
from looped_actor.models.arms import Arm, arm_named
from looped_actor.models.tasks import CONTROL_TASKS, PUZZLE_TASKS, TASKS, ControlTask, PuzzleTask, Task
from looped_actor.names import (
    ALGORITHMS,
    ArmName,
    LearnedName,
    LearnerName,
    PuzzleName,
    StartName,
    WorldName,
)
from looped_actor.names import (
    CONFIG_FILE as CONFIG_FILE,
)
from looped_actor.offline import GoalSampling
from looped_actor.training import Schedule


@dataclass(frozen=True, kw_only=True)
class RunConfig(abc.ABC):
    """What every run of training has."""

    task: str
    """The environment."""
    arm: str = "looped"
    """What is trained."""
    seed: int = 0
    """Seed of everything random."""
    total_steps: int = 100_000_000
    """Environment steps (online) or gradient steps (offline) of the run; rounded up to whole iterations."""
    evaluate_every: int = 50
    """Iterations between two evaluations."""
    checkpoint_every: int = 10
    """Iterations between two checkpoints."""
    keep_checkpoints: int = 3
    """How many of the newest to keep, besides the best."""
    max_skipped_in_a_row: int = 20
    """Updates in a row that are not finite, after which the run gives up."""
    double_precision: bool = False
    """Train in float64: to compare runs on different devices."""
    synchronous: bool = False
    """Decide for all environments in step, instead of streaming: the same policy, and slower."""

    def __post_init__(self) -> None:
        at_least_one(self, "total_steps", "evaluate_every", "checkpoint_every", "keep_checkpoints")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed is {self.seed}; it must be from 0 to 2**31 - 1")

    @property
    @abc.abstractmethod
    def steps_per_iteration(self) -> int:
        """Steps between two rows of metrics."""

    @property
    @abc.abstractmethod
    def algorithm(self) -> str:
        """What the policy is made by, for people."""

    @property
    def iterations(self) -> int:
        """Iterations of the whole run."""
        return -(-self.total_steps // self.steps_per_iteration)

    @property
    def schedule(self) -> Schedule:
        """What `fit` does when."""
        return Schedule(
            self.iterations,
            self.evaluate_every,
            self.checkpoint_every,
            self.keep_checkpoints,
            self.max_skipped_in_a_row,
            self.best_by,
        )

    @property
    def best_by(self) -> str:
        """Which fact of an evaluation tells the best checkpoint."""
        return "success"

    @property
    def title(self) -> str:
        """What it is, in few words."""
        return f"{self.algorithm}: {self.task} {self.trained}"

    @property
    def trained(self) -> str:
        """What is trained, for people and in names of folders."""
        return self.arm

    @property
    def acting(self) -> Acting:
        """How decisions are computed when playing."""
        return Synchronous() if self.synchronous else Streaming()


@dataclass(frozen=True, kw_only=True)
class PaperConfig(RunConfig):
    """A run on one of the paper's tasks, with one of its arms."""

    scale: str = "paper"
    """The preset that the run began from."""
    arm: ArmName = "looped"
    """What is trained: looped, or one of the arms it is compared with."""
    core: CoreConfig = field(default_factory=CoreConfig)
    halting: PolicyKL = field(default_factory=PolicyKL)
    """When the looped arm stops. Its cap is also the number of cores of Iso-FLOPs."""

    @property
    @abc.abstractmethod
    def shape(self) -> Task:
        """What the net must read, and what it must decide."""

    @property
    @abc.abstractmethod
    def chosen_arm(self) -> Arm:
        """What is trained, and how it thinks."""


@dataclass(frozen=True, kw_only=True)
class OwnConfig(RunConfig):
    """A run of PPO on a world of your own: all of it that is not code.

    ```python
    config = OwnConfig(task="walk", total_steps=30_000, ppo=PPOConfig(num_envs=64, ...))
    policy = looped_actor.train(config, "runs/walk", env=Walk(), build=build)
    ```
    """

    task: str = "own"
    """Its name, in tables and figures."""
    arm: str = "looped"
    """The net's name there."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    episodes: int = 256
    """Episodes of an evaluation."""
    observations: Observations | None = None
    """What the environment shows. None: filled in when the run begins."""
    actions: DiscreteActions | ContinuousActions | None = None
    """What it takes, likewise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "episodes")
        if self.task in TASKS:
            raise UserError(f"task is {self.task!r}, which is one of the paper's: give yours another name")

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of a rollout."""
        return self.ppo.steps_per_iteration

    @property
    def learning(self) -> RolloutConfig:
        """How it plays and learns."""
        return self.ppo

    @property
    def algorithm(self) -> str:
        """What the policy is made by, for people."""
        return ALGORITHMS["ppo"]

    @property
    def best_by(self) -> str:
        """Not every world says what a success is; all have rewards."""
        return "returns"


@dataclass(frozen=True, kw_only=True)
class OnlineConfig(PaperConfig):
    """A run on a puzzle, by PPO or by imitation of its solver."""

    task: PuzzleName
    levels: LevelsConfig
    learner: LearnerName = "ppo"
    """PPO learns from rewards; imitation learns what the solver would do."""
    start: StartName = "fixed"
    """Where a thought starts: from the same latent every time, or where the last one of its episode ended."""
    time_limit: int = 120
    """Steps after which an episode is cut off."""
    board: tuple[int, int] = (10, 10)
    """Rows and columns."""
    window: int | None = None
    """Boxoban by PPO: how far around itself the player sees, in cells. None: the whole board."""
    drc: DRCConfig = field(default_factory=DRCConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    imitation: ImitationConfig = field(default_factory=ImitationConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "time_limit", "window")
        if self.window is not None and (self.task, self.learner) != ("boxoban", "ppo"):
            raise UserError("a window is for Boxoban by PPO: elsewhere nobody walks, and the solver sees all")
        if self.arm == "mlp":
            raise UserError("the arm mlp reads vectors, and a puzzle is a board")
        if self.start != "fixed" and self.chosen_arm.halting is None:
            raise UserError(f"the arm {self.arm} does not loop: there is no thought to start elsewhere")
        least = self.learning.min_cap
        if least is not None and (self.chosen_arm.halting is None or least > self.halting.max_loops):
            raise UserError(
                f"min_cap is {least}: caps are of an arm that loops, and at most max_loops, which is "
                f"{self.halting.max_loops}"
            )
        kinds = {"boxoban": BoxobanRecipe, "rush-hour": RushHourRecipe}
        for recipe in filter(None, (self.levels.recipe, self.levels.held_out_recipe)):
            if not isinstance(recipe, kinds[self.task]):
                raise UserError(f"a {type(recipe).__name__} does not make levels of {self.task}")
            if (recipe.height, recipe.width) != self.board:
                raise UserError(
                    f"board is {list(self.board)} and the recipe makes levels of "
                    f"{recipe.height}x{recipe.width}: set both"
                )

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of a rollout."""
        return self.learning.steps_per_iteration

    @property
    def learning(self) -> RolloutConfig:
        """How the chosen learner plays and learns."""
        return self.ppo if self.learner == "ppo" else self.imitation

    @property
    def algorithm(self) -> str:
        """What the policy is made by, for people."""
        return ALGORITHMS[self.learner]

    @property
    def shape(self) -> PuzzleTask:
        """The game on this run's boards."""
        return replace(PUZZLE_TASKS[self.task], grid=self.board)

    @property
    def chosen_arm(self) -> Arm:
        """What is trained, and how it thinks."""
        return arm_named(self.arm, self.halting, drc=self.drc, start=self.start)


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(PaperConfig):
    """A run of GCIQL on a dataset of robot manipulation."""

    task: WorldName
    data: DataConfig = field(default_factory=DataConfig)
    gciql: GCIQLConfig = field(default_factory=GCIQLConfig)
    goals: GoalSampling = field(default_factory=GoalSampling)
    learn: LearnedName = "all"
    """Critics alone make no policy: actors of any arm learn from them afterwards."""
    critics: str = ""
    """The run whose value and critics the actor learns from. Empty: they are learned together with it."""
    mlp: tuple[int, ...] = (512, 512, 512)
    """Layers of the actor of the arm mlp."""
    paired: bool | None = None
    """One token for each pair of a state's scalar and its goal's, instead of one for each. None: as in the
    paper, in puzzle-3x3 only."""
    differences: bool = False
    """Value, critics, the MLP actor and paired tokens also see how far each of a state's scalars is from its
    goal's."""
    episodes: int = 50
    """Episodes per task in an evaluation."""
    time_limit: int | None = None
    """Steps after which an episode of an evaluation is cut off. None: OGBench's own limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "episodes", "time_limit")
        if not self.mlp or min(self.mlp) < 1:
            raise UserError(f"mlp is {list(self.mlp)}; it must name at least one layer, of at least 1")
        if self.arm == "drc":
            raise UserError("DRC needs a board to convolve, and there is none in robot manipulation")
        if self.learn == "critics" and self.critics:
            raise UserError("critics are to be learned, and are given: leave out one of learn and critics")

    @property
    def steps_per_iteration(self) -> int:
        """Gradient steps between two rows of metrics."""
        return self.gciql.updates_per_iteration

    @property
    def algorithm(self) -> str:
        """What the policy is made by, for people."""
        return ALGORITHMS["gciql"]

    @property
    def trained(self) -> str:
        """What is trained, for people and in names of folders."""
        return "critics" if self.learn == "critics" else self.arm

    @property
    def best_by(self) -> str:
        """How often critics prefer what was done is what an actor can learn from them."""
        return "prefers" if self.learn == "critics" else super().best_by

    @property
    def shape(self) -> ControlTask:
        """States, goals and actions of the world."""
        task = CONTROL_TASKS[self.task]
        paired = task.paired if self.paired is None else self.paired
        return replace(task, paired=paired, differences=self.differences)

    @property
    def chosen_arm(self) -> Arm:
        """What is trained, and how it thinks."""
        return arm_named(self.arm, self.halting, mlp=self.mlp)


def write_config(config: RunConfig, path: pathlib.Path) -> None:
    """Write a configuration for people and programs."""
    write_whole(path, (json.dumps(to_json(config), indent=2) + "\n").encode())


def read_config(path: pathlib.Path) -> RunConfig:
    """Read a configuration, or raise an error that says what is wrong in it."""
    return config_from(read_json(path), str(path))


def config_from(data: Any, where: str = "config") -> RunConfig:
    """A configuration of any kind, from JSON."""
    about = data if isinstance(data, dict) else {}
    if about.get("type") == OwnConfig.__name__:
        return from_json(OwnConfig, data, where)
    offline = about.get("task") in list(CONTROL_TASKS)  # a list: what is read may have no hash
    return from_json(OfflineConfig if offline else OnlineConfig, data, where)
