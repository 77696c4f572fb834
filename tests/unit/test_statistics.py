"""Running statistics of observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_actor.algorithms import RunningStatistics, zero_statistics
from looped_actor.models import GoalObservation
from looped_actor.training.sharding import DATA


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 2**31))
def test_batches_add_up_to_the_whole(sizes, seed):
    random = np.random.default_rng(seed)
    batches = [random.normal(100, 3, size=(n, 2, 5)).astype(np.float32) for n in sizes]
    statistics = zero_statistics(5)
    for batch in batches:
        statistics = statistics.update(jnp.asarray(batch))
    whole = np.concatenate(batches).reshape(-1, 5)
    np.testing.assert_allclose(statistics.mean, whole.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.std, whole.std(axis=0), rtol=1e-2, atol=1e-3)
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


@given(st.lists(st.integers(1, 20), min_size=1, max_size=3), st.integers(0, 2**31))
def test_devices_share_one_count(sizes, seed):
    """Two devices with half of every batch each have the statistics of one device with the whole."""
    random = np.random.default_rng(seed)
    whole, halves = zero_statistics(3), jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), zero_statistics(3))
    for size in sizes:
        batch = jnp.asarray(random.normal(5, 2, size=(2, size, 3)).astype(np.float32))
        update = jax.vmap(lambda one, rows: one.update(rows, DATA), axis_name=DATA)
        whole, halves = whole.update(batch), update(halves, batch)
    for ours, theirs in zip(halves, whole, strict=True):
        np.testing.assert_array_equal(ours[0], ours[1])
        np.testing.assert_allclose(ours[0], theirs, rtol=1e-4)


def test_state_and_goal_have_the_same_statistics():
    state, goal = jnp.array([[1.0, 2.0], [3.0, 6.0]]), jnp.array([[3.0, 4.0], [2.0, 2.0]])
    statistics = zero_statistics(2).update(state)
    normalized = statistics.normalize(GoalObservation(state, goal))
    assert isinstance(normalized, GoalObservation)
    np.testing.assert_allclose(statistics.std, [1, 2])
    np.testing.assert_allclose(normalized.state, [[-1, -1], [1, 1]])
    np.testing.assert_allclose(normalized.goal, [[1, 0], [0, -1]])


@pytest.mark.parametrize(("shape", "floor"), [((1,), 1e-3), ((1, 1, 1), 1e-6)])
def test_the_floor_of_single_cells_is_lower(shape, floor):
    statistics: RunningStatistics = zero_statistics(shape).update(jnp.ones((4, *shape)))
    np.testing.assert_allclose(statistics.normalize(jnp.full((1, *shape), 1.5)).ravel(), 0.5 / floor)


def test_float64_stays_float64(x64):
    statistics = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), zero_statistics(2))
    statistics = statistics.update(jnp.ones((3, 2), jnp.uint8))
    assert {leaf.dtype for leaf in statistics} == {np.dtype(np.float64)}
    assert statistics.normalize(jnp.ones((1, 2), jnp.float32)).dtype == np.float64
