"""Advantages against the golden vectors, and against sums written out."""

import jax
import jax.numpy as jnp
import numpy as np

from looped_actor.algorithms.ppo import advantages


def test_the_golden_rollout(golden, x64):
    given = golden("gae.npz")
    assert given["terminated"].any()
    assert given["truncated"].any()
    found = advantages(
        *(jnp.asarray(given[name]) for name in ("reward", "value", "bootstrap", "terminated", "truncated")),
        discount=float(given["gamma"]),
        gae_lambda=float(given["lam"]),
    )
    np.testing.assert_allclose(found.advantage, given["advantage"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.value_target, given["value_target"], rtol=0, atol=1e-6)


def test_without_ends_it_is_the_discounted_sum_of_surprises(x64):
    random = np.random.default_rng(0)
    reward, value, bootstrap = random.normal(size=(7, 3)), random.normal(size=(7, 3)), random.normal(size=3)
    never = jnp.zeros((7, 3), bool)
    found = jax.jit(advantages, static_argnames=("discount", "gae_lambda"))(
        reward, value, bootstrap, never, never, discount=0.9, gae_lambda=0.8
    )
    after = np.vstack([value[1:], bootstrap])
    surprise = reward + 0.9 * after - value
    for t in range(7):
        total = sum((0.9 * 0.8) ** (s - t) * surprise[s] for s in range(t, 7))
        np.testing.assert_allclose(found.value_target[t], value[t] + total, rtol=1e-12)


def test_a_time_out_teaches_nothing_and_an_end_cuts(x64):
    reward, value = jnp.ones((3, 2)), jnp.full((3, 2), 5.0)
    middle = jnp.array([[False, False], [True, False], [False, False]])
    found = advantages(reward, value, jnp.full(2, 7.0), middle, middle[:, ::-1], discount=0.5, gae_lambda=1.0)
    assert found.advantage[1].tolist() == [1 - 5, 0]  # ended: nothing to come; timed out: unknown
    assert found.value_target[1].tolist() == [1, 5]
    assert found.value_target[0].tolist() == [1 + 0.5 * 1, 1 + 0.5 * 5]  # the time-out is bootstrapped from
    assert found.value_target[2].tolist() == [1 + 0.5 * 7] * 2
