"""The nets: the looped actor, its untied baselines, DRC, and the parts to build others from."""

from looped_actor.models.actor import Actor, ActorCritic, ActorCriticOutput, ActorOutput, PolicyModel
from looped_actor.models.drc import DRC, DRCConfig
from looped_actor.models.fprm import CoreConfig, FPRMCore
from looped_actor.models.heads import (
    CellLogits,
    GaussianMean,
    GaussianMeanAndStd,
    PolicyHead,
    ReadoutLogits,
    ValueHead,
)
from looped_actor.models.layers import AUTHORS, InitialWeights
from looped_actor.models.looped import LatentStart, LoopedTrunk, Trunk
from looped_actor.models.mlp import MLP, GoalValue, MLPActor, TwinGoalCritics
from looped_actor.models.stacks import Stack, Unrolled
from looped_actor.models.tokenizers import (
    GoalObservation,
    GoalTokenizer,
    PairedTokenizer,
    PlanesTokenizer,
    Tokenizer,
    Tokens,
    VectorTokenizer,
)

__all__ = [
    "AUTHORS",
    "DRC",
    "MLP",
    "Actor",
    "ActorCritic",
    "ActorCriticOutput",
    "ActorOutput",
    "CellLogits",
    "CoreConfig",
    "DRCConfig",
    "FPRMCore",
    "GaussianMean",
    "GaussianMeanAndStd",
    "GoalObservation",
    "GoalTokenizer",
    "GoalValue",
    "InitialWeights",
    "LatentStart",
    "LoopedTrunk",
    "MLPActor",
    "PairedTokenizer",
    "PlanesTokenizer",
    "PolicyHead",
    "PolicyModel",
    "ReadoutLogits",
    "Stack",
    "Tokenizer",
    "Tokens",
    "Trunk",
    "TwinGoalCritics",
    "Unrolled",
    "ValueHead",
    "VectorTokenizer",
]
