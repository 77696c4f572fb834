"""The KL between categorical policies, which decides when a loop halts, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax

from looped_actor.loop import Categorical

ACTIONS = 4
logits = arrays(np.float32, ACTIONS, elements=st.floats(-200, 200, width=32))


@jax.jit
def kl(p, q):
    return Categorical(p).kl(Categorical(q))


def exact_kl(p, q):
    """KL(p || q) of float32 logits, in float64; no term is negative, so nothing cancels."""
    log_p, log_q = (log_softmax(np.asarray(logit, np.float64)) for logit in (p, q))
    return np.sum(np.exp(log_p) * (log_p - log_q) - np.exp(log_p) + np.exp(log_q))


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        ([-89, 0], [0, -89], 89.0),
        ([-87, 0, 0], [0, 0, 0], np.log(1.5)),
        ([0, 0, 0], [-87, 0, 0], 87 / 3 + np.log(2 / 3)),
        ([200, 0], [200, 0], 0.0),
        ([-200, 200, 0], [200, -200, 0], 400.0),
    ],
)
def test_confident_policies(p, q, expected):
    found = float(kl(jnp.array(p, jnp.float32), jnp.array(q, jnp.float32)))
    assert found == pytest.approx(exact_kl(np.array(p), np.array(q)), rel=1e-5)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


@given(logits, logits)
@example(np.float32([-89, 0, -200, -200]), np.float32([0, -89, -200, -200]))
@example(np.float32([-200, 200, 0, 1]), np.float32([200, -200, 1, 0]))
def test_any_logits(p, q):
    found, expected = float(kl(p, q)), exact_kl(p, q)
    assert found >= 0
    assert found == pytest.approx(expected, rel=2e-5, abs=1e-6)


@given(logits, arrays(np.float32, ACTIONS, elements=st.floats(-0.0625, 0.0625, width=32)))
def test_policies_that_hardly_differ(p, change):
    """Relative precision of 1e-3 down to a hundredth of the usual threshold."""
    q = p + change
    expected = exact_kl(p, q)
    # A change of the logits is itself rounded where these are large: an absolute error of 1e-5 in the ratio.
    scale = max(1.0, float(np.abs(p).max()))
    assert float(kl(p, q)) == pytest.approx(expected, rel=1e-3 * scale, abs=1e-9 * scale**2)


def test_grows_as_policies_move_apart():
    """Along a line of logits, also where probabilities underflow."""
    distance = jnp.linspace(0, 200, 401)
    p = jnp.zeros((401, 3)).at[:, 0].set(distance)
    q = jnp.zeros((401, 3)).at[:, 1].set(distance)
    assert float(kl(p, q)[0]) == 0
    assert np.all(np.diff(np.asarray(kl(p, q), np.float64)) > 0)


def test_gradients_are_finite():
    p, q = jnp.array([[-200.0, 0, 200]]), jnp.array([[200.0, 0, -200]])
    for gradient in jax.grad(lambda p, q: kl(p, q).sum(), argnums=(0, 1))(p, q):
        assert jnp.isfinite(gradient).all()
