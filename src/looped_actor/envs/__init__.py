"""Environments: the protocol, vectorisation, and Gymnasium."""

from looped_actor.envs.base import Environment, LevelEnvironment, LevelSource, Outcome
from looped_actor.envs.vector import EpisodeStatistics, TimeStep, VectorEnv, VectorState

__all__ = [
    "Environment",
    "EpisodeStatistics",
    "LevelEnvironment",
    "LevelSource",
    "Outcome",
    "TimeStep",
    "VectorEnv",
    "VectorState",
]
