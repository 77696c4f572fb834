"""OGBench's manipulation environments: a robot arm at a table, with five tasks each, on MuJoCo.

OGBench comes with the extra `ogbench`. It is imported when an environment is made.
"""

import os
import sys
import warnings
from typing import Any, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

from looped_actor.names import DataKind, RobotName
from looped_actor.robots.graded import make_graded_task
from looped_actor.utils.errors import UserError

ENVIRONMENTS: tuple[RobotName, ...] = get_args(RobotName)
"""Names of the environments. Their order is fixed: seeds of collected data depend on it."""
DATA_KINDS: tuple[DataKind, ...] = get_args(DataKind)
"""OGBench's kinds of datasets."""
TASKS = (1, 2, 3, 4, 5)
"""Numbers of each environment's tasks."""
ACTION_SIZE = 5
"""Scalars of an action, each in [-1, 1]: three of position, one of yaw, one of the gripper."""


def dataset_name(env_name: str, kind: str = "play") -> str:
    """Return OGBench's name of a dataset."""
    return f"{env_name}-{kind}-v0"


def check_env_name(env_name: str) -> None:
    """Raise an error if there is no environment of this name."""
    if env_name not in ENVIRONMENTS:
        raise UserError(f"there is no environment {env_name!r}; there are {', '.join(ENVIRONMENTS)}")


def make_env(env_name: str, *, render: bool = False, **options: Any) -> Any:
    """Make a Gymnasium environment of OGBench, without its data.

    Args:
      env_name: one of `ENVIRONMENTS`.
      render: whether frames will be rendered. MuJoCo chooses its renderer once, when it is first imported.
      options: options of OGBench.
    """
    check_env_name(env_name)
    if sys.platform == "linux" and "DISPLAY" not in os.environ:
        renderer = os.environ.setdefault("MUJOCO_GL", "egl" if render else "disable")
        if render and renderer == "disable":
            raise UserError(
                "MuJoCo was started without pictures here: set MUJOCO_GL=egl before, or film in a new process"
            )
    try:
        import ogbench
    except ImportError as error:
        raise UserError(
            f"{env_name} needs OGBench and MuJoCo ({error}): pip install 'looped-actor[ogbench]'"
        ) from None
    # OGBench makes a new space at each access, and Gymnasium warns each time.
    warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
    return ogbench.make_env_and_datasets(dataset_name(env_name), env_only=True, **options)


class Step(NamedTuple):
    """Outcome of a step."""

    state: Float[np.ndarray, " n"]
    done: bool
    """True if the episode was terminated or truncated."""
    success: bool


class RobotEnv:
    """An environment that plays the episodes of its tasks, one after the other.

    A task is one of OGBench's, by its number, or a graded goal, by its name (`graded.GRADED`). An episode
    depends on its seed, and not on the episodes before it.
    """

    def __init__(self, env_name: str, *, render: bool = False, **options: Any):
        self._name, self._env = env_name, make_env(env_name, render=render, **options)
        # OGBench perturbs goals by random actions, drawn from the action space. That is a new, unseeded one
        # at each access: replace it by one that can be seeded.
        base = self._env.unwrapped
        self._action_space, kind = base.action_space, type(base)
        base.__class__ = type(kind.__name__, (kind,), {"action_space": self._action_space})
        self.time_limit: int = self._env.spec.max_episode_steps

    def reset(self, task: int | str, seed: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Start an episode, and return its first state and its goal."""
        self._action_space.seed(seed)
        graded = isinstance(task, str)
        options = {"task_info": make_graded_task(self._name, task, seed)} if graded else {"task_id": task}
        state, info = self._env.reset(seed=seed, options={**options, "render_goal": False})
        quality = self._env.unwrapped.model.vis.quality
        quality.shadowsize, quality.offsamples = 0, 0  # in software these make rendering ten times slower
        return state.astype(np.float32), info["goal"].astype(np.float32)

    def step(self, action: Float[np.ndarray, " a"]) -> Step:
        """Take an action, clipped to its bounds."""
        state, _, terminated, truncated, info = self._env.step(np.clip(action, -1, 1))
        return Step(state.astype(np.float32), bool(terminated or truncated), bool(info["success"]))

    def render(self) -> np.ndarray:
        """Return the current frame, `[rows, columns, 3]`."""
        return self._env.render()

    def task_name(self, task: int) -> str:
        """Return OGBench's name of a task."""
        return self._env.unwrapped.task_infos[task - 1]["task_name"]


def episode_seed(*address: int | str) -> int:
    """Return the seed of an episode: a hash of numbers and names that identify it."""
    numbers = [int.from_bytes(part.encode()) if isinstance(part, str) else part for part in address]
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
