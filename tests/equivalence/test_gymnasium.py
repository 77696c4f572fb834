"""Training on Gymnasium against training in JAX: the same worlds, the same draws, the same run."""

import csv
import io
import os
import pathlib
import zipfile

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from helpers import relative, thorough
from looped_actor import (
    Actor,
    Boxoban,
    CoreConfig,
    GaussianMeanAndStd,
    LoopedTrunk,
    PlanesTokenizer,
    PolicyKL,
    ReadoutLogits,
    ValueHead,
    VectorTokenizer,
)
from looped_actor.algorithms import PPO, PPOConfig
from looped_actor.envs import VectorEnv
from looped_actor.envs.gymnasium import VectorGym
from looped_actor.puzzles.banks import starter_bank
from looped_actor.training import Schedule, fit
from looped_actor.training.fit import to_numbers
from looped_actor.training.sharding import all_devices

CONFIG = PPOConfig(num_envs=4, rollout_steps=6, minibatch=8, epochs=1, learning_rate=1e-3)
GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "runs" / "gymnasium.zip"
SAME_STEP = {"autoreset_mode": AutoresetMode.SAME_STEP}


def build(rngs, carry_latent=False):
    return Actor(
        PlanesTokenizer(4, 8, rngs=rngs),
        LoopedTrunk(CoreConfig(8, 1, 1), PolicyKL(max_loops=3), carry_latent=carry_latent, rngs=rngs),
        ReadoutLogits(8, 4, rngs=rngs),
        ValueHead(8, rngs=rngs),
    )


class SameDraws(VectorGym):
    """Starts the levels that a run in JAX with this seed would start."""

    def reset(self, *, seed=None, options=None):
        root = jax.random.key_data(jax.random.key(seed))
        self._state, observation = VectorEnv.reset(self._vector, root)
        return np.asarray(observation), {}


@pytest.mark.parametrize("carries", [pytest.param(False, marks=thorough), True])
def test_a_run_on_the_host_is_the_run_on_the_devices(carries):
    env, net = Boxoban(starter_bank("boxoban").on_device(), time_limit=4), lambda r: build(r, carries)
    trainers = (
        PPO(CONFIG, env, net, 2, all_devices(1)),
        PPO(CONFIG, SameDraws(env, 4), net, 2, all_devices(1)),
    )
    (ours, metrics), (theirs, told) = (_run(trainer) for trainer in trainers)
    assert metrics["episodes"] == told["episodes"] > 0
    for name in (
        "success",
        "episode_return",
        "episode_length",
        "loops",
        "capped",
        "loss",
        "explained_variance",
    ):
        assert told[name] == pytest.approx(metrics[name], rel=1e-4), name
    assert (theirs.env_state.observation == ours.env_state.observation).all()
    for mine, other in zip(jax.tree.leaves(ours.weights), jax.tree.leaves(theirs.weights), strict=True):
        assert relative(other, mine) < 1e-4


def test_a_run_is_what_it_was(tmp_path, x64):
    """As commit 395f374 made it, up to rounding on another processor.

    Initial weights are drawn in float32, and a truncated normal differs by 1e-7 between the compiler's
    levels of optimisation; everything after the draw is in float64.
    """
    env = Boxoban(starter_bank("boxoban").on_device(), time_limit=4)
    trainer = PPO(CONFIG, SameDraws(env, 4), build, 2, all_devices(1), dtype=jnp.float64)
    same = {"seed": 3, "fingerprint": "", "schedule": Schedule(4, 100, 100)}
    fit(trainer, tmp_path, **same, evaluate=lambda state: {"success": 0.0, "loops": 1.0})
    with zipfile.ZipFile(GOLDEN) as file:
        expected = list(csv.DictReader(io.TextIOWrapper(file.open("metrics.csv"))))
    found = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    precise = {"rel": 1e-5, "abs": 1e-7} if os.environ.get("OPTIMISED") else {"rel": 1e-9, "abs": 1e-12}
    for ours, theirs in zip(found, expected, strict=True):
        for name, value in theirs.items():
            assert float(ours[name]) == pytest.approx(float(value), **precise), name


def _run(trainer):
    state, _ = trainer.iterate(trainer.init(seed=3))
    state, metrics = trainer.iterate(state)
    return state, to_numbers(trainer, metrics)


class Target(gymnasium.Env):
    """Continuous actions: the reward is how near they come to what is seen."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-0.5, 0.5, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen, {}

    def step(self, action):
        assert self.action_space.contains(action)
        near = -float(np.abs(action - self.seen).sum())
        return self.seen, near, True, False, {"is_success": near > -0.5}


def test_vectors_of_actions_are_clipped_and_successes_counted():
    def build_gaussian(rngs):
        return Actor(
            VectorTokenizer(2, 8, rngs=rngs),
            LoopedTrunk(CoreConfig(8, 1, 1), PolicyKL(max_loops=2), convolution=False, rngs=rngs),
            GaussianMeanAndStd(8, 2, rngs=rngs),
            ValueHead(8, rngs=rngs),
        )

    envs = gymnasium.vector.SyncVectorEnv([Target] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    trainer = PPO(CONFIG, envs, build_gaussian, 1, all_devices(1))
    state, metrics = trainer.iterate(trainer.init(seed=0))
    assert float(metrics["episodes"]) == 24
    assert 0 < float(metrics["success"]) < 1
    assert float(metrics["episode_length"]) == 1
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.weights))


@pytest.mark.parametrize(
    ("envs", "message"),
    [
        (lambda: gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync"), "one step late"),
        (
            lambda: gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs=SAME_STEP),
            "num_envs is 4, and the environment has 3",
        ),
        (
            lambda: gymnasium.make_vec(
                "FrozenLake-v1", 4, vectorization_mode="sync", vector_kwargs=SAME_STEP
            ),
            "they must be arrays",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_said(envs, message):
    with pytest.raises(ValueError, match=message):
        PPO(CONFIG, envs(), build, 1, all_devices(1))


def test_a_head_for_other_actions_is_refused():
    env = Boxoban(starter_bank("boxoban").on_device())

    def three_ways(rngs):
        net = build(rngs)
        net.policy = ReadoutLogits(8, 3, rngs=rngs)
        return net

    trainer = PPO(CONFIG, VectorGym(env, 4), three_ways, 1, all_devices(1))
    with pytest.raises(
        ValueError, match=r"a Categorical of 3 actions, and the environment takes DiscreteActions\(count=4"
    ):
        trainer.iterate(trainer.init(seed=0))


def test_a_vector_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"has 3 scalars.*made for 4"):
        VectorTokenizer(4, 8, rngs=nnx.Rngs(0))(jnp.zeros((2, 3)))
