"""The feed of online learning: environments played side by side by the policy as it is."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped, UInt32

from looped_actor.algorithms import Decide
from looped_actor.envs import VectorEnv, VectorState
from looped_actor.envs.vector import EpisodeStatistics
from looped_actor.loop import StopReason
from looped_actor.loop.rng import Stream, addressed_key, folded


class Players(NamedTuple):
    """Environments in mid-play. Save it to go on exactly from here."""

    envs: VectorState
    observation: PyTree[Shaped[Array, "b ..."]]
    """What each sees."""
    loops: Int[Array, " b"]
    """Loops of each one's last decision: a good guess at its next."""


class Rollout(NamedTuple):
    """What was seen, done and brought about. Time-major."""

    observation: PyTree[Shaped[Array, "t b ..."]]
    action: Shaped[Array, "t b ..."]
    log_prob: Float[Array, "t b"]
    value: Float[Array, "t b"]
    reward: Float[Array, "t b"]
    terminated: Bool[Array, "t b"]
    truncated: Bool[Array, "t b"]
    loops: Int[Array, "t b"]
    capped: Bool[Array, "t b"]
    """Whether the cap ended the thought."""
    executed_loops: Float[Array, " t"]
    """Loops that the hardware computed in each step, for all rows."""
    episode: EpisodeStatistics
    """Of the episodes that are under way, or end in the step. Each field is t b."""
    bootstrap: Float[Array, " b"]
    """Value of the state after the last step."""


def new_players(vector: VectorEnv, root: UInt32[Array, "2"]) -> Players:
    """All environments at the start of their first episode."""
    envs, observation = vector.reset(root)
    return Players(envs, observation, jnp.zeros(vector.num_envs, jnp.int32))


def play(
    vector: VectorEnv,
    players: Players,
    policy: Decide,
    root: UInt32[Array, "2"],
    first_step: Int[Array, ""],
    steps: int,
) -> tuple[Players, Rollout]:
    """So many steps of every environment, by actions drawn from the policy.

    An action depends on the environment's number and the step, never on the device, the batch or the
    order in which it was computed.
    """
    action_key = addressed_key(root, Stream.ACTION)

    def decide(players: Players) -> Any:
        return policy(players.observation, expected_loops=players.loops)

    def one(players: Players, step: Int[Array, ""]) -> tuple[Players, tuple]:
        decision = decide(players)

        def draw(distribution: Any, copy: Int[Array, ""]) -> Array:
            return distribution.sample(jax.random.wrap_key_data(folded(action_key, copy, step)))

        action = jax.vmap(draw)(decision.distribution, players.envs.copy)
        envs, timestep = vector.step(players.envs, action)
        seen = (
            players.observation,
            action,
            decision.distribution.log_prob(action),
            decision.value,
            timestep.reward.astype(decision.value.dtype),
            timestep.terminated,
            timestep.truncated,
            decision.loop.loops,
            decision.loop.stop == StopReason.CAP,
            decision.loop.executed.astype(decision.value.dtype),
            timestep.episode,
        )
        return Players(envs, timestep.observation, decision.loop.loops), seen

    players, seen = jax.lax.scan(one, players, first_step + jnp.arange(steps))
    return players, Rollout(*seen, bootstrap=decide(players).value)
