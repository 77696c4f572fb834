"""A policy learned by PPO in which harder states need more loops, by an amount that can be computed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from scipy.special import log_softmax

from looped_actor import Actor, CoreConfig, LoopedTrunk, PolicyKL, ReadoutLogits, ValueHead
from looped_actor.algorithms import PPO, PPOConfig, make_policy
from looped_actor.envs import Outcome
from looped_actor.models.tokenizers import Tokens
from looped_actor.training.sharding import all_devices

WIDTH = 8
HALTING = PolicyKL(threshold=1e-4, max_loops=64)
DIFFICULTIES = (-1, 0, 1)


class Task(NamedTuple):
    sign: Int[Array, ""]
    difficulty: Int[Array, ""]


@jax.tree_util.register_static
class SignalledAction:
    """The right action is shown; the difficulty says how slowly the core takes it in. One step."""

    time_limit, num_actions = 2, 2

    def reset(self, key) -> Task:
        sign, difficulty = jax.random.split(key)
        return Task(
            jax.random.bernoulli(sign).astype(jnp.int32), jax.random.randint(difficulty, (), -1, 2, jnp.int32)
        )

    def observe(self, state: Task) -> Float[Array, "1 1 2"]:
        return jnp.stack([state.sign, state.difficulty]).astype(jnp.float32)[None, None]

    def step(self, state: Task, action: Int[Array, ""]) -> tuple[Task, Outcome]:
        right = action == state.sign
        return state, Outcome(jnp.where(right, 1.0, -1.0), right, jnp.bool_(True))


class SignTokenizer(nnx.Module):
    """One token: the sign by a learned map, and the difficulty as it is in the last channel."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.width = WIDTH
        self.encoder = nnx.Linear(1, WIDTH - 1, rngs=rngs)

    def __call__(self, observation: Float[Array, "b 1 1 2"]) -> Tokens:
        sign, difficulty = observation[:, 0, :, :1], observation[:, 0, :, 1:]
        return Tokens(jnp.concatenate([self.encoder(sign), difficulty], axis=-1), (1, 1))

    def flops(self, tokens: int) -> int:
        return 0


class Relaxation(nnx.Module):
    """z moves towards x by the same share of the way in every loop; harder states by a smaller share."""

    def __call__(self, z: Float[Array, "b t d"], x: Float[Array, "b t d"], grid) -> Float[Array, "b t d"]:
        return z + rate(x, jnp) * (x - z)

    def flops(self, tokens: int) -> int:
        return 0


def rate(x, numpy):
    return numpy.exp(-1 - 0.8 * x[..., -1:])


def build(rngs):
    trunk = LoopedTrunk(CoreConfig(width=WIDTH, heads=1, layers=1), HALTING, convolution=True, rngs=rngs)
    trunk.core = Relaxation()
    return Actor(
        SignTokenizer(rngs=rngs), trunk, ReadoutLogits(WIDTH, 2, rngs=rngs), ValueHead(WIDTH, rngs=rngs)
    )


def expected_loops(net, x: np.ndarray) -> int:
    """Loops from the closed form z_l = x + (1 - rate)^l (z_0 - x), in float64."""
    kernel, bias = (
        np.asarray(part[...], np.float64) for part in (net.policy.decoder.kernel, net.policy.decoder.bias)
    )
    start = np.asarray(net.trunk.start[...], np.float64)

    def policy(loop: int) -> np.ndarray:
        z = x + (1 - rate(x, np)) ** loop * (start - x)
        return log_softmax(z / np.sqrt((z**2).mean() + 1e-5) @ kernel + bias)

    for loop in range(HALTING.min_loops, HALTING.max_loops + 1):
        before, now = policy(loop - 1), policy(loop)
        if np.exp(before) @ (before - now) < HALTING.threshold:
            return loop
    return HALTING.max_loops


def test_harder_states_get_more_loops():
    config = PPOConfig(
        num_envs=32, rollout_steps=8, minibatch=64, epochs=2, learning_rate=5e-3, entropy_cost=0.0
    )
    trainer = PPO(config, SignalledAction(), build, 30, all_devices(1))
    state = trainer.init(seed=0)
    for _ in range(30):
        state, _ = trainer.iterate(state)
    definition, weights = trainer.learner.definition, state.weights
    net = nnx.merge(definition, weights.parameters, weights.fixed)
    for sign in (0, 1):
        boards = jnp.array([[[[sign, difficulty]]] for difficulty in DIFFICULTIES], jnp.float32)
        decision = make_policy(definition, weights)(boards)
        probability = np.exp(decision.distribution.log_probabilities[:, sign])
        assert (probability > 0.9).all()  # hard states are decided as well as easy ones
        loops = decision.loop.loops.tolist()
        embedded = np.asarray(net.tokenizer(weights.statistics.normalize(boards)).embedding[:, 0], np.float64)
        assert loops == [expected_loops(net, x) for x in embedded]
        assert loops[0] < loops[1] < loops[2] < HALTING.max_loops
