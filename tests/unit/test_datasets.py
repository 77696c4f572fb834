"""Datasets in OGBench's format, and goals in hindsight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from looped_actor.offline import (
    DatasetError,
    EpisodeIndex,
    GoalSampling,
    from_ogbench,
    open_dataset,
    sample_rows,
)


def make_arrays(lengths, seed=0, size=3, actions=2):
    """Return episodes of these lengths as the arrays of a file."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    terminals = np.zeros(rows, bool)
    terminals[np.cumsum(lengths) - 1] = True
    return {
        "observations": rng.normal(size=(rows, size)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, actions)).astype(np.float32),
        "terminals": terminals,
    }


def make_index(lengths):
    arrays = make_arrays(lengths)
    return from_ogbench({**arrays, "valids": ~arrays["terminals"]}).index


def is_equal(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip((a.states, *a.index), (b.states, *b.index), strict=True)
    ) and np.array_equal(a.actions[a.index.transition_rows], b.actions[b.index.transition_rows])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_open_dataset_agrees_with_ogbench(save, tmp_path):
    ogbench = pytest.importorskip("ogbench")
    path = tmp_path / "env-play-v0.npz"
    save(path, **make_arrays([4, 2, 7]))
    opened = open_dataset(path)
    assert (opened.transitions, opened.episodes) == (10, 3)
    assert opened.index.transition_rows.tolist() == [0, 1, 2, 4, 6, 7, 8, 9, 10, 11]
    assert opened.index.last_rows.tolist() == [2] * 4 + [4] * 2 + [11] * 7
    for compact in (True, False):
        theirs = ogbench.load_dataset(path, compact_dataset=compact)
        assert is_equal(from_ogbench(theirs), opened)
        if not compact:
            next_states = opened.states[opened.index.transition_rows + 1]
            np.testing.assert_array_equal(theirs["next_observations"], next_states)
    for _ in range(2):  # a file is unpacked once, and found again
        mapped = open_dataset(path, on_disk=True)
        assert isinstance(mapped.states, np.memmap)
        assert is_equal(mapped, opened)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terminals": None}, "there is no 'terminals' in it"),
        ({"observations": np.zeros((13, 3), int)}, "observations are int64[13, 3]"),
        ({"observations": np.zeros(13)}, "they must be rows of real numbers"),
        ({"observations": np.full((13, 3), np.nan)}, "observations of row 0 are not all finite"),
        ({"actions": np.zeros((12, 2))}, "13 observations, 12 actions and 13 terminals do not fit together"),
        ({"actions": np.full((13, 2), 3.0)}, "actions go beyond [-1, 1]"),
        ({"terminals": np.zeros(13)}, "the last row does not end its episode"),
        ({"terminals": np.ones(13)}, "the episode that ends in row 0 has no transition"),
        ({"observations": np.array([{}] * 13)}, "this is not a dataset as OGBench writes it"),
    ],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_an_invalid_file_is_refused_with_the_reason(change, message, on_disk, tmp_path):
    path = tmp_path / "broken.npz"
    arrays = {name: array for name, array in (make_arrays([4, 2, 7]) | change).items() if array is not None}
    np.savez(path, **arrays)
    with pytest.raises(DatasetError) as error:
        open_dataset(path, on_disk)
    assert message in str(error.value)
    assert "broken.npz" in str(error.value)


def test_a_missing_file_and_one_of_another_format_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="there is no such file"):
        open_dataset(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DatasetError, match="not a dataset as OGBench writes it"):
        open_dataset(tmp_path / "text.npz")


def sample(index, count, sampling=None, discount=0.9, seed=0):
    """Draw rows for many examples."""
    key = jax.random.key(seed)

    def sample_one(number):
        return sample_rows(index, jax.random.fold_in(key, number), sampling or GoalSampling(), discount)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(sample_one))(jnp.arange(count)))


def goal_probabilities(index, sampling, discount):
    """Return the probabilities of (row, value goal) and (row, actor goal), computed row by row."""
    rows, starts = len(index.last_rows), index.transition_rows
    value, actor = np.zeros((rows, rows)), np.zeros((rows, rows))
    for row in starts:
        last = index.last_rows[row]
        value[row, row] += sampling.current
        value[row, starts] += sampling.random / len(starts)
        for ahead in range(1, 2000):
            probability = (1 - discount) * discount ** (ahead - 1)
            value[row, min(row + ahead, last)] += sampling.future * probability
            actor[row, min(row + ahead, last)] += sampling.near_actor * probability
        later = np.arange(min(row + 1, last), last + 1)
        actor[row, later] += (not sampling.near_actor) / len(later)
    return value / len(starts), actor / len(starts)


@pytest.mark.parametrize("sampling", [GoalSampling(), GoalSampling(0.1, 0.2, 0.7, near_actor=True)])
def test_a_million_draws_have_the_stated_probabilities(sampling):
    """Chi-squared test over all pairs of row and goal that are possible; impossible pairs never occur."""
    index, count = make_index([6, 2, 9]), 1_000_000
    rows = sample(index, count, sampling)
    for goals, expected in zip(
        (rows.value_goal, rows.actor_goal), goal_probabilities(index, sampling, 0.9), strict=True
    ):
        counts = np.zeros_like(expected)
        np.add.at(counts, (rows.row, goals), 1)
        possible = expected > 0
        assert counts[~possible].sum() == 0
        assert possible.sum() > 30
        result = scipy.stats.chisquare(counts[possible], count * expected[possible])
        assert result.pvalue > 1e-3


def test_a_million_draws_reject_probabilities_that_are_off_by_one_percent():
    index = make_index([6, 2, 9])
    rows = sample(index, 1_000_000)
    expected, _ = goal_probabilities(index, GoalSampling(0.21, 0.49, 0.3), 0.9)
    counts = np.zeros_like(expected)
    np.add.at(counts, (rows.row, rows.value_goal), 1)
    possible = expected > 0
    assert scipy.stats.chisquare(counts[possible], 1_000_000 * expected[possible]).pvalue < 1e-9


@given(st.lists(st.integers(2, 30), min_size=1, max_size=12), st.integers(0, 2**31 - 1))
def test_goals_stay_within_their_episode(lengths, seed):
    index = make_index(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    # Future goals only: goals from anywhere in the dataset may be in another episode.
    rows = sample(index, 2_000, GoalSampling(0, 1, 0), seed=seed)
    ends = np.cumsum(lengths) - 1
    for goal in (rows.value_goal, rows.actor_goal):
        assert (episode[goal] == episode[rows.row]).all()
        assert (goal < ends[episode[goal]]).all(), "no transition starts at the last state of an episode"
        last = rows.row == index.last_rows[rows.row]
        assert (goal[last] == rows.row[last]).all()
        assert (goal[~last] > rows.row[~last]).all()
    assert np.isin(rows.row, index.transition_rows).all()
    anywhere = sample(index, 2_000, GoalSampling(0, 0, 1), seed=seed)
    assert np.isin(anywhere.value_goal, index.transition_rows).all()


def test_shares_of_goals_sum_to_one():
    with pytest.raises(ValueError, match="sum to 1"):
        GoalSampling(0.5, 0.5, 0.5)


def test_the_index_has_32_bit_integers():
    index = make_index([3, 3])
    assert isinstance(index, EpisodeIndex)
    assert index.transition_rows.dtype == index.last_rows.dtype == np.int32
