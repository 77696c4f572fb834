"""Distributions against SciPy-free closed forms and sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_actor.loop import Categorical, DiagonalGaussian, Distribution, UnitGaussian

KEYS = jax.random.split(jax.random.key(0), 6)


def make(family, key):
    a, b = jax.random.normal(key, (2, 4, 3))
    return {
        Categorical: lambda: Categorical(2 * a),
        UnitGaussian: lambda: UnitGaussian(a),
        DiagonalGaussian: lambda: DiagonalGaussian(a, 0.5 * b),
    }[family]()


@pytest.mark.parametrize("family", [Categorical, UnitGaussian, DiagonalGaussian])
def test_sampling_agrees_with_densities(family):
    p, q = make(family, KEYS[0]), make(family, KEYS[1])
    assert isinstance(p, Distribution)
    samples = jax.vmap(p.sample)(jax.random.split(KEYS[2], 100_000))
    log_p, log_q = jax.vmap(p.log_prob)(samples), jax.vmap(q.log_prob)(samples)
    np.testing.assert_allclose(-log_p.mean(0), p.entropy(), atol=0.03)
    ratio = log_p - log_q
    np.testing.assert_array_less(jnp.abs(ratio.mean(0) - p.kl(q)), 5 * ratio.std(0) / np.sqrt(100_000) + 1e-6)
    assert (p.kl(p) == 0).all()
    near = jax.tree.map(lambda a: a + 1e-3, p)
    assert (p.log_prob(p.mode()) >= p.log_prob(near.mode()) - 1e-6).all()


def test_categorical_probabilities_sum_to_one_and_mode_is_the_largest():
    p = make(Categorical, KEYS[3])
    every = jnp.stack([p.log_prob(jnp.full(4, a)) for a in range(3)])
    np.testing.assert_allclose(jnp.exp(every).sum(0), 1, rtol=1e-6)
    np.testing.assert_array_equal(p.mode(), every.argmax(0))


def test_masked_actions_are_impossible_and_harmless():
    logits = jnp.array([[0.3, -jnp.inf, -0.2]])
    p, q = Categorical(logits), Categorical(logits.at[0, 0].set(1.0))
    expected = Categorical(logits[:, ::2])
    np.testing.assert_allclose(p.entropy(), expected.entropy(), rtol=1e-6)
    np.testing.assert_allclose(p.kl(q), expected.kl(Categorical(q.logits[:, ::2])), rtol=1e-5)
    assert jnp.isinf(Categorical(jnp.zeros((1, 3))).kl(p)).all()
    gradient = jax.grad(lambda x: Categorical(jnp.where(jnp.isinf(logits), -jnp.inf, x)).entropy().sum())(
        logits * 0
    )
    assert jnp.isfinite(gradient).all()
    gradient = jax.grad(lambda x: p.kl(Categorical(jnp.where(jnp.isinf(logits), -jnp.inf, x))).sum())(
        logits * 0
    )
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("family", [Categorical, DiagonalGaussian])
def test_small_divergences_are_exact_in_float32(family):
    """Where halting decides, a naive KL is noise of 1e-7: a percent of 1e-5."""
    p = make(family, KEYS[4])
    shift = 3e-3 * jax.random.normal(KEYS[5], (4, 3))
    q = jax.tree.map(lambda a: a + shift, p)
    with jax.enable_x64(True):
        p64, q64 = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (p, q))
        if family is Categorical:
            probability = np.exp(p64.log_probabilities)
            exact = np.sum(probability * np.asarray(p64.log_probabilities - q64.log_probabilities), axis=-1)
        else:
            exact = np.asarray(p64.kl(q64))
    assert exact.max() < 1e-4
    np.testing.assert_allclose(p.kl(q), exact, rtol=1e-3)
    assert (p.kl(q) > 0).all()
