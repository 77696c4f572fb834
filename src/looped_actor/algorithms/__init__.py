"""Learning as pure functions over protocols: no net, no environment and no device of its own."""

from looped_actor.algorithms.advantages import Advantages, advantages
from looped_actor.algorithms.deciding import (
    Acting,
    Decide,
    Synchronous,
    Weights,
    deciding,
    opened,
    thinking,
)
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
from looped_actor.algorithms.imitation import (
    Advice,
    Advised,
    ImitationConfig,
    ImitationTerms,
    Teacher,
    imitation_loss,
)
from looped_actor.algorithms.learner import (
    LearnerState,
    Update,
    clipped_adam,
    descend,
    mean_over_taken,
    new_learner,
)
from looped_actor.algorithms.ppo import Example, PPOConfig, PPOTerms, normalised_advantage, ppo_loss
from looped_actor.algorithms.rollout_config import RolloutConfig
from looped_actor.algorithms.statistics import RunningStatistics, no_statistics, normalised, updated

__all__ = [
    "Acting",
    "ActorTerms",
    "Advantages",
    "Advice",
    "Advised",
    "CriticTerms",
    "Decide",
    "Example",
    "GCIQLConfig",
    "GoalBatch",
    "ImitationConfig",
    "ImitationTerms",
    "LearnerState",
    "PPOConfig",
    "PPOTerms",
    "RolloutConfig",
    "RunningStatistics",
    "Synchronous",
    "Teacher",
    "Update",
    "ValueTerms",
    "Weights",
    "actor_loss",
    "advantages",
    "clipped_adam",
    "critic_loss",
    "deciding",
    "descend",
    "imitation_loss",
    "mean_over_taken",
    "moved_towards",
    "new_learner",
    "no_statistics",
    "normalised",
    "normalised_advantage",
    "opened",
    "ppo_loss",
    "q_of_action",
    "q_scale",
    "thinking",
    "updated",
    "value_loss",
]
