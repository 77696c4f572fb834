"""Datasets as OGBench writes them, and goals in hindsight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from looped_actor.offline import DatasetError, EpisodeIndex, GoalSampling, draw, from_ogbench, open_dataset


def arrays(lengths, seed=0, size=3, actions=2):
    """Episodes of given lengths, as a file holds them."""
    chance = np.random.default_rng(seed)
    rows = sum(lengths)
    terminals = np.zeros(rows, bool)
    terminals[np.cumsum(lengths) - 1] = True
    return {
        "observations": chance.normal(size=(rows, size)).astype(np.float32),
        "actions": chance.uniform(-1, 1, (rows, actions)).astype(np.float32),
        "terminals": terminals,
    }


def index_of(lengths):
    return from_ogbench({**(made := arrays(lengths)), "valids": ~made["terminals"]}).index


def equal(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip((a.states, *a.index), (b.states, *b.index), strict=True)
    ) and np.array_equal(a.actions[a.index.begins], b.actions[b.index.begins])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_all_ways_to_open_a_file_agree(save, tmp_path):
    ogbench = pytest.importorskip("ogbench")
    path = tmp_path / "world-play-v0.npz"
    save(path, **arrays([4, 2, 7]))
    opened = open_dataset(path)
    assert (opened.transitions, opened.episodes) == (10, 3)
    assert opened.index.begins.tolist() == [0, 1, 2, 4, 6, 7, 8, 9, 10, 11]
    assert opened.index.last.tolist() == [2] * 4 + [4] * 2 + [11] * 7
    for compact in (True, False):
        theirs = ogbench.load_dataset(path, compact_dataset=compact)
        assert equal(from_ogbench(theirs), opened)
        # Their own idea of what follows what.
        if not compact:
            np.testing.assert_array_equal(theirs["next_observations"], opened.states[opened.index.begins + 1])
    for _ in range(2):  # a compressed file is unpacked once, and found again
        mapped = open_dataset(path, mapped=True)
        assert isinstance(mapped.states, np.memmap)
        assert equal(mapped, opened)


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
        ({"observations": np.array([{}] * 13)}, "this is no dataset as OGBench writes it"),
    ],
)
@pytest.mark.parametrize("mapped", [False, True])
def test_what_is_wrong_with_a_file_is_said(change, message, mapped, tmp_path):
    path = tmp_path / "broken.npz"
    made = {name: array for name, array in (arrays([4, 2, 7]) | change).items() if array is not None}
    np.savez(path, **made)
    with pytest.raises(DatasetError) as error:
        open_dataset(path, mapped)
    assert message in str(error.value)
    assert "broken.npz" in str(error.value)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(DatasetError, match="there is no such file"):
        open_dataset(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DatasetError, match="no dataset as OGBench writes it"):
        open_dataset(tmp_path / "text.npz")


def drawn(index, count, sampling=None, discount=0.9, seed=0):
    key = jax.random.key(seed)
    one = lambda i: draw(index, jax.random.fold_in(key, i), sampling or GoalSampling(), discount)  # noqa: E731
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jnp.arange(count)))


def expected_goals(index, sampling, discount):
    """Probabilities of (row, value goal) and of (row, actor goal), by the definitions, row by row."""
    rows, begins = len(index.last), index.begins
    value, actor = np.zeros((rows, rows)), np.zeros((rows, rows))
    for row in begins:
        last = index.last[row]
        value[row, row] += sampling.current
        value[row, begins] += sampling.random / len(begins)
        for ahead in range(1, 2000):
            probability = (1 - discount) * discount ** (ahead - 1)
            value[row, min(row + ahead, last)] += sampling.future * probability
            actor[row, min(row + ahead, last)] += sampling.near_actor * probability
        later = np.arange(min(row + 1, last), last + 1)
        actor[row, later] += (not sampling.near_actor) / len(later)
    return value / len(begins), actor / len(begins)


@pytest.mark.parametrize("sampling", [GoalSampling(), GoalSampling(0.1, 0.2, 0.7, near_actor=True)])
def test_a_million_draws_have_the_stated_frequencies(sampling):
    """Chi-square over every pair of row and goal that can occur; those that cannot, never do."""
    index, count = index_of([6, 2, 9]), 1_000_000
    found = drawn(index, count, sampling)
    for goals, expected in zip(
        (found.value_goal, found.actor_goal), expected_goals(index, sampling, 0.9), strict=True
    ):
        seen = np.zeros_like(expected)
        np.add.at(seen, (found.row, goals), 1)
        possible = expected > 0
        assert seen[~possible].sum() == 0
        assert possible.sum() > 30
        result = scipy.stats.chisquare(seen[possible], count * expected[possible])
        assert result.pvalue > 1e-3


def test_the_chi_square_would_notice():
    """The same check against shares that are off by a hundredth."""
    index = index_of([6, 2, 9])
    found = drawn(index, 1_000_000)
    expected, _ = expected_goals(index, GoalSampling(0.21, 0.49, 0.3), 0.9)
    seen = np.zeros_like(expected)
    np.add.at(seen, (found.row, found.value_goal), 1)
    possible = expected > 0
    assert scipy.stats.chisquare(seen[possible], 1_000_000 * expected[possible]).pvalue < 1e-9


@given(st.lists(st.integers(2, 30), min_size=1, max_size=12), st.integers(0, 2**31 - 1))
def test_goals_stay_within_their_episode(lengths, seed):
    index = index_of(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    # Only future goals: what is left of a mixture where nothing may cross.
    found = drawn(index, 2_000, GoalSampling(0, 1, 0), seed=seed)
    ends = np.cumsum(lengths) - 1
    for goal in (found.value_goal, found.actor_goal):
        assert (episode[goal] == episode[found.row]).all()
        assert (goal < ends[episode[goal]]).all(), "the last state of an episode begins no transition"
        last = found.row == index.last[found.row]
        assert (goal[last] == found.row[last]).all()
        assert (goal[~last] > found.row[~last]).all()
    assert np.isin(found.row, index.begins).all()
    anywhere = drawn(index, 2_000, GoalSampling(0, 0, 1), seed=seed)
    assert np.isin(anywhere.value_goal, index.begins).all()


def test_shares_must_make_sense():
    with pytest.raises(ValueError, match="sum to 1"):
        GoalSampling(0.5, 0.5, 0.5)


def test_the_index_is_small_integers():
    index = index_of([3, 3])
    assert isinstance(index, EpisodeIndex)
    assert index.begins.dtype == index.last.dtype == np.int32
