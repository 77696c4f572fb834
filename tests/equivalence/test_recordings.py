"""Traces and latents, against playing and thinking; and difficulty, against the solver's own path."""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from looped_actor.algorithms import policy_fn as deciding
from looped_actor.analysis.difficulty import LOST, UNKNOWN, difficulty_table, remaining_of, visited_states
from looped_actor.analysis.latents import LatentsError, LatentsRecorder, open_latents
from looped_actor.evaluation.levels import play_levels
from looped_actor.loop import FrozenScan
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.catalogue import BOXOBAN, RUSH_HOUR
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.replay import solution_boards
from looped_actor.puzzles.solutions import solve_bank
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from tiny import tiny


@functools.cache
def policy(task="boxoban", arm="looped"):
    """A policy that knows nothing, on levels of the starter bank."""
    bank = starter_bank(task)
    board = [bank.info.height, bank.info.width]
    recipe = {f"levels__recipe__{side}": size for side, size in zip(("height", "width"), board, strict=True)}
    config = tiny(task, arm, time_limit=9, board=board, levels__held_out_recipe=None, **recipe)
    return config, bank, run_of(config).new_weights(seed=2)


def test_a_trace_is_what_is_played():
    config, bank, weights = policy()
    recorder = replace(run_of(config, mesh=all_devices(1)).player(bank, count=11), batch=4)
    env, definition = recorder.env, recorder.definition
    recorded = recorder.record(weights, lambda state, now: (state.cells, now.distribution.mode()))
    trace, (cells, action) = recorded.trace, recorded.trace.seen
    played = jax.jit(lambda w, n: play_levels(env, deciding(definition, w, execution=FrozenScan()), n, 4))(
        weights, jnp.arange(11)
    )
    for ours, theirs in zip(recorded.episodes, played.episodes, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(trace.taken.sum(axis=0), played.episodes.length)
    np.testing.assert_array_equal((trace.loops * trace.taken).sum(axis=0), played.episodes.loops)
    for level in range(11):  # each board is what the action before has made of the last one
        board = bank.board(level)
        for step in np.flatnonzero(trace.taken[:, level]):
            assert (cells[step, level] == board.to_cells().ravel()).all()
            board = board.move(Direction(int(action[step, level])))
        assert board.solved == recorded.episodes.success[level]


def test_remaining_pushes_decrease_along_an_optimal_path(size):
    """By one at every push, and not in between; and what cannot be solved any more is said to be lost."""
    bank = starter_bank("boxoban")
    for level in range(size(6, 500)):
        boards = solution_boards(bank.board(level))[:-1]
        remaining = remaining_of(BOXOBAN, np.stack([board.to_cells() for board in boards]))
        pushed = [one.boxes != two.boxes for one, two in itertools.pairwise(boards)]
        assert (np.diff(remaining) == -np.array(pushed, int)).all()
        assert remaining[-1] == 1
        assert remaining[0] == solve_bank(bank, first=level, count=1).push_counts[0]
    lost = BoxobanBoard.parse("######\n#$  .#\n#  @ #\n######")  # a box in a corner
    open_ = BoxobanBoard.parse("######\n#  $.#\n# @  #\n######")
    assert remaining_of(BOXOBAN, np.stack([lost.to_cells(), open_.to_cells()])).tolist() == [LOST, 1]
    hard = bank.cells(slice(0, 1))
    assert remaining_of(BOXOBAN, hard, node_limit=2).tolist() == [UNKNOWN]


def test_remaining_moves_of_rush_hour_are_the_solver_s():
    bank = starter_bank("rush-hour")
    cells = bank.cells(slice(0, 8))
    np.testing.assert_array_equal(remaining_of(RUSH_HOUR, cells), bank.columns["moves"][:8])


def test_the_table_of_difficulty_counts_every_decision():
    config, bank, weights = policy()
    player = run_of(config, mesh=all_devices(1)).player(bank, count=9)
    played = player.record(weights, lambda state, decision: state.cells)
    trace, states = played.trace, visited_states(BOXOBAN, (bank.info.height, bank.info.width), played)
    rows = difficulty_table(states, {"run": "x"})
    assert sum(row["states"] for row in rows) == trace.taken.sum() == len(states.loops)
    whole = sum(row["states"] * row["loops"] for row in rows)
    assert whole == pytest.approx((trace.loops * trace.taken).sum())
    assert {row["outcome"] for row in rows} <= {"solved", "failed"}
    new = played.new_states()
    assert sum(row["new_states"] for row in rows) == new.sum() < trace.taken.sum()
    whole = sum(row["new_states"] * row["loops_new_states"] for row in rows)
    assert whole == pytest.approx(trace.loops.T[new[:, : len(trace.loops)]].sum())
    cells = trace.seen
    for level in range(9):  # against a set of the boards
        boards = [board.tobytes() for board in cells[trace.taken[:, level], level]]
        first = [board not in boards[:step] for step, board in enumerate(boards)]
        assert new[level, : len(boards)].tolist() == first


def observe(bank):
    env = run_of(policy()[0]).environment(bank, 20)
    seen = np.asarray(jax.vmap(lambda level: env.observe(env.start(level)))(jnp.arange(20)))
    return lambda first, last: seen[first:last]


def test_latents_are_those_of_the_loop_and_go_on_where_they_stopped(tmp_path):
    config, bank, weights = policy()
    definition, see = run_of(config).definition, observe(bank)
    recorder = LatentsRecorder(definition, (1, 3, 4), all_devices(1), chunk=6)

    def interrupt(done, total):
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.record(weights, see, 20, tmp_path / "broken", progress=interrupt)
    with pytest.raises(LatentsError, match="12 of 20 states are recorded"):
        open_latents(tmp_path / "broken")
    asked = []

    def counted(first, last):
        asked.append((first, last))
        return see(first, last)

    recorder.record(weights, counted, 20, tmp_path / "broken")
    assert asked[1:] == [(12, 18), (18, 20)]  # after one for the shape
    whole = recorder.record(weights, see, 20, tmp_path / "whole")
    for name in ("input.npy", "loop_01.npy", "loop_03.npy", "loop_04.npy", "latents.json"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    net = nnx.merge(definition, weights.parameters, weights.fixed)
    told = net(jnp.asarray(see(0, 20), jnp.float32), execution=FrozenScan(), record=True).loop.latents
    for loop in (1, 3, 4):
        found = open_latents(tmp_path / "whole").at(loop)
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, told[loop - 1], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(
        whole.at(0), net.tokenizer(jnp.asarray(see(0, 20), jnp.float32)).embedding, rtol=2e-3, atol=2e-3
    )
    with pytest.raises(LatentsError, match="loop 2 was not recorded"):
        whole.at(2)
    with pytest.raises(LatentsError, match="another policy, other states or other loops"):
        LatentsRecorder(definition, (1,), all_devices(1)).record(weights, see, 20, tmp_path / "whole")
    with pytest.raises(LatentsError, match="loop 9 is beyond the cap of 4"):
        LatentsRecorder(definition, (9,), all_devices(1)).record(weights, see, 20, tmp_path / "deep")


def test_what_does_not_loop_is_not_recorded(tmp_path):
    config, bank, weights = policy(arm="iso-params")
    recorder = LatentsRecorder(run_of(config).definition, (1,), all_devices(1))
    with pytest.raises(LatentsError, match="does not loop"):
        recorder.record(weights, observe(bank), 20, tmp_path / "x")
