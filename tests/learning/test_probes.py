"""Probe environments with known values and actions: each isolates one part of PPO."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Int

from helpers import thorough
from looped_actor import (
    Actor,
    CoreConfig,
    LoopedTrunk,
    PlanesTokenizer,
    PolicyKL,
    ReadoutLogits,
    ValueHead,
)
from looped_actor.algorithms import PPO, PPOConfig, make_policy
from looped_actor.envs import Outcome
from looped_actor.training.sharding import all_devices

DISCOUNT = 0.8


class Position(NamedTuple):
    step: Int[Array, ""]
    sign: Int[Array, ""]


class Probe:
    """A board of one cell with two planes; two actions."""

    time_limit, num_actions = 100, 2

    def reset(self, key) -> Position:
        return Position(jnp.int32(0), jax.random.bernoulli(key).astype(jnp.int32))

    def observe(self, state: Position) -> Float[Array, "1 1 2"]:
        return jnp.stack([state.step, state.sign]).astype(jnp.float32)[None, None]

    def step(self, state: Position, action: Int[Array, ""]) -> tuple[Position, Outcome]:
        return Position(state.step + 1, state.sign), self.outcome(state, action)

    def outcome(self, state: Position, action: Int[Array, ""]) -> Outcome:
        raise NotImplementedError


def outcome(reward, terminated: bool | Bool[Array, ""]) -> Outcome:
    ended = jnp.asarray(terminated)
    return Outcome(jnp.asarray(reward, jnp.float32), ended, ended)


class OneStep(Probe):
    """One step with a reward of 1: the value is 1."""

    def outcome(self, state, action):
        return outcome(1.0, True)


class TwoSteps(Probe):
    """Rewards of 0 and 1: the first value is the discount."""

    def outcome(self, state, action):
        return outcome(state.step == 1, state.step == 1)


class TimeOut(Probe):
    """Rewards of 1, truncated after three steps that look alike: the value is 1 / (1 - discount)."""

    time_limit = 3

    def observe(self, state):
        return super().observe(Position(jnp.int32(0), jnp.int32(0)))

    def outcome(self, state, action):
        return outcome(1.0, False)


class SignalledAction(Probe):
    """The second plane shows the right action."""

    def outcome(self, state, action):
        return outcome(jnp.where(action == state.sign, 1.0, -1.0), True)


for kind in (OneStep, TwoSteps, TimeOut, SignalledAction):
    jax.tree_util.register_static(kind)


def build(rngs):
    width = 16
    core = CoreConfig(width=width, heads=2, layers=1, hidden=48)
    return Actor(
        PlanesTokenizer(2, width, rngs=rngs),
        LoopedTrunk(core, PolicyKL(max_loops=4), convolution=True, rngs=rngs),
        ReadoutLogits(width, 2, rngs=rngs),
        ValueHead(width, rngs=rngs),
    )


def train(env, iterations):
    """Train, and return value and action probabilities as a function of (step, sign)."""
    config = PPOConfig(
        num_envs=32,
        rollout_steps=8,
        minibatch=64,
        epochs=2,
        learning_rate=5e-3,
        decay_learning_rate=True,  # so that the result does not depend on the last update
        discount=DISCOUNT,
        entropy_cost=0.0,
    )
    trainer = PPO(config, env, build, iterations, all_devices(1))
    state = trainer.init(seed=0)
    for _ in range(iterations):
        state, _ = trainer.iterate(state)
    assert int(state.learner.skipped) == 0
    policy = make_policy(trainer.learner.definition, state.weights)

    def answer(step, sign):
        board = jnp.array([[[[step, sign]]]], jnp.float32)
        output = policy(board)
        return float(output.value[0]), np.asarray(jax.nn.softmax(output.distribution.logits[0]))

    return answer


@pytest.mark.parametrize(
    ("env", "answers"),
    [
        pytest.param(OneStep(), {(0, 0): 1.0, (0, 1): 1.0}, marks=thorough),
        pytest.param(TwoSteps(), {(0, 0): DISCOUNT, (1, 0): 1.0}, marks=thorough),
        (TimeOut(), {(0, 0): 1 / (1 - DISCOUNT)}),
    ],
)
def test_values_are_learned(env, answers):
    answer = train(env, 60)
    for (step, sign), value in answers.items():
        assert answer(step, sign)[0] == pytest.approx(value, rel=0.05), (step, sign)


def test_the_action_depends_on_the_observation():
    answer = train(SignalledAction(), 30)
    for sign in (0, 1):
        value, probabilities = answer(0, sign)
        assert probabilities[sign] > 0.95
        assert value == pytest.approx(1.0, abs=0.15)
