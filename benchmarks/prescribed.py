"""Depths on request, for benchmarks: a policy with random weights that thinks as long as it is asked to.

All the work of halting is done, and then the observation decides: it has one more plane, which holds the
depth. So the question is about the engine alone, and the answer does not depend on a trained policy.
"""

import functools
import statistics
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped, UInt32

from looped_actor.envs import Outcome
from looped_actor.evaluation.levels import LevelEnvironment
from looped_actor.loop import Distribution, HaltingRule, LoopProblem, OpenLoop, PolicyKL, Readout, run_loop
from looped_actor.models import ActorCritic, ActorCriticOutput, Tokens

MAX_LOOPS = 16


@dataclass(frozen=True)
class DepthDistribution:
    """Loops asked for: a share at the cap, the others around a mean, as trained policies show it."""

    at_cap: float
    mean_below: float
    deviation: float

    def draw(self, count: int) -> Int[np.ndarray, " n"]:
        """`count` depths in random order. Stratified, so that the mean hardly depends on the count."""
        capped = round(self.at_cap * count)
        normal = statistics.NormalDist(self.mean_below, self.deviation)
        free = count - capped
        below = [round(normal.inv_cdf((i + 0.5) / free)) for i in range(free)]
        depths = np.concatenate([np.clip(below, 2, MAX_LOOPS - 1), np.full(capped, MAX_LOOPS)])
        return np.random.default_rng(0).permutation(depths).astype(np.int32)


# Means of 9.8, 15.1 and 4. The paper's policies: 91% of Boxoban's decisions stop before loop 16 and
# 21% of Rush Hour's, so the mean of those that do is (9.8 - 0.09 x 16) / 0.91, and so on.
DISTRIBUTIONS = {
    "boxoban": DepthDistribution(at_cap=0.09, mean_below=9.19, deviation=2.8),
    "rush_hour": DepthDistribution(at_cap=0.79, mean_below=11.7, deviation=2.0),
    "easy": DepthDistribution(at_cap=0.0, mean_below=4.0, deviation=1.2),
}


class _Asked(NamedTuple):
    """The input of an example, and the depth that is asked of it."""

    tokens: Tokens
    depth: Int[Array, " b"]


class _Observed(NamedTuple):
    policy: Distribution
    depth: Int[Array, " b"]


@dataclass(frozen=True)
class AskedLoops(PolicyKL):
    """All the work of `PolicyKL`, and then the decision to stop at the depth asked for."""

    def observe(self, latent: Float[Array, "b ..."], x: Any, readout: Readout) -> Any:
        """The policy, and the depth asked for."""
        return _Observed(super().observe(latent, x, readout), x.depth)

    def divergence(self, before: Any, now: Any) -> Float[Array, " b"]:
        """The depth. The KL decides nothing here, but XLA must not find that out."""
        kl = super().divergence(before.policy, now.policy)
        return jnp.where(jnp.isnan(kl), kl, now.depth)

    def converged(self, loop: Int[Array, " b"], divergence: Float[Array, " b"]) -> Bool[Array, " b"]:
        """Whether the depth is reached."""
        return loop >= divergence


class AskedActorCritic(nnx.Module):
    """A looped actor-critic whose observations end in a plane that holds their depth."""

    def __init__(self, actor: ActorCritic):
        self.actor = actor

    def as_open_loop(self, halting: HaltingRule | None = None) -> OpenLoop:
        """The policy taken apart."""
        inner = self.actor.as_open_loop()
        assert inner is not None

        def embed(observation: Float[Array, "b r c p"]) -> _Asked:
            depth = jnp.round(observation[:, 0, 0, -1]).astype(jnp.int32)
            return _Asked(inner.embed(observation[..., :-1]), depth)

        problem = LoopProblem(
            step=lambda z, x: inner.problem.step(z, x.tokens),
            readout=lambda z, x: inner.problem.readout(z, x.tokens),
            halting=AskedLoops(max_loops=MAX_LOOPS),
        )
        return OpenLoop(embed, lambda x: inner.start(x.tokens), problem, inner.decode)

    def __call__(self, observation: Float[Array, "b r c p"], **options: Any) -> ActorCriticOutput:
        """Decide for and judge a batch of observations."""
        loop = self.as_open_loop()
        x = loop.embed(observation)
        options["halting"] = loop.problem.halting
        result = run_loop(loop.problem.step, loop.problem.readout, loop.start(x), x, **options)
        decision = loop.decode(result.latent)
        return ActorCriticOutput(decision.distribution, decision.value, result)


class _State(NamedTuple):
    world: PyTree
    draw: UInt32[Array, ""]
    """Decides the depth: another number in every step."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("env", "depths"), meta_fields=("time_limit",)
)
@dataclass(frozen=True)
class AskedDepths:
    """An environment whose observations have one more plane: the depth that is asked for, from a table."""

    env: LevelEnvironment
    depths: Any
    time_limit: int

    @property
    def num_actions(self) -> int:
        """As many as in the environment."""
        return self.env.num_actions

    def reset(self, key: Any) -> _State:
        """A new episode."""
        return _State(self.env.reset(key), jax.random.bits(key))

    def start(self, level: Int[Array, ""]) -> _State:
        """A chosen level."""
        return _State(self.env.start(level), _scrambled(level.astype(jnp.uint32) + 1))

    def step(self, state: _State, action: Int[Array, ""]) -> tuple[_State, Outcome]:
        """A step, and another depth."""
        world, outcome = self.env.step(state.world, action)
        return _State(world, _scrambled(state.draw)), outcome

    def observe(self, state: _State) -> Shaped[Array, "r c p"]:
        """What is seen, and the depth."""
        planes = self.env.observe(state.world)
        depth = self.depths[state.draw % len(self.depths)].astype(planes.dtype)
        return jnp.concatenate([planes, jnp.broadcast_to(depth, (*planes.shape[:-1], 1))], axis=-1)


def _scrambled(number: UInt32[Array, ""]) -> UInt32[Array, ""]:
    """Another number that looks unrelated (the mixing steps of splitmix, in 32 bits)."""
    number = number + jnp.uint32(0x9E3779B9)
    number = (number ^ (number >> 16)) * jnp.uint32(0x85EBCA6B)
    number = (number ^ (number >> 13)) * jnp.uint32(0xC2B2AE35)
    return number ^ (number >> 16)
