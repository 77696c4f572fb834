"""Rollouts: steps of many environments by the policy as it is.

`stream_rollout` is how they are computed; `rollout`, in which all environments wait for the deepest decision,
is its oracle. An action depends on the number of the environment and the step, never on the device, the batch
or the order in which it was computed, so both give the same rollout.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped, UInt32

from looped_actor.algorithms.policy_fn import Acting, PolicyFn, Weights, make_acting_policy
from looped_actor.envs import VectorEnv, VectorState
from looped_actor.envs.vector import EpisodeStatistics
from looped_actor.loop import Carry, StreamablePolicy, Streaming, StreamOutput, empty_carry
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.loop.state import select_rows
from looped_actor.models import PolicyOutput
from looped_actor.training.sharding import DATA, REPLICATED, ROWS


class EnvState(NamedTuple):
    """Environments between two steps: everything that a rollout continues from."""

    envs: VectorState
    observation: PyTree[Shaped[Array, "b ..."]]
    loops: Int[Array, " b"]
    """Loops of the last decision of each environment: a good guess at its next."""
    carry: Carry


class Transition(NamedTuple):
    """One step of every environment."""

    observation: PyTree[Shaped[Array, "..."]]
    action: Shaped[Array, "..."]
    log_prob: Float[Array, "*t b"]
    value: Float[Array, "*t b"]
    reward: Float[Array, "*t b"]
    terminated: Bool[Array, "*t b"]
    truncated: Bool[Array, "*t b"]
    loops: Int[Array, "*t b"]
    stop: Int[Array, "*t b"]
    """Reason for which each decision stopped: values of `StopReason`."""
    episode: EpisodeStatistics
    """Statistics of the episodes that are running, or end in this step."""
    carry: Carry
    """Carry that the decision started from."""


class Rollout(NamedTuple):
    """Some steps of every environment."""

    steps: Transition
    """Time-major."""
    bootstrap: Float[Array, " b"]
    """Value of the state after the last step."""
    loops: Int[Array, "*d"]
    """Loops of all decisions on each device, those about the state after the last step included."""
    executed: Int[Array, "*d"]
    """Loops that the hardware computed for them."""


TIME_ROWS: Any = PartitionSpec(None, DATA)
"""Sharding of time-major arrays: environments over the devices."""
ENV_STATE_SPECS = EnvState(VectorState(ROWS, ROWS, ROWS, ROWS, REPLICATED), ROWS, ROWS, Carry(ROWS, ROWS))
ROLLOUT_SPECS = Rollout(TIME_ROWS, ROWS, ROWS, ROWS)


def init_env_state(vector: VectorEnv, root: UInt32[Array, "2"]) -> EnvState:
    """Return all environments at the start of their first episode, without a latent to carry."""
    envs, observation = vector.reset(root)
    loops = jnp.zeros(vector.num_envs, jnp.int32)
    return EnvState(envs, observation, loops, empty_carry(vector.num_envs))


def restart(vector: VectorEnv, state: EnvState, rows: Bool[Array, " b"]) -> EnvState:
    """Start new episodes in some environments."""
    envs, observation = vector.restart(state.envs, rows)
    return state._replace(envs=envs, observation=observation, carry=state.carry.restart(rows))


def collect(
    vector: VectorEnv,
    state: EnvState,
    definition: nnx.GraphDef,
    weights: Weights,
    acting: Acting,
    root: UInt32[Array, "2"],
    first_step: Int[Array, ""],
    steps: int,
    actions: Int[Array, "t b"] | None = None,
) -> tuple[EnvState, Rollout]:
    """Return a rollout of this device's environments.

    Args:
      vector: the environments.
      state: where they are.
      definition: the net without its weights.
      weights: of the policy.
      acting: streamed or synchronous. Nets that do not loop always act synchronously.
      root: the key from which every draw is addressed.
      first_step: number of the first step, counted from the start of the run.
      steps: of each environment.
      actions: replaces the policy's actions where it is not negative.
    """
    policy = make_acting_policy(definition, weights, acting)
    if isinstance(policy, StreamablePolicy):
        assert isinstance(acting, Streaming)
        state, found = stream_rollout(vector, state, policy, root, first_step, steps, acting, actions)
    else:
        state, found = rollout(vector, state, policy, root, first_step, steps, actions)
    return state, found._replace(loops=found.loops[None], executed=found.executed[None])


def rollout(
    vector: VectorEnv,
    state: EnvState,
    policy: PolicyFn,
    root: UInt32[Array, "2"],
    first_step: Int[Array, ""],
    steps: int,
    actions: Int[Array, "t b"] | None = None,
) -> tuple[EnvState, Rollout]:
    """Return a rollout in which all environments decide together. The arguments are those of `collect`."""

    def decide(state: EnvState) -> tuple[StreamOutput, Array]:
        output = policy(state.observation, expected_loops=state.loops, carry=state.carry)
        assert output.loop is not None
        loop = output.loop
        return StreamOutput(output, loop.loops, loop.stop, loop.latent), loop.executed

    def step(state: EnvState, now: tuple) -> tuple[EnvState, tuple[Transition, Array]]:
        number, given = now
        output, executed = decide(state)
        state, transition = _step_envs(vector, state, output, root, number, given)
        return state, (transition, executed)

    numbers = first_step + jnp.arange(steps), actions
    state, (transitions, executed) = jax.lax.scan(step, state, numbers)
    last, last_executed = decide(state)
    loops = transitions.loops.sum() + last.loops.sum()
    return state, Rollout(transitions, last.decision.value, loops, executed.sum() + last_executed)


class _Table(NamedTuple):
    """A rollout in progress, in which each environment may be at a different step."""

    state: EnvState
    step: Int[Array, " b"]
    transitions: Transition
    bootstrap: Float[Array, " b"]
    carries: Carry
    """Carries that the decisions of the transitions started from."""


@dataclass(frozen=True)
class _StreamedRollout:
    """Callbacks of the stream: observe and carry rows, and carry out their decisions."""

    vector: VectorEnv
    root: UInt32[Array, "2"]
    first_step: Int[Array, ""]
    steps: int
    actions: Int[Array, "t b"] | None

    def init(self, state: EnvState, one: Transition) -> _Table:
        def zeros(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: jnp.zeros((self.steps, *leaf.shape), leaf.dtype), tree)

        transitions = zeros(jax.eval_shape(_flatten_observation, one))
        step, bootstrap = jnp.zeros(len(state.loops), jnp.int32), jnp.zeros_like(transitions.value[0])
        return _Table(state, step, transitions, bootstrap, zeros(state.carry))

    def observe(self, table: _Table, row: Int[Array, " s"]) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[row], table.state.observation)

    def carry_of(self, table: _Table, row: Int[Array, " s"]) -> Carry:
        return jax.tree.map(lambda leaf: leaf[row], table.state.carry)

    def settle(
        self, table: _Table, ended: Bool[Array, " b"], output: StreamOutput
    ) -> tuple[_Table, Bool[Array, " b"]]:
        """Step the environments whose decisions are made, and record their transitions."""
        steps, rows = self.steps, jnp.arange(len(ended))
        acting = ended & (table.step < steps)
        given = None if self.actions is None else self.actions[jnp.minimum(table.step, steps - 1), rows]
        number = self.first_step + table.step
        state, transition = _step_envs(self.vector, table.state, output, self.root, number, given, acting)
        # As a choice over all steps, since a scatter would be a loop over the rows on CPU.
        here = acting & (jnp.arange(steps)[:, None] == table.step)
        place = jnp.where(acting, table.step, steps)  # a step that is not there is dropped

        def write(one: Array, all: Array) -> Array:
            return jnp.where(here.reshape(here.shape + (1,) * (one.ndim - 1)), one, all)

        def scatter(one: Array, all: Array) -> Array:
            return all.at[place, rows].set(one, mode="drop")

        flat = _flatten_observation(transition._replace(carry=table.transitions.carry))
        table = _Table(
            state=state,
            step=table.step + ended,
            transitions=jax.tree.map(write, flat, table.transitions),
            bootstrap=jnp.where(ended & ~acting, output.decision.value, table.bootstrap),
            carries=jax.tree.map(scatter, transition.carry, table.carries),  # too large for a choice
        )
        return table, table.step <= steps


def stream_rollout(
    vector: VectorEnv,
    state: EnvState,
    policy: StreamablePolicy,
    root: UInt32[Array, "2"],
    first_step: Int[Array, ""],
    steps: int,
    streaming: Streaming,
    actions: Int[Array, "t b"] | None = None,
) -> tuple[EnvState, Rollout]:
    """Return the rollout of `rollout`, in about the time that its loops need.

    An environment decides `steps` times to act, and once more for the value of the state after the last step.
    """

    def first_transition(state: EnvState) -> Transition:
        latent = policy.initial_latent(policy.embed(state.observation))
        output = StreamOutput(policy.decode(latent), state.loops, state.loops, latent)
        return _step_envs(vector, state, output, root, first_step)[1]._replace(carry=())  # type: ignore[arg-type]

    one = jax.eval_shape(first_transition, state)
    streamed = _StreamedRollout(vector, root, first_step, steps, actions)
    end = streaming.run(
        policy,
        streamed.init(state, one),
        len(state.loops),
        streamed.observe,
        streamed.settle,
        streamed.carry_of,
    )
    table: _Table = end.table
    transitions = jax.tree.map(lambda all, like: all.reshape(steps, *like.shape), table.transitions, one)
    transitions = transitions._replace(carry=table.carries)
    return table.state, Rollout(transitions, table.bootstrap, end.loops, end.executed)


def _flatten_observation(transition: Transition) -> Transition:
    """Return the transition with each observation as one row of numbers.

    A rollout under way is rewritten all the time, and the short last axis of boards and planes would be
    padded to 128 numbers on a TPU.
    """
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1) if leaf.ndim > 1 else leaf, transition)


def sample_actions(
    distribution: Any, copies: Int[Array, " b"], root: UInt32[Array, "2"], step: Int[Array, "*b"]
) -> Array:
    """Draw an action for each environment, addressed by its number and the step."""
    key = addressed_key(root, Stream.ACTION)

    def draw(distribution: Any, copy: Int[Array, ""], step: Int[Array, ""]) -> Array:
        return distribution.sample(jax.random.wrap_key_data(folded(key, copy, step)))

    return jax.vmap(draw)(distribution, copies, jnp.broadcast_to(step, copies.shape))


def _step_envs(
    vector: VectorEnv,
    state: EnvState,
    output: StreamOutput,
    root: UInt32[Array, "2"],
    step: Int[Array, "*b"],
    given: Int[Array, " b"] | None = None,
    acting: Bool[Array, " b"] | None = None,
) -> tuple[EnvState, Transition]:
    """Carry out the decisions of all environments, or of those in `acting`; given actions replace the
    policy's."""
    decision: PolicyOutput = output.decision
    assert decision.value is not None
    action = sample_actions(decision.distribution, state.envs.copy, root, step)
    if given is not None:
        action = jnp.where(given >= 0, given, action)
    envs, timestep = vector.step(state.envs, action, acting)
    transition = Transition(
        observation=state.observation,
        action=action,
        log_prob=decision.distribution.log_prob(action),
        value=decision.value,
        reward=timestep.reward.astype(decision.value.dtype),
        terminated=timestep.terminated,
        truncated=timestep.truncated,
        loops=output.loops,
        stop=output.stop,
        episode=timestep.episode,
        carry=state.carry,
    )
    carry = state.carry.update(output.latent, timestep.done)
    after: Any = timestep.observation, output.loops, carry
    if acting is not None:
        after = select_rows(acting, after, (state.observation, state.loops, state.carry))
    return EnvState(envs, *after), transition
