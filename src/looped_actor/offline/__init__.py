"""Datasets of episodes, and batches with goals in hindsight."""

from looped_actor.offline.dataset import Dataset, DatasetError, EpisodeIndex, from_ogbench, open_dataset
from looped_actor.offline.goals import GoalRows, GoalSampling, sample_rows

__all__ = [
    "Dataset",
    "DatasetError",
    "EpisodeIndex",
    "GoalRows",
    "GoalSampling",
    "from_ogbench",
    "open_dataset",
    "sample_rows",
]
