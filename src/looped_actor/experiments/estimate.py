"""What a run will cost, before it is begun: counted where it can be, else timed on a small piece."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from looped_actor.devices import all_devices
from looped_actor.evaluation.compute import (
    count_parameters,
    surrogate_gradient,
    surrogate_loss,
    update_memory,
)
from looped_actor.experiments.arms import Looped
from looped_actor.experiments.config import OfflineConfig, OnlineConfig, RunConfig
from looped_actor.experiments.offline import nets_of
from looped_actor.experiments.policies import abstract_net, build_net
from looped_actor.loop import Packed
from looped_actor.offline import Dataset, EpisodeIndex
from looped_actor.training.offline import OfflineTrainer

PASSES_OF_AN_UPDATE = 4
"""In forward passes: forward, computed again when going back, and back, which counts twice."""
VALUE_PASSES, CRITIC_PASSES = 4, 6
"""Of GCIQL's value and critics: learned, asked about the next state, as targets, and through to the actor."""
TYPICAL_TRANSITIONS = 1_000_000
"""Of OGBench's datasets; cube-triple's has three times as many."""
_MOST_EXAMPLES = 64  # of the piece that is timed
_TURNS = 3


class Estimate(NamedTuple):
    """The cost of a run."""

    parameters: int
    max_loops: int
    flops_per_decision: float
    """At the cap."""
    flops_per_step: float
    """Of an environment step, acting and learning together, or of a gradient step; at the cap."""
    experience_bytes: int
    """Of a rollout as it is kept for learning, over all devices; or of a dataset, on each of them."""
    update_bytes: int
    """Of one minibatch's gradient on one device, as the compiler plans it."""
    state_bytes: int
    """Of parameters and optimiser, on each device."""
    iterations: int
    updates: int
    devices: int
    seconds: float
    """Estimated for this machine, at the loops that an untrained net takes; without a solver's time."""


def estimate(config: RunConfig, devices: int) -> Estimate:
    """Cost of a run on so many devices like this process's first."""
    if isinstance(config, OfflineConfig):
        return _offline(config, devices)
    assert isinstance(config, OnlineConfig)
    return _online(config, devices)


class Counted(NamedTuple):
    """What can be counted without computing anything."""

    parameters: int
    """Of all nets that are trained."""
    flops_per_decision: float
    flops_per_step: float
    """Of an environment step, acting and learning together, or of a gradient step."""


def count(config: RunConfig, loops: float | None = None) -> Counted:
    """FLOPs of a run at so many loops. Default: at the cap."""
    arm = config.chosen_arm
    loops = arm.max_loops if loops is None else loops
    if isinstance(config, OfflineConfig):
        value, critics, actor = (nnx.eval_shape(lambda net=net: net(nnx.Rngs(0))) for net in nets_of(config))
        flops = actor.flops(config.shape.observation(1), loops)
        passes = PASSES_OF_AN_UPDATE + (1 if isinstance(arm, Looped) else 0)  # it thinks first
        judging = VALUE_PASSES * value.flops + CRITIC_PASSES * critics.flops
        parameters = sum(count_parameters(net) for net in (value, critics, actor))
        return Counted(parameters, flops, config.gciql.batch * (passes * flops + judging))
    assert isinstance(config, OnlineConfig)
    net = abstract_net(config)
    flops = net.flops(config.shape.observation(1), loops)
    passes = 1 + PASSES_OF_AN_UPDATE * config.learning.epochs
    return Counted(count_parameters(net), flops, flops * passes)


def seconds_per_step(config: RunConfig, examples: int) -> float:
    """Of one device like this process's first, timed on so many examples; without a solver's time."""
    if isinstance(config, OfflineConfig):
        return config.gciql.batch / examples * _timed_update(config, examples)
    assert isinstance(config, OnlineConfig)
    deciding, learning = _timed(config, build_net(config, nnx.Rngs(config.seed)), examples)
    return deciding + config.learning.epochs * learning


def _offline(config: OfflineConfig, devices: int) -> Estimate:
    shape, gciql = config.shape, config.gciql
    parameters, flops, per_step = count(config)
    actor = abstract_net(config)
    per_device = -(-gciql.batch // devices)
    data = TYPICAL_TRANSITIONS if config.data.train else config.data.transitions
    piece = min(per_device, _MOST_EXAMPLES)
    updates = config.iterations * gciql.updates_per_iteration
    return Estimate(
        parameters=parameters,
        max_loops=config.chosen_arm.max_loops,
        flops_per_decision=flops,
        flops_per_step=per_step,
        experience_bytes=0 if config.data.mapped else data * 4 * (shape.size + shape.actions + 2),
        update_bytes=update_memory(actor, shape.observation(per_device)).activations,
        state_bytes=3 * 4 * parameters,
        iterations=config.iterations,
        updates=updates,
        devices=devices,
        seconds=updates * seconds_per_step(config, piece) / devices,
    )


def _timed_update(config: OfflineConfig, examples: int) -> float:
    """Seconds of an update from so many examples, on one device."""
    rows, shape = 1000, config.shape
    chance = np.random.default_rng(0)
    ends = np.full(rows, rows - 2, np.int32)
    data = Dataset(
        chance.normal(size=(rows, shape.size)).astype(np.float32),
        chance.uniform(-1, 1, (rows, shape.actions)).astype(np.float32),
        EpisodeIndex(np.arange(rows - 1, dtype=np.int32), ends),
    )
    few = replace(config.gciql, batch=examples, updates_per_iteration=1)
    trainer = OfflineTrainer(few, config.goals, data, nets_of(config), 1, all_devices(1))
    state = trainer.begin(config.seed)
    return _fastest(lambda: trainer.iterate(state))


def _online(config: OnlineConfig, devices: int) -> Estimate:
    learning, arm = config.learning, config.chosen_arm
    parameters, flops, per_step = count(config)
    per_device = -(-learning.minibatch // devices)
    board = config.board[0] * config.board[1] * config.shape.planes
    seconds = seconds_per_step(config, min(per_device, _MOST_EXAMPLES))
    return Estimate(
        parameters=parameters,
        max_loops=arm.max_loops,
        flops_per_decision=flops,
        flops_per_step=per_step,
        experience_bytes=learning.steps_per_iteration * (board + 7 * 4 + 3),
        update_bytes=update_memory(abstract_net(config), config.shape.observation(per_device)).activations,
        state_bytes=3 * 4 * parameters,
        iterations=config.iterations,
        updates=config.iterations * learning.updates_per_iteration,
        devices=devices,
        seconds=config.iterations * learning.steps_per_iteration * seconds / devices,
    )


def _timed(config: OnlineConfig, net: Any, examples: int) -> tuple[float, float]:
    """Seconds to decide for one example, and to learn from one."""
    definition, parameters, fixed = nnx.split(net, nnx.Param, ...)
    shape = config.shape.observation(examples).shape
    observation = jax.random.bernoulli(jax.random.key(0), 0.3, shape).astype(jnp.float32)

    def decide(parameters: nnx.State, fixed: nnx.State, observation: Array) -> Array:
        net = nnx.merge(definition, parameters, fixed)
        return surrogate_loss(net(observation, execution=Packed()))

    works = jax.jit(decide), jax.jit(surrogate_gradient(net, Packed()))
    seconds = [_fastest(lambda f=f: f(parameters, fixed, observation)) / examples for f in works]
    return seconds[0], seconds[1]


def _fastest(work: Callable[[], Any]) -> float:
    jax.block_until_ready(work())
    turns = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        jax.block_until_ready(work())
        turns.append(time.perf_counter() - start)
    return min(turns)
