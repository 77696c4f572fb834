"""Learning as pure functions over protocols: no net, no environment and no device of its own."""

from looped_actor.algorithms.advantages import Advantages, advantages
from looped_actor.algorithms.deciding import (
    Acted,
    Acting,
    Decide,
    Synchronous,
    Weights,
    acting_policy,
    as_open_loop,
    deciding,
)
from looped_actor.algorithms.gciql import (
    ActorTerms,
    CriticTerms,
    GCIQLConfig,
    GoalBatch,
    ValueTerms,
    actor_loss,
    critic_loss,
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
from looped_actor.algorithms.ppo import PPOBatch, PPOConfig, PPOTerms, normalised_advantage, ppo_loss
from looped_actor.algorithms.rollout_config import RolloutConfig
from looped_actor.algorithms.statistics import RunningStatistics, no_statistics

__all__ = [
    "Acted",
    "Acting",
    "ActorTerms",
    "Advantages",
    "Advice",
    "Advised",
    "CriticTerms",
    "Decide",
    "GCIQLConfig",
    "GoalBatch",
    "ImitationConfig",
    "ImitationTerms",
    "LearnerState",
    "PPOBatch",
    "PPOConfig",
    "PPOTerms",
    "RolloutConfig",
    "RunningStatistics",
    "Synchronous",
    "Teacher",
    "Update",
    "ValueTerms",
    "Weights",
    "acting_policy",
    "actor_loss",
    "advantages",
    "as_open_loop",
    "clipped_adam",
    "critic_loss",
    "deciding",
    "descend",
    "imitation_loss",
    "mean_over_taken",
    "new_learner",
    "no_statistics",
    "normalised_advantage",
    "ppo_loss",
    "q_of_action",
    "q_scale",
    "value_loss",
]
