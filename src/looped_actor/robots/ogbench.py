"""OGBench's worlds: four tabletops with a robot arm, five tasks each, on MuJoCo.

OGBench comes with the extra `ogbench` and is imported only when a world is made.
"""

import os
import sys
import warnings
from typing import Any, get_args

import numpy as np
from jaxtyping import Float

from looped_actor.names import DataKind, WorldName
from looped_actor.robots.graded import graded_task
from looped_actor.utils.errors import UserError

WORLDS: tuple[WorldName, ...] = get_args(WorldName)
"""Their order is in the seeds of collected data."""
ACTIONS = 5
"""Scalars of an action: a move, a turn, and the gripper, each from -1 to 1."""
KINDS: tuple[DataKind, ...] = get_args(DataKind)
"""Of datasets."""
TASKS = (1, 2, 3, 4, 5)
"""The goals that each world is evaluated on."""


def dataset_name(world: str, kind: str = "play") -> str:
    """What OGBench calls a dataset of a world."""
    return f"{world}-{kind}-v0"


def make_world(world: str, *, pictures: bool = False, **options: Any) -> Any:
    """A Gymnasium environment of OGBench, without its data.

    Args:
      world: which one.
      pictures: whether it will be looked at. MuJoCo decides on its first import whether it can draw.
      options: those of OGBench.
    """
    if world not in WORLDS:
        raise UserError(f"there is no world {world!r}; there are {', '.join(WORLDS)}")
    if sys.platform == "linux" and "DISPLAY" not in os.environ:
        chosen = os.environ.setdefault("MUJOCO_GL", "egl" if pictures else "disable")
        if pictures and chosen == "disable":
            raise UserError(
                "MuJoCo was started without pictures here: set MUJOCO_GL=egl before, or film in a new process"
            )
    try:
        import ogbench
    except ImportError as error:
        raise UserError(
            f"{world} needs OGBench and MuJoCo ({error}): pip install 'looped-actor[ogbench]'"
        ) from None
    # OGBench makes its spaces anew whenever it is asked for them, and Gymnasium warns each time.
    warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
    return ogbench.make_env_and_datasets(dataset_name(world), env_only=True, **options)


class Step:
    """What a step of an episode showed."""

    __slots__ = ("over", "state", "success")

    def __init__(self, state: Float[np.ndarray, " n"], over: bool, success: bool):
        self.state, self.over, self.success = state, over, success


class Arena:
    """A world in which one episode after the other is played towards the goals of its tasks.

    A task is one of OGBench's, by its number, or a goal by distance, by its name (`graded.GRADED`).

    Everything random in an episode comes from its seed: it does not matter what was played before.
    """

    def __init__(self, world: str, *, pictures: bool = False, **options: Any):
        self._name, self._world = world, make_world(world, pictures=pictures, **options)
        # A goal is shaken by a few random actions. OGBench draws them from a space that it makes anew, and
        # unseeded, at each access: give it one that stays, and can be seeded.
        inner = self._world.unwrapped
        self._actions, kind = inner.action_space, type(inner)
        inner.__class__ = type(kind.__name__, (kind,), {"action_space": self._actions})
        self.time_limit: int = self._world.spec.max_episode_steps

    def begin(self, task: int | str, seed: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """The first state of an episode, and its goal."""
        self._actions.seed(seed)
        graded = isinstance(task, str)
        asked = {"task_info": graded_task(self._name, task, seed)} if graded else {"task_id": task}
        state, about = self._world.reset(seed=seed, options={**asked, "render_goal": False})
        quality = self._world.unwrapped.model.vis.quality
        quality.shadowsize, quality.offsamples = 0, 0  # in software these make a picture ten times slower
        return state.astype(np.float32), about["goal"].astype(np.float32)

    def step(self, action: Float[np.ndarray, " a"]) -> Step:
        """Act. The bounds of actions are kept to."""
        state, _, terminated, truncated, about = self._world.step(np.clip(action, -1, 1))
        return Step(state.astype(np.float32), bool(terminated or truncated), bool(about["success"]))

    def picture(self) -> np.ndarray:
        """What it looks like now, `[rows, columns, 3]`."""
        return self._world.render()

    def task_name(self, task: int) -> str:
        """What OGBench calls a task."""
        return self._world.unwrapped.task_infos[task - 1]["task_name"]


def episode_seed(*address: int | str) -> int:
    """A seed for an episode, by its address: none is used twice."""
    numbers = [int.from_bytes(part.encode()) if isinstance(part, str) else part for part in address]
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
