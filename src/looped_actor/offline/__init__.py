"""Offline goal-conditioned learning: datasets of episodes, goals drawn in hindsight, OGBench's worlds."""

from looped_actor.offline.dataset import Dataset, DatasetError, EpisodeIndex, from_ogbench, open_dataset
from looped_actor.offline.goals import Drawn, GoalSampling, draw

__all__ = [
    "Dataset",
    "DatasetError",
    "Drawn",
    "EpisodeIndex",
    "GoalSampling",
    "draw",
    "from_ogbench",
    "open_dataset",
]
