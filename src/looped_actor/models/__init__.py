"""The nets: the looped actor, its untied baselines, DRC, and the parts to build others from."""

from looped_actor.models.actor import Actor, PolicyModel, PolicyOutput
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
from looped_actor.models.layers import AUTHORS_INITIAL, DEFAULT_INITIAL, InitialWeights
from looped_actor.models.looped import InitialLatent, LoopedTrunk, Trunk
from looped_actor.models.mlp import MLP, GoalValue, MLPActor, TwinGoalCritics
from looped_actor.models.stacks import Stack
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
    "AUTHORS_INITIAL",
    "DEFAULT_INITIAL",
    "DRC",
    "MLP",
    "Actor",
    "CellLogits",
    "CoreConfig",
    "DRCConfig",
    "FPRMCore",
    "GaussianMean",
    "GaussianMeanAndStd",
    "GoalObservation",
    "GoalTokenizer",
    "GoalValue",
    "InitialLatent",
    "InitialWeights",
    "LoopedTrunk",
    "MLPActor",
    "PairedTokenizer",
    "PlanesTokenizer",
    "PolicyHead",
    "PolicyModel",
    "PolicyOutput",
    "ReadoutLogits",
    "Stack",
    "Tokenizer",
    "Tokens",
    "Trunk",
    "TwinGoalCritics",
    "ValueHead",
    "VectorTokenizer",
]
