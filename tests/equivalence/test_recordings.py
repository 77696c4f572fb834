"""Traces and latents against plain play and plain loops, and difficulty against solutions."""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from looped_actor.algorithms import make_policy
from looped_actor.analysis.difficulty import LOST, UNKNOWN, difficulty_table, solve_distances, visited_states
from looped_actor.analysis.latents import LatentsError, LatentsRecorder, open_latents
from looped_actor.evaluation.levels import play_levels
from looped_actor.loop import FrozenScan
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.boxoban.game import BOXOBAN
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.replay import solution_boards
from looped_actor.puzzles.rush_hour.game import RUSH_HOUR
from looped_actor.puzzles.solutions import solve_bank
from looped_actor.runs.puzzle import level_player
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from tiny import tiny


@functools.cache
def untrained(task="boxoban", arm="looped"):
    """Return the spec and weights of an untrained policy, and the starter bank, whose levels it plays."""
    bank = starter_bank(task)
    board = [bank.info.height, bank.info.width]
    recipe = {f"levels__recipe__{side}": size for side, size in zip(("height", "width"), board, strict=True)}
    config = tiny(task, arm, time_limit=9, board=board, levels__held_out_recipe=None, **recipe)
    spec = run_of(config).spec
    return spec, bank, spec.init_weights(seed=2)


def test_a_trace_is_what_is_played():
    spec, bank, weights = untrained()
    player = replace(level_player(spec, bank.on_device(11), all_devices(1)), batch=4)
    recorded = player.record(weights, lambda state, output: (state.cells, output.distribution.mode()))
    trace, (cells, action) = recorded.trace, recorded.trace.recorded

    @jax.jit
    def play(weights, levels):
        policy = make_policy(spec.definition, weights, execution=FrozenScan())
        return play_levels(player.env, policy, levels, 4)

    played = play(weights, jnp.arange(11))
    for ours, theirs in zip(recorded.episodes, played.episodes, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(trace.mask.sum(axis=0), played.episodes.length)
    np.testing.assert_array_equal((trace.loops * trace.mask).sum(axis=0), played.episodes.loops)
    for level in range(11):  # each board follows from the last one and its action
        board = bank.board(level)
        for step in np.flatnonzero(trace.mask[:, level]):
            assert (cells[step, level] == board.to_cells().ravel()).all()
            board = board.move(Direction(int(action[step, level])))
        assert board.solved == recorded.episodes.success[level]


def test_remaining_pushes_decrease_along_an_optimal_path(size):
    """By one at every push, and at no other move."""
    bank = starter_bank("boxoban")
    for level in range(size(6, 500)):
        boards = solution_boards(bank.board(level))[:-1]
        remaining = solve_distances(BOXOBAN, np.stack([board.to_cells() for board in boards]))
        pushed = [one.boxes != two.boxes for one, two in itertools.pairwise(boards)]
        assert (np.diff(remaining) == -np.array(pushed, int)).all()
        assert remaining[-1] == 1
        assert remaining[0] == solve_bank(bank, first=level, count=1).push_counts[0]


def test_distances_of_lost_and_hard_states():
    bank = starter_bank("boxoban")
    lost = BoxobanBoard.parse("######\n#$  .#\n#  @ #\n######")  # a box in a corner
    open_ = BoxobanBoard.parse("######\n#  $.#\n# @  #\n######")
    assert solve_distances(BOXOBAN, np.stack([lost.to_cells(), open_.to_cells()])).tolist() == [LOST, 1]
    hard = bank.cells(slice(0, 1))
    assert solve_distances(BOXOBAN, hard, node_limit=2).tolist() == [UNKNOWN]


def test_remaining_moves_of_rush_hour_are_those_of_the_bank():
    bank = starter_bank("rush-hour")
    cells = bank.cells(slice(0, 8))
    np.testing.assert_array_equal(solve_distances(RUSH_HOUR, cells), bank.columns["moves"][:8])


def test_the_table_of_difficulty_counts_every_decision():
    spec, bank, weights = untrained()
    player = level_player(spec, bank.on_device(9), all_devices(1))
    played = player.record(weights, lambda state, output: state.cells)
    trace, states = played.trace, visited_states(BOXOBAN, (bank.info.height, bank.info.width), played)
    rows = difficulty_table(states, {"run": "x"})
    assert sum(row["states"] for row in rows) == trace.mask.sum() == len(states.loops)
    whole = sum(row["states"] * row["loops"] for row in rows)
    assert whole == pytest.approx((trace.loops * trace.mask).sum())
    assert {row["outcome"] for row in rows} <= {"solved", "failed"}
    new = played.new_states()
    assert sum(row["new_states"] for row in rows) == new.sum() < trace.mask.sum()
    whole = sum(row["new_states"] * row["loops_new_states"] for row in rows)
    assert whole == pytest.approx(trace.loops.T[new[:, : len(trace.loops)]].sum())
    cells = trace.recorded
    for level in range(9):  # against a set of the boards
        boards = [board.tobytes() for board in cells[trace.mask[:, level], level]]
        first = [board not in boards[:step] for step, board in enumerate(boards)]
        assert new[level, : len(boards)].tolist() == first


def observe(bank):
    env = BOXOBAN.environment(bank.on_device(20), 9)
    observations = np.asarray(jax.vmap(lambda level: env.observe(env.reset_to(level)))(jnp.arange(20)))
    return lambda first, last: observations[first:last]


def test_latents_are_those_of_the_loop_also_after_an_interruption(tmp_path):
    spec, bank, weights = untrained()
    definition, get = spec.definition, observe(bank)
    recorder = LatentsRecorder(definition, (1, 3, 4), all_devices(1), chunk=6)

    def interrupt(done, total):
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.record(weights, get, 20, tmp_path / "broken", progress=interrupt)
    with pytest.raises(LatentsError, match="12 of 20 states are recorded"):
        open_latents(tmp_path / "broken")
    calls = []

    def get_and_count(first, last):
        calls.append((first, last))
        return get(first, last)

    recorder.record(weights, get_and_count, 20, tmp_path / "broken")
    assert calls[1:] == [(12, 18), (18, 20)]  # the first call is for the shape
    whole = recorder.record(weights, get, 20, tmp_path / "whole")
    for name in ("input.npy", "loop_01.npy", "loop_03.npy", "loop_04.npy", "latents.json"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    net = nnx.merge(definition, weights.parameters, weights.fixed)
    observations = jnp.asarray(get(0, 20), jnp.float32)
    expected = net(observations, execution=FrozenScan(), record=True).loop.latents
    for loop in (1, 3, 4):
        found = open_latents(tmp_path / "whole").at(loop)
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, expected[loop - 1], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(whole.at(0), net.tokenizer(observations).embedding, rtol=2e-3, atol=2e-3)
    with pytest.raises(LatentsError, match="loop 2 was not recorded"):
        whole.at(2)
    with pytest.raises(LatentsError, match="another policy, other states or other loops"):
        LatentsRecorder(definition, (1,), all_devices(1)).record(weights, get, 20, tmp_path / "whole")
    with pytest.raises(LatentsError, match="loop 9 is beyond the cap of 4"):
        LatentsRecorder(definition, (9,), all_devices(1)).record(weights, get, 20, tmp_path / "deep")


def test_nets_without_loops_are_not_recorded(tmp_path):
    spec, bank, weights = untrained(arm="iso-params")
    recorder = LatentsRecorder(spec.definition, (1,), all_devices(1))
    with pytest.raises(LatentsError, match="does not loop"):
        recorder.record(weights, observe(bank), 20, tmp_path / "x")
