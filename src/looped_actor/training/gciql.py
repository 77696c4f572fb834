"""GCIQL on a dataset, over many devices: draw, judge, learn."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree, UInt32

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
    as_open_loop,
    clipped_adam,
    critic_loss,
    deciding,
    descend,
    mean_over_taken,
    new_learner,
    no_statistics,
    q_of_action,
    q_scale,
    value_loss,
)
from looped_actor.algorithms.collectives import keep_if
from looped_actor.collectors import DatasetCollector, DrawnInside, Draws, Fetched
from looped_actor.devices import DATA, EVERYWHERE, on_every_device
from looped_actor.errors import UserError
from looped_actor.loop import Execution, FrozenScan, MeanGradient, Packed, Streaming, mean_gradient
from looped_actor.loop.rng import Stream, addressed_key
from looped_actor.models import GoalObservation
from looped_actor.offline import Dataset, GoalSampling
from looped_actor.training.trainer import Trainer


class Nets(NamedTuple):
    """Parameters of all that is trained, or one thing for each of the three.

    Where critics are learned alone there is no actor: None.
    """

    value: Any
    critics: Any
    actor: Any


class Judges(NamedTuple):
    """Parameters of the two that judge. They never see the actor, so one pair can serve any number."""

    value: Any
    critics: Any


class OfflineState(NamedTuple):
    """All that a run of GCIQL is: save it to resume exactly from here."""

    learner: LearnerState
    """Parameters of `Nets`."""
    target_critics: PyTree
    fixed: PyTree
    """What of the actor is not trained: the latent before the first loop."""
    statistics: RunningStatistics
    """None are kept: states are learned from as they are in the data."""
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
    value: ValueTerms | None
    """None where value and critics were given."""
    critics: CriticTerms | None
    actor: ActorTerms | None
    """None where there is none."""
    gradient_norm: Float[Array, ""]
    utilisation: Float[Array, ""] | None
    """Share of the loops that the hardware computed that were asked for."""
    skipped_updates: Int[Array, ""]
    """Updates left out since the start, because loss or gradient was not finite."""
    skipped_in_a_row: Int[Array, ""]


@dataclass(frozen=True)
class GCIQLNets:
    """Value, critics and actor, and their optimisation.

    Args:
      config: how to learn.
      build: makes each of them from random streams. Without one for the actor, critics learn alone.
      features: scalars of a state.
      iterations: of the whole run, for the schedule of the learning rate.
      dtype: of parameters and data.
      execution: how the loops of a batch are computed.
      given: value and critics that were learned before. They stay as they are, and the actor alone learns.
    """

    config: GCIQLConfig
    build: Nets
    features: int
    iterations: int
    dtype: Any = jnp.float32
    execution: Execution = field(default_factory=Packed)
    given: "Judges | None" = None
    spec: Any = field(default=EVERYWHERE, init=False)

    def check(self, devices: int) -> None:
        """Raise an error if a batch does not divide evenly among the devices."""
        if self.config.batch % devices:
            raise UserError(f"{devices} devices do not divide a batch of {self.config.batch}")

    def begin(self, mesh: Mesh, root: UInt32[Array, "2"], first: None) -> OfflineState:
        """The state of a new run."""

        def made(number: int, build: Callable[[nnx.Rngs], Any] | None) -> Any:
            if build is None:
                return None, None
            key = jax.random.wrap_key_data(addressed_key(root, Stream.NET, number))
            parts = nnx.split(build(nnx.Rngs(key)), nnx.Param, ...)
            return jax.tree.map(lambda a: a.astype(self.dtype), parts[1:])

        nets = [made(number, build) for number, build in enumerate(self.build)]
        parameters = Nets(*(trained for trained, _ in nets))
        if self.given is not None:
            given = jax.tree.map(lambda a: jnp.asarray(a, self.dtype), self.given)
            parameters = parameters._replace(**given._asdict())
        state = OfflineState(
            learner=new_learner(parameters, self.optimiser),
            target_critics=parameters.critics,
            fixed=nets[-1][1],
            statistics=jax.tree.map(lambda a: a.astype(self.dtype), no_statistics(self.features)),
            iteration=jnp.int32(0),
            root=root,
        )
        return on_every_device(mesh, state)

    @functools.cached_property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam, over all updates of the run."""
        return clipped_adam(self.config, self.iterations * self.config.updates_per_iteration)

    @functools.cached_property
    def definitions(self) -> Nets:
        """The nets without their weights."""
        return Nets(*(b and nnx.split(nnx.eval_shape(lambda b=b: b(nnx.Rngs(0))))[0] for b in self.build))

    @property
    def definition(self) -> nnx.GraphDef | None:
        """The actor without its weights."""
        return self.definitions.actor


@dataclass(frozen=True)
class GCIQL:
    """Learns by GCIQL: value, critics and actor together, or critics alone, or the actor from them."""

    net: GCIQLNets
    host: None = field(default=None, init=False)

    @property
    def config(self) -> GCIQLConfig:
        """How to learn."""
        return self.net.config

    def learn(
        self, world: Any, state: OfflineState, experience: DrawnInside | Fetched, advice: None
    ) -> tuple[OfflineState, OfflineMetrics]:
        """The updates of an iteration."""

        def update(carry: tuple, given: Any) -> tuple[tuple, Update]:
            learner, target = carry
            found = self._gradient(learner.parameters, target, state, experience.batch(given))
            after, update = descend(learner, self.net.optimiser, found, DATA)
            # Towards the critics as they were before the update, as in OGBench's reference.
            moved = optax.incremental_update(learner.parameters.critics, target, self.config.target_rate)
            return (after, keep_if(update.taken, moved, target)), update

        carry = (state.learner, state.target_critics)
        (learner, target), updates = jax.lax.scan(update, carry, experience.feed)
        after = state._replace(learner=learner, target_critics=target, iteration=state.iteration + 1)
        return after, _metrics(learner, updates)

    def _gradient(
        self, parameters: Nets, target: PyTree, state: OfflineState, batch: GoalBatch
    ) -> MeanGradient:
        """Gradients of the losses of all that learns, on this device's part of a batch."""
        value_net, critics_net, _ = (
            functools.partial(nnx.merge, definition) for definition in self.net.definitions
        )
        config = self.config

        def mean(loss: Callable[[Any], tuple[Array, Any]], of: PyTree) -> MeanGradient:
            def means(of: PyTree) -> tuple[Array, Any]:
                losses, terms = loss(of)
                return losses.mean(), jax.tree.map(jnp.mean, terms)

            (value, terms), gradient = jax.value_and_grad(means, has_aux=True)(of)
            return MeanGradient(value, terms, gradient)

        def still(of: PyTree) -> MeanGradient:
            """What does not learn, or is not there."""
            return MeanGradient(jnp.zeros((), self.net.dtype), None, jax.tree.map(jnp.zeros_like, of))

        if self.net.given is None:
            value = mean(
                lambda own: value_loss(value_net(own), critics_net(target), batch, config), parameters.value
            )
            critics = mean(
                lambda own: critic_loss(critics_net(own), value_net(parameters.value), batch, config),
                parameters.critics,
            )
        else:
            value, critics = still(parameters.value), still(parameters.critics)
        if self.net.build.actor is None:
            actor = still(parameters.actor)
        else:
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
        definition = self.net.definitions.actor
        observation = GoalObservation(batch.state, batch.actor_goal)
        execution, scale, streamed = FrozenScan(), None, None
        loop = as_open_loop(definition, weights)
        if loop is not None:
            execution, streamed = self.net.execution, Streaming().think(loop, observation)
            q = q_of_action(critics, batch, streamed.thoughts.decision.distribution.mode())
            scale = q_scale(q, DATA)

        def policy(parameters: PyTree, execution: Execution) -> Decide:
            return deciding(definition, weights._replace(parameters=parameters), execution=execution)

        def loss(decide: Decide, examples: GoalBatch) -> tuple[Array, ActorTerms]:
            own = GoalObservation(examples.state, examples.actor_goal)
            return actor_loss(decide, critics, own, examples, self.config, scale, DATA)

        depths = None if streamed is None else streamed.thoughts.loops
        found = mean_gradient(loss, policy, weights.parameters, batch, execution, expected_loops=depths)
        if streamed is None:
            return found
        # One more pass forward, where learning from a loop takes four.
        more = found.terms.executed_loops + streamed.executed / len(batch.state) / 4
        return found._replace(terms=found.terms._replace(executed_loops=more))


def _metrics(learner: LearnerState, updates: Update) -> OfflineMetrics:
    taken = functools.partial(mean_over_taken, updates)
    terms: Nets = jax.tree.map(taken, updates.terms)
    return OfflineMetrics(
        taken(updates.loss),
        *terms,
        gradient_norm=taken(updates.gradient_norm),
        utilisation=terms.actor and terms.actor.loops / terms.actor.executed_loops,
        skipped_updates=learner.skipped,
        skipped_in_a_row=learner.skipped_in_a_row,
    )


def gciql_trainer(
    config: GCIQLConfig,
    goals: GoalSampling,
    dataset: Dataset,
    build: Nets,
    iterations: int,
    mesh: Mesh,
    *,
    mapped: bool = False,
    **options: Any,
) -> Trainer:
    """GCIQL on a dataset, which with `mapped` stays where it is; options are those of `GCIQLNets`."""
    net = GCIQLNets(config, build, dataset.states.shape[1], iterations, **options)
    drawing = goals, config.discount, config.n_step, net.dtype
    draws = Draws(config.batch, config.updates_per_iteration, *drawing)
    return Trainer(DatasetCollector(dataset, draws, mesh, mapped), GCIQL(net))
