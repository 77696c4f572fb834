"""What a run will cost, before it is begun: counted where it can be, else timed on a small piece."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from looped_actor.evaluation.compute import (
    count_parameters,
    surrogate_gradient,
    surrogate_loss,
    update_memory,
)
from looped_actor.experiments.config import RunConfig
from looped_actor.experiments.policies import build_net
from looped_actor.loop import Packed

PASSES_OF_AN_UPDATE = 4
"""In forward passes: forward, computed again when going back, and back, which counts twice."""
_MOST_EXAMPLES = 64  # of the piece that is timed
_TURNS = 3


class Estimate(NamedTuple):
    """The cost of a run."""

    parameters: int
    max_loops: int
    flops_per_decision: float
    """At the cap."""
    flops_per_step: float
    """Of an environment step, acting and learning together, at the cap."""
    rollout_bytes: int
    """Of a rollout as it is kept for learning, over all devices."""
    update_bytes: int
    """Of one minibatch's gradient on one device, as the compiler plans it."""
    state_bytes: int
    """Of parameters and optimiser, on each device."""
    iterations: int
    updates: int
    devices: int
    seconds: float
    """Estimated for this machine, at the loops that an untrained net takes."""


def estimate(config: RunConfig, devices: int) -> Estimate:
    """Cost of a run on so many devices like this process's first."""
    net = build_net(config, nnx.Rngs(config.seed))
    ppo, arm = config.ppo, config.chosen_arm
    flops = net.flops(config.puzzle.observation(1), arm.max_loops)
    parameters = count_parameters(net)
    per_device = -(-ppo.minibatch // devices)
    board = config.board[0] * config.board[1] * config.puzzle.planes
    seconds_to_decide, seconds_to_learn = _timed(config, net, min(per_device, _MOST_EXAMPLES))
    per_step = seconds_to_decide + ppo.epochs * seconds_to_learn
    return Estimate(
        parameters=parameters,
        max_loops=arm.max_loops,
        flops_per_decision=flops,
        flops_per_step=flops * (1 + PASSES_OF_AN_UPDATE * ppo.epochs),
        rollout_bytes=ppo.steps_per_iteration * (board + 7 * 4 + 3),
        update_bytes=update_memory(net, config.puzzle.observation(per_device)).activations,
        state_bytes=3 * 4 * parameters,
        iterations=config.iterations,
        updates=config.iterations * ppo.updates_per_iteration,
        devices=devices,
        seconds=config.iterations * ppo.steps_per_iteration * per_step / devices,
    )


def _timed(config: RunConfig, net: Any, examples: int) -> tuple[float, float]:
    """Seconds to decide for one example, and to learn from one."""
    definition, parameters, fixed = nnx.split(net, nnx.Param, ...)
    shape = config.puzzle.observation(examples).shape
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
