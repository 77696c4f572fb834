"""Environments: the paper"s puzzles, and many copies of any environment in step."""

from looped_actor.envs.base import Environment, LevelSource, Outcome
from looped_actor.envs.vector import EpisodeStatistics, TimeStep, VectorEnv, VectorState

__all__ = [
    "Environment",
    "EpisodeStatistics",
    "LevelSource",
    "Outcome",
    "TimeStep",
    "VectorEnv",
    "VectorState",
]
