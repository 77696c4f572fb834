"""GCIQL on a dataset, over many devices: draw, judge, learn.

The dataset lies whole on every device, and an update draws what it learns from inside the compiled program;
or it stays on disk, and the host fetches what the same draws ask for. A draw is addressed by the number of
its update and of its example, so the same run results either way, and on any number of devices up to the
order in which numbers are summed.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree, Shaped, UInt32

from looped_actor.algorithms import (
    ActorTerms,
    CriticTerms,
    Decide,
    GCIQLConfig,
    GoalBatch,
    LearnerState,
    RunningStatistics,
    Update,
    ValueTerms,
    Weights,
    actor_loss,
    clipped_adam,
    critic_loss,
    deciding,
    descend,
    mean_over_taken,
    moved_towards,
    new_learner,
    no_statistics,
    opened,
    q_of_action,
    q_scale,
    value_loss,
)
from looped_actor.algorithms.collectives import keep_if
from looped_actor.devices import DATA, EVERYWHERE, on_each_device, on_every_device, placed
from looped_actor.loop import Execution, FrozenScan, MeanGradient, Packed, Streaming, mean_gradient
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.models import GoalObservation
from looped_actor.offline import Dataset, Drawn, EpisodeIndex, GoalSampling, draw


class Nets(NamedTuple):
    """Parameters of all that is trained, or one thing for each of the three."""

    value: Any
    critics: Any
    actor: Any


class OfflineState(NamedTuple):
    """All that a run of GCIQL is: saved, and it goes on exactly from here."""

    learner: LearnerState
    """Of `Nets`."""
    target_critics: PyTree
    fixed: PyTree
    """What of the actor is not trained: the latent before the first loop."""
    statistics: RunningStatistics
    """Of nothing: states are learned from as they are in the data."""
    iteration: Int[Array, ""]
    root: UInt32[Array, "2"]
    """The key from which every draw is addressed."""

    @property
    def weights(self) -> Weights:
        """What of it is the policy."""
        return Weights(self.learner.parameters.actor, self.fixed, self.statistics)


class OfflineMetrics(NamedTuple):
    """One iteration in numbers: means over the updates that were taken."""

    loss: Float[Array, ""]
    value_loss: Float[Array, ""]
    critic_loss: Float[Array, ""]
    q_loss: Float[Array, ""]
    behaviour_loss: Float[Array, ""]
    """Of the actor: negative log-probability of the actions in the data."""
    action_error: Float[Array, ""]
    """Mean squared distance of the policy's mean from them."""
    value: Float[Array, ""]
    q: Float[Array, ""]
    """Of the actions in the data."""
    q_of_policy: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    loops: Float[Array, ""]
    """Mean loops of a decision."""
    utilisation: Float[Array, ""]
    """Of all loops that the hardware computed, the share that was asked for."""
    skipped_updates: Int[Array, ""]
    """Updates left out since the start, because loss or gradient was not finite."""
    skipped_in_a_row: Int[Array, ""]


class _Rows(NamedTuple):
    """A dataset on the devices."""

    states: Float[Array, "n s"]
    actions: Float[Array, "n a"]
    episodes: EpisodeIndex


_BATCHES: Any = PartitionSpec(None, DATA)


@dataclass(frozen=True)
class OfflineTrainer:
    """GCIQL on a dataset.

    Args:
      config: how to learn.
      goals: how goals are drawn.
      dataset: what to learn from.
      build: makes the value, the critics and the actor from random streams.
      iterations: of the whole run, for the schedule of the learning rate.
      mesh: the devices.
      mapped: leave the dataset where it is, and fetch what each iteration needs of it.
      dtype: of parameters and data.
      learning: how the loops of a batch are computed.
    """

    config: GCIQLConfig
    goals: GoalSampling
    dataset: Dataset
    build: Nets
    iterations: int
    mesh: Mesh
    mapped: bool = False
    dtype: Any = jnp.float32
    learning: Execution = field(default_factory=Packed)

    def __post_init__(self) -> None:
        if self.config.batch % self.mesh.size:
            raise ValueError(f"{self.mesh.size} devices do not divide a batch of {self.config.batch}")

    @property
    def steps_per_iteration(self) -> int:
        """Gradient steps."""
        return self.config.updates_per_iteration

    def begin(self, seed: int) -> OfflineState:
        """The state of a new run."""
        root = jax.random.key_data(jax.random.key(seed))

        def made(number: int, build: Callable[[nnx.Rngs], Any]) -> Any:
            key = jax.random.wrap_key_data(addressed_key(root, Stream.NET, number))
            parts = nnx.split(build(nnx.Rngs(key)), nnx.Param, ...)
            return jax.tree.map(lambda a: a.astype(self.dtype), parts[1:])

        nets = [made(number, build) for number, build in enumerate(self.build)]
        parameters = Nets(*(trained for trained, _ in nets))
        features = self.dataset.states.shape[1]
        statistics = jax.tree.map(lambda a: a.astype(self.dtype), no_statistics(features))
        state = OfflineState(
            learner=new_learner(parameters, self._optimiser),
            target_critics=parameters.critics,
            fixed=nets[-1][1],
            statistics=statistics,
            iteration=jnp.int32(0),
            root=root,
        )
        return on_every_device(self.mesh, state)

    def iterate(self, state: OfflineState) -> tuple[OfflineState, OfflineMetrics]:
        """So many updates."""
        if not self.mapped:
            return self.programs.draw_and_learn(self._placed_rows, state)
        iteration = int(state.iteration)
        batches = self._fetched.pop(iteration, None) or self._fetch(state.root, iteration)
        result = self.programs.learn(state, batches)
        # The devices are at work: meanwhile the host fetches what they will want next.
        self._fetched[iteration + 1] = self._fetch(state.root, iteration + 1)
        return result

    @functools.cached_property
    def _fetched(self) -> dict[int, GoalBatch]:
        return {}

    def _fetch(self, root: UInt32[Array, "2"], iteration: int) -> GoalBatch:
        drawn = jax.tree.map(np.asarray, self.programs.draw(self._placed_index, root, iteration))
        return placed(self.mesh, self._gather(self.dataset.states, self.dataset.actions, drawn), _BATCHES)

    @functools.cached_property
    def _placed_index(self) -> EpisodeIndex:
        return on_every_device(self.mesh, self.dataset.index)

    @functools.cached_property
    def _placed_rows(self) -> _Rows:
        states, actions = (np.asarray(a, self.dtype) for a in (self.dataset.states, self.dataset.actions))
        states, actions = on_every_device(self.mesh, (states, actions))
        return _Rows(states, actions, self._placed_index)

    @functools.cached_property
    def _optimiser(self) -> optax.GradientTransformation:
        return clipped_adam(self.config, self.iterations * self.config.updates_per_iteration)

    @functools.cached_property
    def definitions(self) -> Nets:
        """The nets without their weights."""
        return Nets(*(nnx.split(nnx.eval_shape(lambda b=b: b(nnx.Rngs(0))))[0] for b in self.build))

    @functools.cached_property
    def programs(self) -> "Programs":
        """An iteration as jitted functions: with its draws, or from batches that were fetched."""

        def draw_and_learn(rows: _Rows, state: OfflineState) -> tuple[OfflineState, OfflineMetrics]:
            per_device = self.config.batch // self.mesh.size
            first = jax.lax.axis_index(DATA) * per_device

            def batch(update: Int[Array, ""]) -> GoalBatch:
                drawn = self._draw(rows.episodes, state.root, update, first + jnp.arange(per_device))
                return self._gather(rows.states, rows.actions, drawn)

            return self._learn(state, self._updates_of(state.iteration), batch)

        def learn(state: OfflineState, batches: GoalBatch) -> tuple[OfflineState, OfflineMetrics]:
            return self._learn(state, batches, lambda batch: batch)

        def draw_all(index: EpisodeIndex, root: UInt32[Array, "2"], iteration: Int[Array, ""]) -> Drawn:
            examples = jnp.arange(self.config.batch)
            return jax.lax.map(
                lambda update: self._draw(index, root, update, examples), self._updates_of(iteration)
            )

        return Programs(
            on_each_device(self.mesh, draw_and_learn, (EVERYWHERE, EVERYWHERE), EVERYWHERE),
            on_each_device(self.mesh, learn, (EVERYWHERE, _BATCHES), EVERYWHERE),
            jax.jit(draw_all),
        )

    def _updates_of(self, iteration: Int[Array, ""]) -> Int[Array, " u"]:
        """Their numbers, counted from the start of the run."""
        updates = self.config.updates_per_iteration
        return iteration * updates + jnp.arange(updates)

    def _draw(
        self,
        index: EpisodeIndex,
        root: UInt32[Array, "2"],
        update: Int[Array, ""],
        examples: Int[Array, " b"],
    ) -> Drawn:
        """Rows for some examples of an update."""
        key = addressed_key(root, Stream.EXAMPLE, update)
        one = functools.partial(draw, index, sampling=self.goals, discount=self.config.discount)
        return jax.vmap(lambda example: one(key=folded(key, example)))(examples)

    def _gather(self, states: Shaped[Any, "n s"], actions: Shaped[Any, "n a"], drawn: Drawn) -> GoalBatch:
        """The rows that were drawn: on the devices, or on the host."""
        row, value_goal, actor_goal = drawn

        def of(table: Any, rows: Any) -> Any:
            return table[rows].astype(self.dtype)

        return GoalBatch(
            state=of(states, row),
            action=of(actions, row),
            next_state=of(states, row + 1),
            value_goal=of(states, value_goal),
            actor_goal=of(states, actor_goal),
            reached=row == value_goal,
        )

    def _learn(
        self, state: OfflineState, feed: Any, batch_of: Callable[[Any], GoalBatch]
    ) -> tuple[OfflineState, OfflineMetrics]:
        """The updates of an iteration; `feed` holds for each what its batch is made of."""

        def update(carry: tuple, given: Any) -> tuple[tuple, Update]:
            learner, target = carry
            found = self._gradient(learner.parameters, target, state, batch_of(given))
            after, update = descend(learner, self._optimiser, found, DATA)
            # Towards the critics as they were before the update, as in OGBench's reference.
            moved = moved_towards(target, learner.parameters.critics, self.config.target_rate)
            return (after, keep_if(update.taken, moved, target)), update

        (learner, target), updates = jax.lax.scan(update, (state.learner, state.target_critics), feed)
        after = state._replace(learner=learner, target_critics=target, iteration=state.iteration + 1)
        return after, _metrics(learner, updates)

    def _gradient(
        self, parameters: Nets, target: PyTree, state: OfflineState, batch: GoalBatch
    ) -> MeanGradient:
        """Of all three losses, on this device's part of a batch."""
        value_net, critics_net, _ = (
            functools.partial(nnx.merge, definition) for definition in self.definitions
        )
        config = self.config

        def mean(loss: Callable[[Any], tuple[Array, Any]], of: PyTree) -> MeanGradient:
            def means(of: PyTree) -> tuple[Array, Any]:
                losses, terms = loss(of)
                return losses.mean(), jax.tree.map(jnp.mean, terms)

            (value, terms), gradient = jax.value_and_grad(means, has_aux=True)(of)
            return MeanGradient(value, terms, gradient)

        value = mean(
            lambda own: value_loss(value_net(own), critics_net(target), batch, config), parameters.value
        )
        critics = mean(
            lambda own: critic_loss(critics_net(own), value_net(parameters.value), batch, config),
            parameters.critics,
        )
        weights = state.weights._replace(parameters=parameters.actor)
        actor = self._actor_gradient(weights, critics_net(parameters.critics), batch)
        parts = Nets(value, critics, actor)
        return MeanGradient(
            value.loss + critics.loss + actor.loss,
            Nets(*(part.terms for part in parts)),
            Nets(*(part.gradient for part in parts)),
        )

    def _actor_gradient(self, weights: Weights, critics: Callable, batch: GoalBatch) -> MeanGradient:
        """What loops thinks first, to learn the scale of Q and each example's depth; then it is learned from.

        The scale belongs to the whole batch, and a looped actor learns from few examples at a time. The
        depths pack them as well as can be: data has none from acting, as PPO's has.
        """
        definition = self.definitions.actor
        observation = GoalObservation(batch.state, batch.actor_goal)
        execution, scale, streamed = FrozenScan(), None, None
        loop = opened(definition, weights)
        if loop is not None:
            execution, streamed = self.learning, Streaming().think(loop, observation)
            q = q_of_action(critics, batch, streamed.thoughts.decision.distribution.mode())
            scale = q_scale(q, DATA)

        def policy(parameters: PyTree, execution: Execution) -> Decide:
            return deciding(definition, weights._replace(parameters=parameters), execution=execution)

        def loss(parameters: PyTree, examples: GoalBatch, execution: Execution) -> tuple[Array, ActorTerms]:
            own = GoalObservation(examples.state, examples.actor_goal)
            decide = policy(parameters, execution)
            return actor_loss(decide, critics, own, examples, self.config, scale, DATA)

        latent = jax.eval_shape(lambda: policy(weights.parameters, execution)(observation).loop.latent)
        found = mean_gradient(
            loss,
            weights.parameters,
            batch,
            execution,
            latent_size=latent.size // latent.shape[0],
            expected_loops=None if streamed is None else streamed.thoughts.loops,
        )
        if streamed is None:
            return found
        # One more pass forward, where learning from a loop takes four.
        more = found.terms.executed_loops + streamed.executed / len(batch.state) / 4
        return found._replace(terms=found.terms._replace(executed_loops=more))


class Programs(NamedTuple):
    """What runs on the devices."""

    draw_and_learn: Any
    learn: Any
    draw: Any


def _metrics(learner: LearnerState, updates: Update) -> OfflineMetrics:
    taken = functools.partial(mean_over_taken, updates)
    value: ValueTerms
    critics: CriticTerms
    actor: ActorTerms
    value, critics, actor = jax.tree.map(taken, updates.terms)
    return OfflineMetrics(
        loss=taken(updates.loss),
        value_loss=value.value_loss,
        critic_loss=critics.critic_loss,
        q_loss=actor.q_loss,
        behaviour_loss=actor.behaviour_loss,
        action_error=actor.action_error,
        value=value.value,
        q=critics.q,
        q_of_policy=actor.q_of_policy,
        gradient_norm=taken(updates.gradient_norm),
        loops=actor.loops,
        utilisation=actor.loops / actor.executed_loops,
        skipped_updates=learner.skipped,
        skipped_in_a_row=learner.skipped_in_a_row,
    )
