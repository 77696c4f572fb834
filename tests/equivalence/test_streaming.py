"""Streaming against synchronous rollouts, and its slots against a simulation of them in plain Python."""

import functools
import itertools
import math
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from looped_actor import load_policy
from looped_actor.algorithms import init_carry, make_policy, to_streaming
from looped_actor.algorithms.rollout import init_env_state, rollout, stream_rollout
from looped_actor.envs import VectorEnv
from looped_actor.evaluation import levels as levels_play
from looped_actor.evaluation.levels import play_levels, stream_levels
from looped_actor.loop import Categorical, FrozenScan, StreamablePolicy, Streaming, empty_carry
from looped_actor.loop.halting import PolicyKL
from looped_actor.loop.state import LoopProblem
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.catalogue import game_named
from looped_actor.runs.registry import run_of
from tiny import tiny

ENVS, STEPS = 10, 7
ROOT = pathlib.Path(__file__).parents[2]
POLICIES = {"boxoban": "results/micro_boxoban", "rush-hour": "results/micro_rush_hour"}
# Every game with every number of slots where there is time: THOROUGH=1.
THOROUGH = bool(os.environ.get("THOROUGH"))
GAMES_SLOTS_CARRIES = (
    list(itertools.product(POLICIES, (1, 2, 3, 5, ENVS, None), (False, True)))
    if THOROUGH
    else [("boxoban", 1, True), ("rush-hour", None, False)]
)


@functools.cache
def policy(task, dtype):
    """A trained policy, since the depth of untrained ones hardly varies, and an environment."""
    trained = load_policy(ROOT / POLICIES[task])
    env = game_named(task).environment(starter_bank(task).on_device(40), 9)
    weights = jax.tree.map(lambda a: a.astype(dtype), trained.weights)
    return trained.spec.definition, weights, env


@functools.cache
def synchronous(task, dtype, carries):
    """The rollout of the oracle, from environments that are in the middle of their episodes."""
    definition, weights, env = policy(task, dtype)
    vector = VectorEnv(env, ENVS)
    root = jax.random.key_data(jax.random.key(5))

    @jax.jit
    def run(weights):
        frozen = make_policy(definition, weights, execution=FrozenScan())
        first = init_env_state(vector, root)
        carry = init_carry(definition, weights, first.observation, carries)
        state, _ = rollout(vector, first._replace(carry=carry), frozen, root, jnp.int32(0), 4)
        return state, rollout(vector, state, frozen, root, jnp.int32(4), STEPS, some_given())

    return vector, root, *run(weights)


def some_given():
    """Actions that a solver would give: of the first environment, in every other step."""
    return jnp.full((STEPS, ENVS), -1, jnp.int32).at[::2, 0].set(0)


@pytest.mark.parametrize(("task", "slots", "carries"), GAMES_SLOTS_CARRIES)
def test_a_streamed_rollout_is_the_synchronous_one(task, slots, carries, x64):
    definition, weights, _ = policy(task, jnp.float64)
    vector, root, before, (state, expected) = synchronous(task, jnp.float64, carries)

    @jax.jit
    def run(weights):
        policy = to_streaming(definition, weights)
        return stream_rollout(
            vector, before, policy, root, jnp.int32(4), STEPS, Streaming(slots), some_given()
        )

    our_state, ours = run(weights)
    loops = expected.steps.loops
    assert state.carry.is_empty != carries
    assert len(np.unique(loops)) > 2  # or there would be nothing to stream
    assert bool(expected.steps.truncated.any())  # and episodes end in between
    np.testing.assert_array_equal(expected.steps.action[::2, 0], [0] * len(expected.steps.action[::2]))
    for one, other in zip(
        jax.tree.leaves((our_state, ours.steps, ours.bootstrap)),
        jax.tree.leaves((state, expected.steps, expected.bootstrap)),
        strict=True,
    ):
        assert one.dtype == other.dtype
        if jnp.issubdtype(one.dtype, jnp.floating):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
        else:
            np.testing.assert_array_equal(one, other)
    assert int(ours.loops) == int(expected.loops)
    assert int(ours.loops) <= int(ours.executed)
    assert int(expected.executed) == 8 * ENVS * (STEPS + 1)


@pytest.mark.parametrize(("task", "slots", "carries"), GAMES_SLOTS_CARRIES)
def test_streamed_levels_are_the_synchronous_ones(task, slots, carries, x64, monkeypatch):
    monkeypatch.setattr(levels_play, "MIN_ROWS", 12)  # fewer than there are levels: others queue
    definition, weights, env = policy(task, jnp.float64)
    levels = jnp.array([*range(39, 0, -1), -1, -1, -1])

    @jax.jit
    def both(weights):
        frozen = make_policy(definition, weights, execution=FrozenScan())
        streamed = stream_levels(env, to_streaming(definition, weights), levels, 8, Streaming(slots), carries)
        return play_levels(env, frozen, levels, 8, carry_latent=carries), streamed

    expected, found = both(weights)
    assert found.episodes.length[-3:].tolist() == [0, 0, 0]
    for ours, theirs in zip(found.episodes, expected.episodes, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    for ours, theirs in zip(found.decisions, expected.decisions, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    loops = int(found.episodes.loops.sum())
    assert loops <= int(found.executed) < int(expected.executed)


def counting(depths):
    """A loop whose latent counts, and whose example n stops after as many loops as `depths[n]` says."""

    class Prescribed(PolicyKL):
        def observe(self, latent, x, readout):
            return x

        def divergence(self, before, now):
            return depths[now].astype(jnp.float32)

        def converged(self, loop, divergence):
            return loop >= divergence

    problem = LoopProblem(lambda z, x: z + 1, lambda z, x: Categorical(z[:, None]), Prescribed(max_loops=99))
    return StreamablePolicy(
        embed=lambda observation: observation,
        initial_latent=lambda x: jnp.zeros(len(x)),
        problem=problem,
        decode=lambda latent: latent,
    )


def simulated(depths, slots):
    """Loops that the hardware computes, for rows that decide as often as there are depths for them."""
    rows, decisions = depths.shape
    waiting, ended, busy, done, executed = list(range(rows)), [], {}, [0] * rows, 0

    def fill(size):
        while waiting and len(busy) < size:
            row = waiting.pop(0)
            busy[row] = depths[row, done[row]]

    half = math.ceil(slots / 2)
    for size, few in ((slots, half), (half, math.ceil(half / 2)), (math.ceil(half / 2), 0)):
        while len(waiting) + len(ended) + len(busy) > few:
            waiting = sorted(waiting + [row for row in ended if done[row] < decisions])
            ended = []
            fill(size)
            while busy and (len(busy) == size or not ended):
                executed += size
                busy = {row: left - 1 for row, left in busy.items()}
                for row in [row for row, left in busy.items() if left == 0]:
                    del busy[row]
                    ended.append(row)
                    done[row] += 1
                fill(size)
    return executed


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**31))
def test_no_slot_stays_free_that_a_row_could_use(rows, decisions, slots, seed):
    depths = np.random.default_rng(seed).integers(1, 12, (rows, decisions))
    slots = min(slots, rows)

    def settle(table, ended, output):
        done, total = table
        done = done + ended
        return (done, total + jnp.where(ended, output.decision, 0)), done < decisions

    policy = counting(jnp.asarray(depths.reshape(-1)))
    table = (jnp.zeros(rows, jnp.int32), jnp.zeros(rows))
    end = Streaming(slots).run(
        policy,
        table,
        rows,
        lambda table, row: row * decisions + table[0][row],
        settle,
        lambda table, row: empty_carry(len(row)),
    )
    np.testing.assert_array_equal(end.table[1], depths.sum(axis=1))  # each decision went as deep as it should
    assert int(end.loops) == depths.sum()
    assert int(end.executed) == simulated(depths, slots)
    if slots == 1:
        assert int(end.executed) == int(end.loops)


def test_a_stream_needs_a_slot():
    with pytest.raises(ValueError, match="slots is 0; it must be at least 1"):
        Streaming(0)


def test_nets_that_do_not_loop_are_not_streamed():
    for arm in ("iso-flops", "drc"):
        config = tiny("boxoban", arm)
        assert run_of(config).build(nnx.Rngs(0)).to_streaming() is None
