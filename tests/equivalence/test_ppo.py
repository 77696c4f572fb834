"""The PPO loss and its gradient against NumPy in float64, written out example by example."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_actor import Categorical
from looped_actor.algorithms import PPOConfig
from looped_actor.algorithms.online import shuffle_examples
from looped_actor.algorithms.optim import apply_gradients, init_learner
from looped_actor.algorithms.ppo import PPOBatch, normalize_advantages, ppo_loss
from looped_actor.loop import MeanGradient, Packed, empty_carry, mean_gradient
from looped_actor.loop.rng import Stream, addressed_key

BATCH, FEATURES, ACTIONS = 24, 5, 3
CONFIG = PPOConfig(num_envs=4, rollout_steps=6, minibatch=24, clip=0.2, entropy_cost=0.03, value_cost=0.7)


@pytest.fixture
def case():
    random = np.random.default_rng(1)
    weights = random.normal(size=(FEATURES, ACTIONS + 1))
    example = PPOBatch(
        observation=random.normal(size=(BATCH, FEATURES)),
        action=random.integers(ACTIONS, size=BATCH),
        log_prob=np.log(random.uniform(0.1, 0.9, BATCH)),
        advantage=random.normal(size=BATCH),
        value_target=random.normal(size=BATCH),
        loops=np.ones(BATCH, np.int32),
        carry=empty_carry(BATCH),
    )
    return weights, example


def numpy_loss(weights, example):
    """Eq. 3 of the paper, one example after the other; and how many ratios were clipped."""
    total, clipped = 0.0, 0
    for i in range(BATCH):
        outputs = example.observation[i] @ weights
        logits, value = outputs[:ACTIONS], outputs[ACTIONS]
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        ratio = probabilities[example.action[i]] / np.exp(example.log_prob[i])
        advantage = example.advantage[i]
        policy = -min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        entropy = -(probabilities * np.log(probabilities)).sum()
        total += policy + 0.7 * (value - example.value_target[i]) ** 2 - 0.03 * entropy
        clipped += abs(ratio - 1) > 0.2
    return total / BATCH, clipped


def net_of(weights):
    def policy(observation, *, expected_loops, carry=None):
        outputs = observation @ weights
        latent = jnp.zeros((len(outputs), 1))
        loop = SimpleNamespace(loops=expected_loops, weighted_loop_cost=expected_loops.sum(), latent=latent)
        return SimpleNamespace(
            distribution=Categorical(outputs[:, :ACTIONS]), value=outputs[:, ACTIONS], loop=loop
        )

    return policy


def test_loss_and_gradient_equal_numpy(case, x64):
    weights, example = case
    arrays = jax.tree.map(jnp.asarray, example)
    expected, clipped = numpy_loss(weights, example)
    assert 0 < clipped < BATCH  # both branches of the minimum are at work

    def loss(policy, examples):
        return ppo_loss(policy, examples, CONFIG)

    def make_policy(weights, execution):
        return net_of(weights)

    # 24 examples in microbatches of at most 7, of which the last is not full.
    found, metrics, gradient = mean_gradient(loss, make_policy, jnp.asarray(weights), arrays, Packed(7))
    assert abs(found - expected) < 1e-12
    assert abs(metrics["clipped"] * BATCH - clipped) < 1e-12
    for place in np.ndindex(weights.shape):
        nudge = np.zeros_like(weights)
        nudge[place] = 1e-6
        slope = (numpy_loss(weights + nudge, example)[0] - numpy_loss(weights - nudge, example)[0]) / 2e-6
        assert abs(gradient[place] - slope) < 1e-8, place


def test_advantages_are_normalised_over_the_whole_rollout(x64):
    advantage = np.random.default_rng(0).normal(3, 5, size=(6, 4))
    found = normalize_advantages(jnp.asarray(advantage))
    np.testing.assert_allclose(found, (advantage - advantage.mean()) / advantage.std(), rtol=1e-7)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_skipped_and_counted(poison):
    import optax

    optimizer = optax.adam(0.1)
    learner = init_learner({"w": jnp.ones(3)}, optimizer)

    def step(learner, factor):
        loss, gradient = jax.value_and_grad(lambda p: (p["w"] ** 2).sum() * factor)(learner.parameters)
        return apply_gradients(learner, optimizer, MeanGradient(loss, {}, gradient))

    good, update = step(learner, 1.0)
    assert bool(update.applied)
    assert int(good.skipped) == 0
    bad, update = step(good, poison)
    bad, update = step(bad, poison)
    assert not bool(update.applied)
    for before, after in zip(
        jax.tree.leaves((good.parameters, good.opt_state)),
        jax.tree.leaves((bad.parameters, bad.opt_state)),
        strict=True,
    ):
        assert (before == after).all()
    assert (int(bad.skipped), int(bad.skipped_in_a_row)) == (2, 2)
    recovered, _ = step(bad, 1.0)
    assert (int(recovered.skipped), int(recovered.skipped_in_a_row)) == (2, 0)


@pytest.mark.parametrize(("envs", "steps", "minibatch"), [(8, 3, 8), (8, 6, 4), (6, 4, 8), (4, 4, 16)])
def test_every_example_is_in_one_minibatch_of_an_epoch(envs, steps, minibatch):
    """Whatever the number of devices, and each minibatch takes as many from every group."""
    config = PPOConfig(num_envs=envs, rollout_steps=steps, minibatch=minibatch, epochs=2)
    groups = np.gcd(envs, minibatch)
    key = addressed_key(jax.random.key_data(jax.random.key(3)), Stream.SHUFFLE, 5)

    def rows_of(devices):
        """Minibatches as sets of (step, environment), put together from the parts of each device."""
        parts = []
        for copies in np.split(np.arange(envs), devices):
            own = jnp.asarray(copies, jnp.int32)
            local = np.asarray(shuffle_examples(config, int(groups), own, key))
            parts.append([{(r // len(copies), copies[r % len(copies)]) for r in rows} for rows in local])
        return [set().union(*together) for together in zip(*parts, strict=True)]

    one = rows_of(1)
    per_epoch = len(one) // 2
    for epoch in (one[:per_epoch], one[per_epoch:]):
        assert sum(map(len, epoch)) == envs * steps
        assert set().union(*epoch) == {(t, e) for t in range(steps) for e in range(envs)}
        for chosen in epoch:
            counts = np.bincount([e // (envs // groups) for _, e in chosen], minlength=groups)
            assert (counts == minibatch // groups).all()
    assert per_epoch == 1 or one[:per_epoch] != one[per_epoch:]
    for devices in range(2, groups + 1):
        if groups % devices == 0:
            assert rows_of(devices) == one
