"""Learning as pure functions over protocols: no net, no environment and no device of its own."""

from looped_actor.algorithms.advantages import Advantages, advantages
from looped_actor.algorithms.deciding import Acting, Decide, Synchronous, Weights, deciding, opened
from looped_actor.algorithms.gciql import (
    ActorTerms,
    CriticTerms,
    GCIQLConfig,
    GoalBatch,
    ValueTerms,
    actor_loss,
    critic_loss,
    moved_towards,
    q_of_action,
    q_scale,
    value_loss,
)
from looped_actor.algorithms.learner import LearnerState, Update, decayed, descend, new_learner
from looped_actor.algorithms.ppo import Example, PPOConfig, PPOTerms, normalised_advantage, ppo_loss
from looped_actor.algorithms.statistics import RunningStatistics, no_statistics, normalised, updated

__all__ = [
    "Acting",
    "ActorTerms",
    "Advantages",
    "CriticTerms",
    "Decide",
    "Example",
    "GCIQLConfig",
    "GoalBatch",
    "LearnerState",
    "PPOConfig",
    "PPOTerms",
    "RunningStatistics",
    "Synchronous",
    "Update",
    "ValueTerms",
    "Weights",
    "actor_loss",
    "advantages",
    "critic_loss",
    "decayed",
    "deciding",
    "descend",
    "moved_towards",
    "new_learner",
    "no_statistics",
    "normalised",
    "normalised_advantage",
    "opened",
    "ppo_loss",
    "q_of_action",
    "q_scale",
    "updated",
    "value_loss",
]
