"""The feed of online learning: environments played side by side by the policy as it is.

`stream` is how it is done; `play` is the obvious way, in step, and the oracle. An action depends on the
environment's number and the step, never on the device, the batch or the order in which it was computed, so
both give the same rollout.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped, UInt32

from looped_actor.algorithms import Decide
from looped_actor.envs import VectorEnv, VectorState
from looped_actor.envs.vector import EpisodeStatistics
from looped_actor.loop import Memory, OpenLoop, Streaming, Thought
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.loop.state import select_rows


class Players(NamedTuple):
    """Environments in mid-play. Save it to resume exactly from here."""

    envs: VectorState
    observation: PyTree[Shaped[Array, "b ..."]]
    """What each sees."""
    loops: Int[Array, " b"]
    """Loops of each one's last decision: a good guess at its next."""
    memory: Memory | None = None
    """What each carries to its next decision; None where nothing is carried."""


class Transition(NamedTuple):
    """What was seen, done and brought about in one step."""

    observation: PyTree[Shaped[Array, "..."]]
    action: Shaped[Array, "..."]
    log_prob: Float[Array, "*t b"]
    value: Float[Array, "*t b"]
    reward: Float[Array, "*t b"]
    terminated: Bool[Array, "*t b"]
    truncated: Bool[Array, "*t b"]
    loops: Int[Array, "*t b"]
    stop: Int[Array, "*t b"]
    """Why each thought ended: values of `StopReason`."""
    episode: EpisodeStatistics
    """Statistics of the episodes that are running, or end in this step."""
    memory: Memory | None = None
    """What the thought started from; None where nothing is carried."""


class Rollout(NamedTuple):
    """Some steps of every environment."""

    steps: Transition
    """Time-major."""
    bootstrap: Float[Array, " b"]
    """Value of the state after the last step."""
    asked: Int[Array, "*d"]
    """Loops of all thoughts, those about the state after the last step included; on each device."""
    executed: Int[Array, "*d"]
    """Loops that the hardware computed for them."""


def new_players(vector: VectorEnv, root: UInt32[Array, "2"]) -> Players:
    """All environments at the start of their first episode."""
    envs, observation = vector.reset(root)
    return Players(envs, observation, jnp.zeros(vector.num_envs, jnp.int32))


def restarted(vector: VectorEnv, players: Players, rows: Bool[Array, " b"]) -> Players:
    """With new episodes in some environments, wherever they are."""
    envs, observation = vector.restart(players.envs, rows)
    memory = None if players.memory is None else players.memory.restart(rows)
    return players._replace(envs=envs, observation=observation, memory=memory)


def play(
    vector: VectorEnv,
    players: Players,
    policy: Decide,
    root: UInt32[Array, "2"],
    first_step: Int[Array, ""],
    steps: int,
    given: Int[Array, "t b"] | None = None,
) -> tuple[Players, Rollout]:
    """`steps` steps of every environment, all in step, by actions drawn from the policy.

    With `given`, by these actions instead where they are not below 0.
    """

    def think(players: Players) -> tuple[Thought, Array]:
        decision = policy(players.observation, expected_loops=players.loops, memory=players.memory)
        loop = decision.loop
        return Thought(decision, loop.loops, loop.stop, loop.latent), loop.executed

    def one(players: Players, now: tuple) -> tuple[Players, tuple[Transition, Array]]:
        step, given = now
        thought, executed = think(players)
        players, transition = _act(vector, players, thought, root, step, given)
        return players, (transition, executed)

    times = first_step + jnp.arange(steps), given
    players, (transitions, executed) = jax.lax.scan(one, players, times)
    last, last_executed = think(players)
    asked = transitions.loops.sum() + last.loops.sum()
    return players, Rollout(transitions, last.decision.value, asked, executed.sum() + last_executed)


class _Table(NamedTuple):
    """A rollout under way, in which every environment is at a step of its own."""

    players: Players
    step: Int[Array, " b"]
    transitions: Transition
    bootstrap: Float[Array, " b"]
    memories: Memory | None
    """What the thoughts of the transitions started from."""


@dataclass(frozen=True)
class _Rollouts:
    """The table of a stream of rollouts: its beginning, and what a decision does to it."""

    vector: VectorEnv
    root: UInt32[Array, "2"]
    first_step: Int[Array, ""]
    steps: int
    given: Int[Array, "t b"] | None

    def begin(self, players: Players, one: Transition) -> _Table:
        def of_all_steps(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: jnp.zeros((self.steps, *leaf.shape), leaf.dtype), tree)

        nothing = of_all_steps(jax.eval_shape(_as_rows, one))
        step, bootstrap = jnp.zeros(len(players.loops), jnp.int32), jnp.zeros_like(nothing.value[0])
        return _Table(players, step, nothing, bootstrap, of_all_steps(players.memory))

    def observe(self, table: _Table, row: Int[Array, " s"]) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[row], table.players.observation)

    def recall(self, table: _Table, row: Int[Array, " s"]) -> Memory | None:
        return jax.tree.map(lambda leaf: leaf[row], table.players.memory)

    def settle(
        self, table: _Table, ended: Bool[Array, " b"], thought: Thought
    ) -> tuple[_Table, Bool[Array, " b"]]:
        """Act, and write down what that brought."""
        steps, rows = self.steps, jnp.arange(len(ended))
        acting = ended & (table.step < steps)
        given = None if self.given is None else self.given[jnp.minimum(table.step, steps - 1), rows]
        now = self.first_step + table.step
        players, transition = _act(self.vector, table.players, thought, self.root, now, given, acting)
        # As a choice over all steps, since a scatter would be a loop over the rows on CPU.
        here = acting & (jnp.arange(steps)[:, None] == table.step)
        place = jnp.where(acting, table.step, steps)  # a step that is not there is dropped

        def write(one: Array, all: Array) -> Array:
            return jnp.where(here.reshape(here.shape + (1,) * (one.ndim - 1)), one, all)

        def put(one: Array, all: Array) -> Array:
            return all.at[place, rows].set(one, mode="drop")

        table = _Table(
            players,
            table.step + ended,
            jax.tree.map(write, _as_rows(transition._replace(memory=None)), table.transitions),
            jnp.where(ended & ~acting, thought.decision.value, table.bootstrap),
            jax.tree.map(put, transition.memory, table.memories),  # too large for a choice over all steps
        )
        return table, table.step <= steps


def stream(
    vector: VectorEnv,
    players: Players,
    loop: OpenLoop,
    root: UInt32[Array, "2"],
    first_step: Int[Array, ""],
    steps: int,
    streaming: Streaming,
    given: Int[Array, "t b"] | None = None,
) -> tuple[Players, Rollout]:
    """The rollout of `play`, in about the time that its loops ask for.

    An environment thinks `steps` times to act, and once more for the value of the state it has come to.
    """

    def unthought(players: Players) -> Transition:
        decision = loop.decode(loop.start(loop.embed(players.observation)))
        thought = Thought(decision, players.loops, players.loops)
        return _act(vector, players._replace(memory=None), thought, root, first_step)[1]

    one = jax.eval_shape(unthought, players)
    played = _Rollouts(vector, root, first_step, steps, given)
    end = streaming.run(
        loop,
        played.begin(players, one),
        len(players.loops),
        played.observe,
        played.settle,
        recall=played.recall,
    )
    table: _Table = end.table
    transitions = jax.tree.map(lambda all, like: all.reshape(steps, *like.shape), table.transitions, one)
    transitions = transitions._replace(memory=table.memories)
    return table.players, Rollout(transitions, table.bootstrap, end.asked, end.executed)


def _as_rows(transition: Transition) -> Transition:
    """With what each environment sees as one row of numbers.

    While a rollout is under way it is written to all over, and the short last axis of boards and planes would
    be filled up to 128 numbers on a TPU.
    """
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1) if leaf.ndim > 1 else leaf, transition)


def drawn_actions(
    distribution: Any, copies: Int[Array, " b"], root: UInt32[Array, "2"], step: Int[Array, "*b"]
) -> Array:
    """An action of each environment, addressed by its number and the step."""
    key = addressed_key(root, Stream.ACTION)

    def draw(distribution: Any, copy: Int[Array, ""], step: Int[Array, ""]) -> Array:
        return distribution.sample(jax.random.wrap_key_data(folded(key, copy, step)))

    return jax.vmap(draw)(distribution, copies, jnp.broadcast_to(step, copies.shape))


def _act(
    vector: VectorEnv,
    players: Players,
    thought: Thought,
    root: UInt32[Array, "2"],
    step: Int[Array, "*b"],
    given: Int[Array, " b"] | None = None,
    acting: Bool[Array, " b"] | None = None,
) -> tuple[Players, Transition]:
    """Carry out the decisions of all environments, or of some; where an action is given, that instead."""
    decision = thought.decision
    action = drawn_actions(decision.distribution, players.envs.copy, root, step)
    if given is not None:
        action = jnp.where(given >= 0, given, action)
    envs, timestep = vector.step(players.envs, action, acting)
    transition = Transition(
        players.observation,
        action,
        decision.distribution.log_prob(action),
        decision.value,
        timestep.reward.astype(decision.value.dtype),
        timestep.terminated,
        timestep.truncated,
        thought.loops,
        thought.stop,
        timestep.episode,
        players.memory,
    )
    memory = players.memory
    if memory is not None:
        assert thought.latent is not None
        memory = memory.after(thought.latent, timestep.done)
    after: Any = timestep.observation, thought.loops, memory
    if acting is not None:
        after = select_rows(acting, after, (players.observation, players.loops, players.memory))
    return Players(envs, *after), transition
