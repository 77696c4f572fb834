"""Runs with options that the package does not have: initial weights, random caps, gradients of the core.

Importing this module registers `StudyConfig` and `StudyRun`, so the package's own functions train, resume and
load such runs. Their config.json holds the options.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from core_gradients import core_gradient
from flax import nnx
from jaxtyping import Array, Bool, Int
from sharing import copy_first_core, move_together

from looped_actor.algorithms import PPO, Imitation, MinibatchLearner, OnlineState, Recipe
from looped_actor.algorithms.online import take_rows
from looped_actor.algorithms.optim import LearnerState, UpdateInfo, apply_gradients, mean_over_applied
from looped_actor.loop.rng import Stream, addressed_key
from looped_actor.models import DEFAULT_INITIAL, InitialWeights
from looped_actor.puzzles.banks import DeviceLevels
from looped_actor.runs.config import CONFIGS, PuzzleConfig
from looped_actor.runs.puzzle import PuzzleRun
from looped_actor.runs.registry import KINDS
from looped_actor.training import Trainer
from looped_actor.training.sharding import DATA
from looped_actor.utils.codec import replace_fields
from looped_actor.utils.errors import UserError

MAX_LOOPS = 16
"""Maximum number of loops, or of blocks of a stack, in the study."""
GRADIENT_METRICS = (
    "clipped_updates",
    "core_gradient",
    "core_gradient_apart",
    *(f"core_gradient_of_loop_{loop}" for loop in range(1, MAX_LOOPS + 1)),
)
"""Columns of metrics.csv if gradients are measured: share of the updates that were clipped, and norms of the
gradient of the first minibatch before clipping."""


@dataclass(frozen=True, kw_only=True)
class StudyConfig(PuzzleConfig):
    """A run on a puzzle, with the options of the study."""

    initial: InitialWeights = DEFAULT_INITIAL
    """Distributions of the initial weights, in place of those of `recipe`."""
    measure_gradients: bool = False
    """Add `GRADIENT_METRICS` to metrics.csv."""
    min_cap: int | None = None
    """Learn each minibatch with a cap drawn uniformly from this one to the cap of the halting rule. None:
    with the cap of the halting rule. Acting always has that."""
    blocks: Literal["apart", "together"] | None = None
    """Iso-FLOPs: training from blocks that begin alike; see `sharing`. None: each has its own weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_cap is not None and not 1 <= self.min_cap <= self.arm.max_loops:
            raise UserError(f"min_cap is {self.min_cap}; it must be from 1 to {self.arm.max_loops}")

    @property
    def recipe_details(self) -> Recipe:
        return replace(super().recipe_details, initial=self.initial)

    @property
    def plain(self) -> PuzzleConfig:
        """The configuration without the options of the study."""
        return PuzzleConfig(**{part.name: getattr(self, part.name) for part in fields(PuzzleConfig)})


def make_config(config: PuzzleConfig, changes: dict[str, Any], **options: Any) -> StudyConfig:
    """Return a configuration with changed fields, given by their paths, and with options of the study."""
    return StudyConfig(**vars(replace_fields(config, changes)), **options)


@dataclass(frozen=True)
class StudyLearner(MinibatchLearner):
    """The optimization of a run of the study."""

    study: StudyConfig = field(kw_only=True)
    measured: dict[str, Array] = field(default_factory=dict, compare=False, kw_only=True)
    """`GRADIENT_METRICS` of the iteration that is being traced."""

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        optimizer = super().optimizer
        return move_together(optimizer) if self.study.blocks == "together" else optimizer

    def updates(
        self, state: OnlineState, examples: Any, loss: Callable, usable: Bool[Array, " n"] | None = None
    ) -> tuple[LearnerState, UpdateInfo]:
        rows = self.minibatches(state, usable)

        def update(
            learner: LearnerState, drawn: tuple[Int[Array, " m"], Int[Array, ""]]
        ) -> tuple[LearnerState, UpdateInfo]:
            rows, cap = drawn
            minibatch = jax.tree.map(lambda leaf: take_rows(leaf, rows), examples)
            gradient = self.gradient(state, learner, _with_cap(loss, cap), minibatch)
            return apply_gradients(learner, self.optimizer, gradient, DATA)

        if self.study.min_cap is None:
            learner, updates = super().updates(state, examples, loss, usable)
        else:
            learner, updates = jax.lax.scan(update, state.learner, (rows, self._draw_caps(state)))
        if self.study.measure_gradients:
            first = jax.tree.map(lambda leaf: take_rows(leaf, rows[0]), examples)
            self.measured.update(self._measure(state, loss, first, updates))
        return learner, updates

    def _draw_caps(self, state: OnlineState) -> Int[Array, " updates"]:
        key = addressed_key(state.root, Stream.CAP, state.iteration)
        count = (self.config.updates_per_iteration,)
        return jax.random.randint(key, count, self.study.min_cap, self.study.arm.max_loops + 1)

    def _measure(
        self, state: OnlineState, loss: Callable, minibatch: Any, updates: UpdateInfo
    ) -> dict[str, Array]:
        clipped = (updates.gradient_norm > self.config.max_gradient_norm).astype(updates.loss.dtype)
        core = core_gradient(self.definition, state.weights, loss, minibatch, DATA)
        assert core is not None
        by_loop = core.core_gradient_of_loop
        return {
            "clipped_updates": mean_over_applied(updates, clipped),
            "core_gradient": core.core_gradient,
            "core_gradient_apart": core.core_gradient_apart,
            **{f"core_gradient_of_loop_{i + 1}": by_loop[i] for i in range(len(by_loop))},
        }


def _with_cap(loss: Callable, cap: Int[Array, ""]) -> Callable:
    """Return a loss whose policy runs at most `cap` loops."""

    def capped_loss(policy: Callable, examples: Any) -> Any:
        caps = jnp.full(len(examples.loops), cap)
        return loss(functools.partial(policy, caps=caps), examples)

    return capped_loss


@dataclass(frozen=True, eq=False)
class StudyTrainer(Trainer):
    """Mixin for `PPO` and `Imitation`: learning with the options of the study, and `GRADIENT_METRICS`."""

    study: StudyConfig = field(kw_only=True)

    @functools.cached_property
    def learner(self) -> StudyLearner:
        return StudyLearner(**_fields_of(super().learner), study=self.study)

    def _learn(self, *arguments: Any) -> tuple[OnlineState, dict[str, Array]]:
        state, metrics = super()._learn(*arguments)
        metrics |= self.learner.measured
        self.learner.measured.clear()
        return state, metrics


@dataclass(frozen=True, eq=False)
class StudyPPO(StudyTrainer, PPO):
    """PPO with the options of the study."""

    metric_names: ClassVar = (*PPO.metric_names, *GRADIENT_METRICS)


@dataclass(frozen=True, eq=False)
class StudyImitation(StudyTrainer, Imitation):
    """Imitation with the options of the study."""

    metric_names: ClassVar = (*Imitation.metric_names, *GRADIENT_METRICS)


@dataclass(frozen=True, eq=False)
class StudyRun(PuzzleRun):
    """The parts of a run of the study."""

    config: StudyConfig

    def build(self, rngs: nnx.Rngs) -> Any:
        net = super().build(rngs)
        if self.config.blocks is not None:
            copy_first_core(net.trunk)
        return net

    def trainer_on(self, levels: DeviceLevels) -> Trainer:
        plain = super().trainer_on(levels)
        kind = StudyImitation if isinstance(plain, Imitation) else StudyPPO
        return kind(**_fields_of(plain), study=self.config)


def _fields_of(one: Any) -> dict[str, Any]:
    return {part.name: getattr(one, part.name) for part in fields(one)}


CONFIGS[StudyConfig.__name__] = StudyConfig
KINDS[StudyConfig] = StudyRun
