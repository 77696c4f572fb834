"""Environments: the paper's puzzles, and many copies of any environment in step."""

from looped_actor.envs.base import Environment, LevelSource, Outcome
from looped_actor.envs.puzzle import Boxoban, RushHour, WindowedBoxoban
from looped_actor.envs.vector import EpisodeStatistics, TimeStep, VectorEnv, VectorState

__all__ = [
    "Boxoban",
    "Environment",
    "EpisodeStatistics",
    "LevelSource",
    "Outcome",
    "RushHour",
    "TimeStep",
    "VectorEnv",
    "VectorState",
    "WindowedBoxoban",
]
