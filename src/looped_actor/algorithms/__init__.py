"""Learning as pure functions over protocols: no net, no environment and no device of its own."""

from looped_actor.algorithms.advantages import Advantages, advantages
from looped_actor.algorithms.deciding import Acting, Decide, Synchronous, Weights, deciding, opened
from looped_actor.algorithms.learner import LearnerState, Update, descend, new_learner
from looped_actor.algorithms.ppo import Example, PPOConfig, PPOTerms, normalised_advantage, ppo_loss
from looped_actor.algorithms.statistics import RunningStatistics, no_statistics, normalised, updated

__all__ = [
    "Acting",
    "Advantages",
    "Decide",
    "Example",
    "LearnerState",
    "PPOConfig",
    "PPOTerms",
    "RunningStatistics",
    "Synchronous",
    "Update",
    "Weights",
    "advantages",
    "deciding",
    "descend",
    "new_learner",
    "no_statistics",
    "normalised",
    "normalised_advantage",
    "opened",
    "ppo_loss",
    "updated",
]
