"""Cost of a whole run: by formula within a second, or with timings on this machine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from looped_actor.algorithms import init_carry
from looped_actor.loop import Execution, FrozenScan
from looped_actor.models import PolicyOutput
from looped_actor.models.cost import (
    FLOAT_BYTES,
    GRADIENT_PASSES,
    count_parameters,
    surrogate_gradient,
    surrogate_loss,
    update_memory,
    update_memory_formula,
)
from looped_actor.offline import Dataset, EpisodeIndex
from looped_actor.planning.programs import dataset_rows
from looped_actor.planning.timing import fastest
from looped_actor.runs.robots import RobotRun
from looped_actor.runs.run import Run
from looped_actor.training import Trainer
from looped_actor.training.sharding import all_devices

MAX_TIMED_EXAMPLES = 64
VALUE_PASSES, CRITIC_PASSES = 4, 6
"""Forward passes of GCIQL's value and critics in an update: gradients, next states, targets, gradient of the
actor."""
CRITICS_ALONE_PASSES = 4
"""Forward passes of value and critics in an update, if no actor learns."""
GIVEN_CRITICS_PASSES = 3
"""Forward passes of given critics, through which only the gradient of the actor passes."""

CRITIC_SCALARS = 18
"""Scalars that value and critics need for each hidden unit and example: fitted to XLA's plans for CPUs, which
are up to 35% smaller and 25% larger."""


class Counts(NamedTuple):
    """Parameters and FLOPs of a run."""

    parameters: int
    """Parameters of all nets that are trained."""
    flops_per_decision: float
    flops_per_step: float
    """FLOPs of an environment step, acting and learning, or of a gradient step of offline learning."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Cost of a run. Loops are counted at the cap."""

    counts: Counts
    max_loops: int
    """Cap, or fixed depth; 0 if no policy is trained."""
    step: str
    """Description of a step of the run."""
    iterations: int
    updates: int
    """Gradient steps of the whole run."""
    flops: float
    """FLOPs of the whole run."""
    devices: int
    state_bytes: int
    """Parameters and optimizer state, on each device."""
    experience: str
    """Description of the experience that is stored to learn from."""
    experience_bytes: int
    """A rollout over all devices, or a dataset on each of them."""
    update_bytes: int | None
    """Memory of one gradient on one device; None if there is no formula for the net."""
    seconds: float | None = None
    """Time on devices like that of this machine, at the loops of an untrained net and without a solver; None
    if it was not measured."""


def count(run: Run, loops: float | None = None) -> Counts:
    """Count the parameters and FLOPs of a run.

    Args:
      run: the run.
      loops: loops of every decision. Default: the cap.
    """
    if isinstance(run, RobotRun):
        return _count_offline(run, loops)
    net = run.spec.net
    flops = net.flops(run.spec.observations(1), net.max_loops if loops is None else loops)
    per_step = flops * (1 + GRADIENT_PASSES * run.config.algorithm.epochs)
    return Counts(count_parameters(net), flops, per_step)


def _count_offline(run: RobotRun, loops: float | None) -> Counts:
    config = run.config
    value, critics = (nnx.eval_shape(lambda build=build: build(nnx.Rngs(0))) for build in run.nets[:2])
    trained = [] if config.critics else [value, critics]
    critic_passes = CRITICS_ALONE_PASSES if config.arm is None else CRITIC_PASSES
    if config.critics:
        critic_flops = GIVEN_CRITICS_PASSES * critics.flops
    else:
        critic_flops = VALUE_PASSES * value.flops + critic_passes * critics.flops
    flops = actor_flops = 0.0
    if config.arm is not None:
        actor = run.spec.net
        trained.append(actor)
        flops = actor.flops(run.spec.observations(1), actor.max_loops if loops is None else loops)
        # A looped actor first decides for the batch: see `GCIQL._actor_gradient`.
        actor_flops = flops * (GRADIENT_PASSES + (actor.halting is not None))
    parameters = sum(count_parameters(net) for net in trained)
    return Counts(parameters, flops, config.algorithm.batch * (actor_flops + critic_flops))


def estimate_formula(run: Run, devices: int = 1) -> Estimate:
    """Estimate the cost of a run by formulas, without compiling or running anything.

    Args:
      run: the run. Neither its folder nor its devices are needed.
      devices: number of devices.
    """
    config, counts = run.config, count(run)
    if isinstance(run, RobotRun):
        step, experience = "a gradient step", "the data, on each device"
        row = FLOAT_BYTES * (config.shapes.size + config.shapes.actions + 2)
        experience_bytes = 0 if config.data.on_disk else dataset_rows(run) * row
    else:
        step, experience = "an environment step, learning included", "a rollout, over all devices"
        experience_bytes = config.steps_per_iteration * _transition_bytes(run)
    return Estimate(
        counts=counts,
        max_loops=0 if config.trained == "critics" else run.spec.max_loops,
        step=step,
        iterations=config.iterations,
        updates=config.iterations * config.algorithm.updates_per_iteration,
        flops=counts.flops_per_step * config.iterations * config.steps_per_iteration,
        devices=devices,
        state_bytes=3 * FLOAT_BYTES * counts.parameters,
        experience=experience,
        experience_bytes=experience_bytes,
        update_bytes=_update_bytes_formula(run, _examples(run, devices)),
    )


def estimate_cost(run: Run, devices: int = 1) -> Estimate:
    """Estimate the cost of a run, with timings on this machine. Compiles and runs a few updates."""
    estimate, examples = estimate_formula(run, devices), _examples(run, devices)
    steps = run.config.iterations * run.config.steps_per_iteration
    seconds = steps * seconds_per_step(run, min(examples, MAX_TIMED_EXAMPLES)) / devices
    memory = estimate.update_bytes or update_bytes(run, examples)
    return replace(estimate, seconds=seconds, update_bytes=memory)


def _examples(run: Run, devices: int) -> int:
    """Return the examples of a minibatch on each device."""
    algorithm = run.config.algorithm
    return -(-(algorithm.batch if isinstance(run, RobotRun) else algorithm.minibatch) // devices)


def _transition_bytes(run: Run) -> int:
    """Return the bytes of one step of one environment in a rollout."""
    leaves = jax.tree.leaves(run.observation)
    observed = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    # Eight numbers of four bytes and two flags: see `algorithms.rollout.Transition`.
    return observed + 8 * 4 + 2 + _carry_bytes(run)


def _carry_bytes(run: Run) -> int:
    """Return the bytes that one environment carries from one decision to the next."""
    spec = run.spec

    def carry(weights: Any, observation: Any) -> Any:
        return init_carry(spec.definition, weights, observation, spec.net.carry_latent)

    carried = jax.eval_shape(carry, spec.weights_like, spec.observations(1))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(carried))


def _execution(run: Run) -> Execution:
    """Return the execution of a minibatch's loops. GCIQL takes whole batches of nets that do not loop."""
    whole = isinstance(run, RobotRun) and run.spec.halting is None
    return FrozenScan() if whole else run.config.execution


def _update_bytes_formula(run: Run, examples: int) -> int | None:
    critics = 0
    if isinstance(run, RobotRun) and not run.config.critics:
        critics = FLOAT_BYTES * examples * CRITIC_SCALARS * sum(run.config.algorithm.hidden)
    if run.config.trained == "critics":
        return critics
    actor = update_memory_formula(run.spec.net, run.spec.observations(examples), _execution(run))
    return None if actor is None else max(actor, critics)  # one after the other, in the same memory


def update_bytes(run: Run, examples: int) -> int:
    """Return the memory of the gradient of some examples on one device, as the compiler plans it."""
    if run.config.trained == "critics":
        assert isinstance(run, RobotRun)
        (trace,) = _small_trainer(run, examples).traces().values()
        return trace().lower().compile().memory_analysis().temp_size_in_bytes
    return update_memory(run.spec.net, run.spec.observations(examples), _execution(run)).activations


def seconds_per_step(run: Run, examples: int) -> float:
    """Return the seconds per step on one device, from timing a few examples; without a solver's time."""
    if isinstance(run, RobotRun):
        trainer = _small_trainer(run, examples)
        state = trainer.init(run.config.seed)
        return run.config.algorithm.batch / examples * fastest(lambda: trainer.iterate(state))
    net = run.build(nnx.Rngs(run.config.seed))
    definition, trained, fixed = nnx.split(net, nnx.Param, ...)
    execution = run.config.execution
    observation = jax.tree.map(_random_observation, run.spec.observations(examples))

    def decide(trained: nnx.State, fixed: nnx.State, observation: Any) -> Array:
        policy: Callable[..., PolicyOutput] = nnx.merge(definition, trained, fixed)
        return surrogate_loss(policy(observation, execution=execution))

    acting, learning = (
        fastest(lambda function=function: function(trained, fixed, observation)) / examples
        for function in (jax.jit(decide), jax.jit(surrogate_gradient(net, execution)))
    )
    return acting + run.config.algorithm.epochs * learning


def _random_observation(shape: jax.ShapeDtypeStruct) -> Array:
    return jax.random.bernoulli(jax.random.key(0), 0.3, shape.shape).astype(jnp.float32)


def _small_trainer(run: RobotRun, examples: int) -> Trainer:
    """Return a trainer whose iteration is one update of a few random examples."""
    rows, shapes = 1000, run.config.shapes
    rng = np.random.default_rng(0)
    data = Dataset(
        states=rng.normal(size=(rows, shapes.size)).astype(np.float32),
        actions=rng.uniform(-1, 1, (rows, shapes.actions)).astype(np.float32),
        index=EpisodeIndex(np.arange(rows - 1, dtype=np.int32), np.full(rows, rows - 2, np.int32)),
    )
    algorithm = replace(run.config.algorithm, batch=examples, updates_per_iteration=1)
    changes: dict[str, Any] = {"config": algorithm, "iterations": 1, "on_disk": False}
    return replace(run, mesh=all_devices(1)).trainer_on(data, **changes)
