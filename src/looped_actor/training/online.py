"""Learning from play: the state of such a run, its net, and what an iteration reports.

Minibatches are stratified so that no example has to move between devices: each takes equally many from
every group of environments, a group being as small as divides evenly. So the same run results on any number
of devices, up to the order in which numbers are summed.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from looped_actor.algorithms import (
    Decide,
    LearnerState,
    RolloutConfig,
    RunningStatistics,
    Update,
    Weights,
    capped,
    clipped_adam,
    deciding,
    descend,
    first_memory,
    mean_over_taken,
    new_learner,
    no_statistics,
)
from looped_actor.algorithms.collectives import average, total
from looped_actor.algorithms.instruments import CoreGradient, core_gradient
from looped_actor.collectors import PLAYERS, Experience, Players, Rollout, Transition
from looped_actor.devices import DATA, EVERYWHERE, ROWS, on_each_device, on_every_device
from looped_actor.errors import UserError
from looped_actor.loop import Execution, Memory, Packed, StopReason, mean_gradient, starting_of
from looped_actor.loop.rng import Stream, addressed_key, folded


class OnlineState(NamedTuple):
    """All that a run of online learning is: save it to resume exactly from here."""

    learner: LearnerState
    fixed: PyTree
    """What of the net is not trained: the latent before the first loop."""
    statistics: RunningStatistics
    """Running statistics of observations, the same for acting and learning within an iteration."""
    players: Players
    iteration: Int[Array, ""]
    root: UInt32[Array, "2"]
    """The key from which every draw is addressed."""

    @property
    def weights(self) -> Weights:
        """What of it is the policy."""
        return Weights(self.learner.parameters, self.fixed, self.statistics)

    def with_weights(self, weights: Weights) -> "OnlineState":
        """The same with another policy."""
        learner = self.learner._replace(parameters=weights.parameters)
        return self._replace(learner=learner, fixed=weights.fixed, statistics=weights.statistics)


SPECS = OnlineState(EVERYWHERE, EVERYWHERE, EVERYWHERE, PLAYERS, EVERYWHERE, EVERYWHERE)


@dataclass(frozen=True)
class PolicyNet:
    """A net and its optimisation by minibatches: what all online learners share.

    Args:
      config: how to learn.
      build: makes the net from random streams.
      iterations: of the whole run, for the schedule of the learning rate.
      dtype: of parameters and statistics.
      execution: how the loops of a minibatch are computed.
      most_groups: of environments, from each of which a minibatch takes equally many.
    """

    config: RolloutConfig
    build: Callable[[nnx.Rngs], Any]
    iterations: int
    dtype: Any = jnp.float32
    execution: Execution = field(default_factory=Packed)
    most_groups: int = 0
    spec: Any = field(default=SPECS, init=False)

    def check(self, devices: int) -> None:
        """Raise an error if environments and minibatches do not divide evenly among the devices."""
        if self.groups % devices:
            raise UserError(
                f"{devices} devices do not divide {self.groups}, the largest number that divides both "
                f"num_envs ({self.config.num_envs}) and minibatch ({self.config.minibatch})"
            )

    @property
    def groups(self) -> int:
        """Groups of environments, from each of which a minibatch takes equally many."""
        return math.gcd(self.config.num_envs, self.config.minibatch, self.most_groups)

    @property
    def definition(self) -> nnx.GraphDef:
        """The net without its weights."""
        return self._definition

    @functools.cached_property
    def _definition(self) -> nnx.GraphDef:
        return nnx.split(self._net)[0]

    @functools.cached_property
    def _net(self) -> Any:
        """Its shape."""
        return nnx.eval_shape(lambda: self.build(nnx.Rngs(0)))

    @functools.cached_property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam, over all updates of the run."""
        return clipped_adam(self.config, self.iterations * self.config.updates_per_iteration)

    def begin(self, mesh: Mesh, root: UInt32[Array, "2"], first: Players) -> OnlineState:
        """The state of a new run."""
        net = self.build(nnx.Rngs(jax.random.wrap_key_data(addressed_key(root, Stream.NET))))
        _, trained, fixed = nnx.split(net, nnx.Param, ...)
        features = jax.tree.leaves(first.observation)[0].shape[1:]
        features = features if self.config.cell_statistics else features[-1:]
        trained, fixed, statistics = jax.tree.map(
            lambda a: a.astype(self.dtype), (trained, fixed, no_statistics(features))
        )
        learner = new_learner(trained, self.optimiser)
        rest = on_every_device(mesh, (learner, fixed, statistics, jnp.int32(0), root))
        learner, fixed, statistics, iteration, root = rest
        if not self.config.scale_before_learning:
            # The first observations count, so that the first rollout is not played by an unscaled net.
            update = on_each_device(
                mesh,
                lambda statistics, observation: statistics.update(observation, DATA),
                (EVERYWHERE, ROWS),
                EVERYWHERE,
            )
            statistics = update(statistics, first.observation)
        state = OnlineState(learner, fixed, statistics, first, iteration, root)

        remember = functools.partial(first_memory, starting_of(net), self.definition)
        remember = on_each_device(mesh, remember, (EVERYWHERE, ROWS), ROWS)
        return state._replace(players=first._replace(memory=remember(state.weights, first.observation)))

    def updates(
        self, state: OnlineState, examples: Any, loss: Callable, usable: Bool[Array, " n"] | None = None
    ) -> tuple[LearnerState, Update]:
        """The updates of an iteration from this device's examples.

        `loss` takes a policy and some of the examples; those that are not usable are left out.
        """

        def update(
            learner: LearnerState, drawn: tuple[Int[Array, " m"], Int[Array, ""] | None]
        ) -> tuple[LearnerState, Update]:
            chosen, cap = drawn

            def policy(parameters: PyTree, execution: Execution) -> Decide:
                weights = state.weights._replace(parameters=parameters)
                return capped(deciding(self.definition, weights, execution=execution), cap)

            minibatch = jax.tree.map(lambda a: _chosen(a, chosen), examples)
            gradient = mean_gradient(
                loss, policy, learner.parameters, minibatch, self.execution, expected_loops=minibatch.loops
            )
            return descend(learner, self.optimiser, gradient, DATA)

        copies = state.players.envs.copy
        chosen = minibatches(self.config, self.groups, copies, state.root, state.iteration, usable)
        learner, updates = jax.lax.scan(update, state.learner, (chosen, self.caps(state)))
        if self.config.measure_gradients:
            first = jax.tree.map(lambda a: _chosen(a, chosen[0]), examples)
            core = core_gradient(self.definition, state.weights, loss, first, DATA)
            updates = updates._replace(core=core)
        return learner, updates

    def values(self, state: OnlineState, players: Players) -> Float[Array, " b"]:
        """Values of what the environments show now."""
        decide = deciding(self.definition, state.weights, execution=self.execution)
        return decide(players.observation, expected_loops=players.loops, memory=players.memory).value

    def caps(self, state: OnlineState) -> Int[Array, " updates"] | None:
        """The caps of an iteration's minibatches; None where all have that of the rule."""
        least = self.config.min_cap
        if least is None:
            return None
        if least > (most := self._net.max_loops):
            raise UserError(f"min_cap is {least}; the cap of the net is {most}")
        key = addressed_key(state.root, Stream.CAP, state.iteration)
        count = (self.config.updates_per_iteration,)
        return jax.random.randint(key, count, least, most + 1)

    def staleness(
        self, state: OnlineState, rollout: Rollout, counted: Bool[Array, " b"] | None = None
    ) -> "Staleness | None":
        """How far carried thoughts are from others, on the last step of a rollout by this state.

        None where nothing is carried. With `counted`, of these environments: others acted by other rules.
        """
        last: Transition = jax.tree.map(lambda leaf: leaf[-1], rollout.steps)
        if last.memory is None:
            return None
        counted = jnp.ones(len(last.loops), bool) if counted is None else counted
        decide = deciding(self.definition, state.weights, execution=self.execution)

        def kl(memory: Memory | None) -> Float[Array, ""]:
            now = decide(last.observation, expected_loops=last.loops, memory=memory)
            log_ratio = now.distribution.log_prob(last.action) - last.log_prob
            estimates = jnp.exp(log_ratio) - 1 - log_ratio
            return total((estimates * counted).sum(), DATA) / total(counted.sum(), DATA)

        return Staleness(kl(None), kl(last.memory))


class Staleness(NamedTuple):
    """KL from the policy that acted to the same weights, computed again."""

    fresh_start_kl: Float[Array, ""]
    """From a fresh start: how much the thoughts before matter."""
    stored_start_kl: Float[Array, ""]
    """From what was stored: what storing loses."""


def seen(state: OnlineState, rollout: Rollout) -> OnlineState:
    """The state with statistics that count a rollout."""
    return state._replace(statistics=state.statistics.update(rollout.steps.observation, DATA))


def after_iteration(
    config: RolloutConfig, state: OnlineState, learner: LearnerState, experience: Experience
) -> OnlineState:
    """The state with what an iteration brought. `state` is the one that was learned from."""
    if not config.scale_before_learning:
        state = seen(state, experience.rollout)
    return state._replace(
        learner=learner,
        players=experience.players,
        iteration=state.iteration + 1,
    )


def flat(steps: PyTree) -> Any:
    """Steps of environments as one long row of examples."""
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), steps)


def _chosen(all: Array, rows: Int[Array, " m"]) -> Array:
    """Some examples; each is taken as one row of numbers, which is read as it lies."""
    return all.reshape(len(all), -1)[rows].reshape(len(rows), *all.shape[1:])


def minibatches(
    config: RolloutConfig,
    all_groups: int,
    copies: Int[Array, " b"],
    root: UInt32[Array, "2"],
    iteration: Int[Array, ""],
    usable: Bool[Array, " n"] | None = None,
) -> Int[Array, "updates m"]:
    """Rows of this device's examples for every update.

    Each epoch, each group shuffles its examples, and a minibatch takes its share of every group. Where some
    are not usable, the usable ones of their group take their places in turn. Or, as the configuration says,
    time steps are shuffled, and a minibatch takes some of them whole.
    """
    rows = len(copies)
    if config.shuffle == "steps":
        return _whole_steps(config, rows, addressed_key(root, Stream.SHUFFLE, iteration))
    size = config.num_envs // all_groups
    groups = rows // size
    in_group = config.rollout_steps * size
    share = config.minibatch // all_groups
    # Row step x rows + env of the examples, as [group, example of the group].
    table = jnp.arange(config.rollout_steps * rows).reshape(config.rollout_steps, groups, size)
    table = table.transpose(1, 0, 2).reshape(groups, in_group)
    key = addressed_key(root, Stream.SHUFFLE, iteration)

    def shuffled(epoch: Int[Array, ""], group: Int[Array, ""], rows: Int[Array, " n"]) -> Array:
        order = jax.random.permutation(folded(key, epoch, group), rows)
        if usable is None:
            return order
        order = order[jnp.argsort(~usable[order], stable=True)]
        return order[jnp.arange(in_group) % jnp.maximum(usable[order].sum(), 1)]

    over_groups = jax.vmap(shuffled, in_axes=(None, 0, 0))
    over_epochs = jax.vmap(over_groups, in_axes=(0, None, None))
    order = over_epochs(jnp.arange(config.epochs), copies[::size] // size, table)
    order = order.reshape(config.epochs, groups, -1, share).transpose(0, 2, 1, 3)
    return order.reshape(config.updates_per_iteration, groups * share)


def _whole_steps(config: RolloutConfig, rows: int, key: Array) -> Int[Array, "updates m"]:
    """Row step x rows + env of this device's examples: all environments of some time steps."""

    def shuffled(epoch: Int[Array, ""]) -> Int[Array, " t"]:
        return jax.random.permutation(folded(key, epoch, 0), config.rollout_steps)

    steps = jax.vmap(shuffled)(jnp.arange(config.epochs))
    order = steps[..., None] * rows + jnp.arange(rows)
    return order.reshape(config.updates_per_iteration, -1)


class PlayMetrics(NamedTuple):
    """What an iteration's play and learning were like, whatever was learned."""

    episodes: Float[Array, ""]
    success: Float[Array, ""]
    """Share of the episodes that ended in this iteration; NaN where none did. Also below. NaN as well if the
    environment does not report success."""
    episode_return: Float[Array, ""]
    episode_length: Float[Array, ""]
    loops: Float[Array, ""]
    """Mean loops of a decision when acting."""
    capped: Float[Array, ""]
    """Share of decisions that the cap ended."""
    non_finite: Float[Array, ""]
    """Share of decisions that ended because the next loop was not finite."""
    acting_executed: Float[Array, ""]
    """Loops that the hardware computed for each that was asked for, when acting."""
    learning_executed: Float[Array, ""]
    """The same when learning."""
    utilisation: Float[Array, ""]
    """Share of the loops that the hardware computed that were asked for."""
    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    skipped_updates: Int[Array, ""]
    """Updates left out since the start, because loss or gradient was not finite."""
    skipped_in_a_row: Int[Array, ""]
    staleness: Staleness | None
    """None, and not in tables, where nothing is carried."""
    instruments: "Instruments | None"
    """The same where gradients are not measured."""


class Instruments(NamedTuple):
    """What gradients were like."""

    clipped_updates: Float[Array, ""]
    """Share of the updates whose gradient was clipped."""
    core: CoreGradient | None
    """Of the first minibatch; None where the net has neither loops nor a stack."""


def play_metrics(
    config: RolloutConfig,
    rollout: Rollout,
    staleness: Staleness | None,
    learner: LearnerState,
    updates: Update,
    counted: Bool[Array, " b"] | None = None,
) -> PlayMetrics:
    """Over all devices; with `counted`, only the episodes of these environments."""
    steps = rollout.steps
    done = steps.terminated | steps.truncated
    if counted is not None:
        done &= counted
    learned = functools.partial(mean_over_taken, updates)

    def per_episode(values: Array) -> Float[Array, ""]:
        return total(jnp.where(done, values, 0).sum(), DATA) / total(done.sum(), DATA)

    def share(marked: Array) -> Float[Array, ""]:
        return average(marked.mean(dtype=steps.value.dtype), DATA)

    instruments = None
    if config.measure_gradients:
        too_long = updates.gradient_norm > config.max_gradient_norm
        instruments = Instruments(learned(too_long.astype(updates.loss.dtype)), updates.core)
    asked, executed = total(rollout.asked.sum(), DATA), total(rollout.executed.sum(), DATA)
    examples = config.epochs * config.steps_per_iteration
    learning_asked, learning_executed = (
        examples * learned(per_example) for per_example in (updates.terms.loops, updates.terms.executed_loops)
    )
    return PlayMetrics(
        episodes=total(done.sum(), DATA),
        success=per_episode(steps.episode.success),
        episode_return=per_episode(steps.episode.returns),
        episode_length=per_episode(steps.episode.length),
        loops=share(steps.loops),
        capped=share(steps.stop == StopReason.CAP),
        non_finite=share(steps.stop == StopReason.NON_FINITE),
        acting_executed=executed / asked,
        learning_executed=learning_executed / learning_asked,
        utilisation=(asked + learning_asked) / (executed + learning_executed),
        loss=learned(updates.loss),
        gradient_norm=learned(updates.gradient_norm),
        skipped_updates=learner.skipped,
        skipped_in_a_row=learner.skipped_in_a_row,
        staleness=staleness,
        instruments=instruments,
    )
