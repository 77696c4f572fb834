"""Algorithms: PPO, imitation of a solver, and GCIQL, each in one file, and the parts that they share."""

from looped_actor.algorithms.gciql import GCIQL, CriticParams, GCIQLConfig, Nets, OfflineState
from looped_actor.algorithms.imitation import Imitation, ImitationConfig
from looped_actor.algorithms.normalization import RunningStatistics, zero_statistics
from looped_actor.algorithms.online import MinibatchLearner, OnlineState, RolloutConfig
from looped_actor.algorithms.policy_fn import (
    Acting,
    Action,
    PolicyFn,
    Synchronous,
    Weights,
    init_carry,
    make_acting_policy,
    make_policy,
    to_streaming,
)
from looped_actor.algorithms.ppo import PPO, PPOConfig
from looped_actor.algorithms.recipe import RECIPES, Recipe, RecipeName

__all__ = [
    "GCIQL",
    "PPO",
    "RECIPES",
    "Acting",
    "Action",
    "CriticParams",
    "GCIQLConfig",
    "Imitation",
    "ImitationConfig",
    "MinibatchLearner",
    "Nets",
    "OfflineState",
    "OnlineState",
    "PPOConfig",
    "PolicyFn",
    "Recipe",
    "RecipeName",
    "RolloutConfig",
    "RunningStatistics",
    "Synchronous",
    "Weights",
    "init_carry",
    "make_acting_policy",
    "make_policy",
    "to_streaming",
    "zero_statistics",
]
