"""Where experience comes from: environments in JAX, environments of Gymnasium, datasets."""

from looped_actor.collectors.base import PLAYERS, STEPS, Collector, Experience
from looped_actor.collectors.environments import EnvironmentCollector
from looped_actor.collectors.goals import DatasetCollector, DrawnInside, Draws, Fetched
from looped_actor.collectors.gymnasium import GymnasiumCollector
from looped_actor.collectors.rollouts import Players, Rollout, Transition, restarted

__all__ = [
    "PLAYERS",
    "STEPS",
    "Collector",
    "DatasetCollector",
    "DrawnInside",
    "Draws",
    "EnvironmentCollector",
    "Experience",
    "Fetched",
    "GymnasiumCollector",
    "Players",
    "Rollout",
    "Transition",
    "restarted",
]
