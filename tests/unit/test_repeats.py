"""States that are new in their episode, against a set of the boards that were seen."""

import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_evaluation import always

from looped_actor.algorithms import Acted
from looped_actor.envs import Boxoban
from looped_actor.evaluation.episodes import as_vector, play_gymnasium
from looped_actor.evaluation.facts import summary
from looped_actor.evaluation.levels import play_levels
from looped_actor.evaluation.repeats import find_new_states, fingerprint
from looped_actor.games import BoxobanBoard, Direction
from looped_actor.games.catalogue import BOXOBAN
from looped_actor.levels import make_bank


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=8), min_size=1, max_size=5)
)
def test_a_state_is_new_until_it_was_seen(episodes):
    fingerprints = np.zeros((len(episodes), 9, 2), np.uint32)
    expected = np.zeros((len(episodes), 9), bool)
    for row, episode in enumerate(episodes):
        for step, state in enumerate(episode):
            fingerprints[row, step] = state
            expected[row, step] = state not in episode[:step]
    found = find_new_states(fingerprints, np.array([len(episode) for episode in episodes]))
    np.testing.assert_array_equal(found, expected)


def test_different_observations_have_different_fingerprints():
    board = np.random.default_rng(0).integers(0, 2, (6, 7, 4), np.uint8)
    boards = [board]
    for cells in [
        *itertools.combinations(range(board.size), 1),
        *itertools.combinations(range(board.size), 2),
    ]:
        other = board.copy().reshape(-1)
        other[list(cells)] ^= 1
        boards.append(other.reshape(board.shape))
    marks = np.asarray(fingerprint(jnp.array(boards)))
    assert len({mark.tobytes() for mark in marks}) == len(boards) == 14_197
    np.testing.assert_array_equal(fingerprint(jnp.array(boards[:9])), marks[:9])  # whatever the batch


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.float32, np.float16, np.float64])
def test_every_part_of_an_observation_counts(dtype, x64):
    parts = {"a": np.zeros((2, 3), dtype), "b": np.zeros(2, dtype)}
    for name in parts:
        changed = {**parts, name: parts[name].copy()}
        changed[name].reshape(2, -1)[1, -1] = 1
        before, one = fingerprint(jax.tree.map(jnp.asarray, parts))
        other = fingerprint(jax.tree.map(jnp.asarray, changed))[1]
        assert (before == one).all()
        assert (one != other).any()


LEVELS = [  # solved after one and three steps to the right; not solved, with repeats at the end
    "########\n#   @$.#\n#      #\n########",
    "########\n#@ $ . #\n#      #\n########",
    "########\n#@  .$ #\n#      #\n########",
    "########\n#     @#\n#   $. #\n########",
]


def test_repeats_are_counted_as_by_a_set_of_boards():
    boards = [BoxobanBoard.parse(level) for level in LEVELS]
    bank = make_bank(BOXOBAN, np.stack([board.to_cells() for board in boards]), source="test", licence="none")
    env = Boxoban(bank.on_device(), time_limit=6)
    levels = jnp.array([*range(len(boards)), -1, -1])
    played = jax.tree.map(np.asarray, play_levels(env, always(Direction.RIGHT), levels, most_loops=5))
    expected, lengths = np.zeros((len(levels), 6), bool), played.episodes.length
    for level, start in enumerate(boards):
        board, seen = start, set()
        for step in range(lengths[level]):
            expected[level, step] = board not in seen
            seen.add(board)
            board = board.move(Direction.RIGHT)
    np.testing.assert_array_equal(played.new_states(), expected)
    assert expected.sum(axis=1).tolist() == [1, 3, 5, 1, 0, 0]
    assert lengths.tolist() == [1, 3, 6, 6, 0, 0]
    loops, success = played.decisions.loops, played.episodes.success
    np.testing.assert_array_equal(loops.sum(axis=1), played.episodes.loops)

    real = jax.tree.map(lambda leaf: leaf[: len(boards)], (played.episodes, played.decisions))
    facts = summary(played._replace(episodes=real[0], decisions=real[1]))
    assert facts["loops_new_states"] == loops[expected].mean() != facts["loops"]
    assert facts["repeated_share"] == pytest.approx(1 - 10 / 16)
    histogram = {int(n): count for n, count in facts["loop_histogram_new_states"].items()}
    assert histogram == {n: (loops[expected] == n).sum() for n in range(1, 6)}
    solved, failed = (facts["by_outcome"][outcome] for outcome in ("solved", "failed"))
    assert (solved["levels"], solved["repeated_share"]) == (2, 0)
    assert (failed["levels"], failed["repeated_share"]) == (2, 0.5)
    assert solved["loops_new_states"] == loops[success][expected[success]].mean()


class Circle(gymnasium.Env):
    """Three places in a circle, eight steps."""

    observation_space = gymnasium.spaces.Box(0, 2, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps % 3, np.float32), 0.0, False, self.steps == 8, {}


def test_repeats_of_gymnasium_s_environments():
    def act(observation, memory=None):
        loops = 1 + np.asarray(observation)[:, 0].astype(int)
        return Acted(np.zeros(len(loops), int), loops, np.zeros(len(loops), int), loops.sum())

    facts = summary(play_gymnasium(as_vector(Circle()), act, 3, 4))
    assert facts["levels"] == 3
    assert facts["repeated_share"] == 5 / 8
    assert facts["loops_new_states"] == 2
    assert facts["loops"] == (1 + 2 + 3 + 1 + 2 + 3 + 1 + 2) / 8
    assert facts["loop_histogram_new_states"] == {"1": 3, "2": 3, "3": 3, "4": 0}
