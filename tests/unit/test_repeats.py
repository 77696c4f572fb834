"""New and repeated states, against sets of the boards of an episode."""

import io
import itertools
import json
import pathlib

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from test_evaluation import always

from looped_actor.algorithms import Action
from looped_actor.analysis.caps import FRONTIER
from looped_actor.analysis.compare import evaluation_rows
from looped_actor.analysis.difficulty import DIFFICULTY
from looped_actor.analysis.histogram import HISTOGRAM
from looped_actor.cli.tables import evaluation_table
from looped_actor.evaluation.episodes import as_vector, play_gymnasium
from looped_actor.evaluation.levels import play_levels
from looped_actor.evaluation.repeats import find_new_states, fingerprint
from looped_actor.evaluation.results import summarize
from looped_actor.loop import empty_carry
from looped_actor.puzzles.banks import make_bank
from looped_actor.puzzles.boxoban.env import Boxoban
from looped_actor.puzzles.boxoban.game import BOXOBAN
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.grid import Direction

ROOT = pathlib.Path(__file__).parents[2]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=8), min_size=1, max_size=5)
)
def test_a_state_is_new_at_its_first_occurrence(episodes):
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
    prints = np.asarray(fingerprint(jnp.array(boards)))
    assert len({one.tobytes() for one in prints}) == len(boards) == 14_197
    np.testing.assert_array_equal(
        fingerprint(jnp.array(boards[:9])), prints[:9]
    )  # they do not depend on the batch


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


LEVELS = [  # walking right solves the first two; the others end in repeats
    "########\n#   @$.#\n#      #\n########",
    "########\n#@ $ . #\n#      #\n########",
    "########\n#@  .$ #\n#      #\n########",
    "########\n#     @#\n#   $. #\n########",
]


def test_repeats_are_those_of_a_set_of_boards():
    boards = [BoxobanBoard.parse(level) for level in LEVELS]
    bank = make_bank(BOXOBAN, np.stack([board.to_cells() for board in boards]), source="test", licence="none")
    env = Boxoban(bank.on_device(), time_limit=6)
    levels = jnp.array([*range(len(boards)), -1, -1])
    played = jax.tree.map(np.asarray, play_levels(env, always(Direction.RIGHT), levels, most_loops=5))
    expected, lengths = np.zeros((len(levels), 6), bool), played.episodes.length
    for level, start in enumerate(boards):
        board, earlier = start, set()
        for step in range(lengths[level]):
            expected[level, step] = board not in earlier
            earlier.add(board)
            board = board.move(Direction.RIGHT)
    np.testing.assert_array_equal(played.new_states(), expected)
    assert expected.sum(axis=1).tolist() == [1, 3, 5, 1, 0, 0]
    assert lengths.tolist() == [1, 3, 6, 6, 0, 0]
    loops, success = played.decisions.loops, played.episodes.success
    np.testing.assert_array_equal(loops.sum(axis=1), played.episodes.loops)

    real = jax.tree.map(lambda leaf: leaf[: len(boards)], (played.episodes, played.decisions))
    results = summarize(played._replace(episodes=real[0], decisions=real[1]))
    assert results["loops_new_states"] == loops[expected].mean() != results["loops"]
    assert results["repeated_share"] == pytest.approx(1 - 10 / 16)
    histogram = {int(n): count for n, count in results["loop_histogram_new_states"].items()}
    assert histogram == {n: (loops[expected] == n).sum() for n in range(1, 6)}
    solved, failed = (results["by_outcome"][outcome] for outcome in ("solved", "failed"))
    assert (solved["levels"], solved["repeated_share"]) == (2, 0)
    assert (failed["levels"], failed["repeated_share"]) == (2, 0.5)
    assert solved["loops_new_states"] == loops[success][expected[success]].mean()


class Circle(gymnasium.Env):
    """Three states in turn, eight steps."""

    observation_space = gymnasium.spaces.Box(0, 2, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps % 3, np.float32), 0.0, False, self.steps == 8, {}


def test_repeats_in_gymnasium_environments():
    def act(observation, carry=None):
        loops = 1 + np.asarray(observation)[:, 0].astype(int)
        zeros = np.zeros(len(loops), int)
        return Action(
            action=zeros, loops=loops, stop=zeros, executed=loops.sum(), carry=empty_carry(len(loops))
        )

    results = summarize(play_gymnasium(as_vector(Circle()), act, 3, 4))
    assert results["levels"] == 3
    assert results["repeated_share"] == 5 / 8
    assert results["loops_new_states"] == 2
    assert results["loops"] == (1 + 2 + 3 + 1 + 2 + 3 + 1 + 2) / 8
    assert results["loop_histogram_new_states"] == {"1": 3, "2": 3, "3": 3, "4": 0}


RUN = {"run": "x", "task": "boxoban", "arm": "looped", "learner": "PPO"}


def test_results_of_older_versions_are_read():
    """They do not have new states."""
    rows = evaluation_rows([ROOT / "results" / "carried_study" / "boxoban-fixed-0"])
    assert {row["loops_new_states"] for row in rows} == {row["repeated_share"] for row in rows} == {None}
    results = json.loads((ROOT / "results" / "carried_study" / "window-fixed-0" / "test.json").read_text())
    shown = Console(width=200, file=io.StringIO())
    shown.print(evaluation_table({"policy": "x", "task": "boxoban", "bank": "y", **results}))
    *_, last, _ = shown.file.getvalue().splitlines()
    cells = [cell.strip() for cell in last.split("│")[1:-1]]
    assert cells == ["all", "1,000", "28.3%", "25.6% - 31.2%", "7.17", "-", "-", "18.8"]


@pytest.mark.parametrize("old", [False, True])
def test_tables_of_older_versions_are_drawn(old):
    def without(rows, *names):
        return [{k: v for k, v in row.items() if k not in names} for row in rows] if old else rows

    new = {"new_states": 1, "loops_new_states": 5.0, "low_new_states": 4.0, "high_new_states": 6.0}
    known = {"measure": "pushes", "states": 3, "levels": 6, "loops": 2.0, "low": 1.0, "high": 3.0}
    rows = [
        {**RUN, **known, "outcome": outcome, "remaining": remaining, **new}
        for outcome in ("solved", "failed")
        for remaining in (1, 2, "lost")
    ]
    caption = DIFFICULTY.draw(without(rows, *new)).caption
    assert "18 decisions, 6 of them in states without a solution" in caption
    assert ("mean loops in new states: solved 5.00 (all decisions 2.00)" in caption) != old

    known = {"min_loops": 2, "threshold": 1e-3, "success": 0.5, "low": 0.4, "high": 0.6, "flops": 1.0}
    rows = [
        {**RUN, **known, "start": start, "loops": 4.0, "loops_new_states": 6.0}
        for start in ("fixed", "carried")
    ]
    drawn = FRONTIER.draw(without(rows, "loops_new_states"))
    assert ("4.00 loops per decision (6.00 in new states)" in drawn.caption) != old
    assert len(drawn.figure.axes) == 2 - old

    rows = [{**RUN, "loops": n, "decisions": 4, "new_states": int(n == 3)} for n in (1, 2, 3)]
    caption = HISTOGRAM.draw(without(rows, "new_states")).caption
    assert ("2.0 (3.0 in new states)" in caption) != old
