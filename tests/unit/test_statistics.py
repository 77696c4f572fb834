"""Running statistics of observations."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from looped_actor.algorithms import zero_statistics


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 2**31))
def test_batches_add_up_to_the_whole(sizes, seed):
    random = np.random.default_rng(seed)
    batches = [random.normal(100, 3, size=(n, 2, 5)).astype(np.float32) for n in sizes]
    statistics = zero_statistics(5)
    for batch in batches:
        statistics = statistics.update(jnp.asarray(batch))
    whole = np.concatenate(batches).reshape(-1, 5)
    np.testing.assert_allclose(statistics.mean, whole.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.deviation, whole.std(axis=0), rtol=1e-2, atol=1e-3)
    assert statistics.seen == len(whole)


def test_planes_come_out_with_mean_0_and_variance_1():
    planes = np.random.default_rng(0).integers(0, 2, size=(50, 6, 7, 3)).astype(np.uint8)
    planes[..., 2] = 1  # a plane that never changes is moved, not blown up
    scaled = zero_statistics(3).update(jnp.asarray(planes)).normalize(jnp.asarray(planes))
    np.testing.assert_allclose(scaled.mean(axis=(0, 1, 2)), 0, atol=1e-4)
    np.testing.assert_allclose(scaled[..., :2].std(axis=(0, 1, 2)), 1, rtol=1e-4)
    assert (scaled[..., 2] == 0).all()


def test_before_anything_was_seen_nothing_changes():
    assert (zero_statistics(2).normalize(jnp.array([[3.0, -1.0]])) == jnp.array([[3.0, -1.0]])).all()


def test_a_batch_that_is_not_finite_is_left_out():
    before = zero_statistics(2).update(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    after = before.update(jnp.array([[jnp.nan, 1.0]]))
    assert (after.mean == before.mean).all()
    assert after.seen == 2
