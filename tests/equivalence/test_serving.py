"""The engine with many clients, against the policy itself."""

import pathlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import looped_actor
from looped_actor.loop import StopReason
from looped_actor.policy.policy import Policy
from looped_actor.runs.registry import run_of
from looped_actor.serving import BusyError, Engine, LateError
from tiny import tiny

RUN = pathlib.Path(__file__).parents[2] / "results" / "micro_rush_hour"


@pytest.fixture(scope="module")
def policy():
    return looped_actor.load_policy(RUN)


@pytest.fixture(scope="module")
def seen(policy):
    """Boards whose decisions take different numbers of loops; they need not be levels."""
    one = policy.spec.observation
    return np.random.default_rng(0).integers(0, 2, (60, *one.shape)).astype(one.dtype)


@pytest.fixture(scope="module")
def engine(policy):
    with Engine(policy, slots=4, max_loops=12) as made:
        yield made


def test_answers_are_those_of_the_policy_whatever_the_order(policy, seen, engine, size):
    expected, clients = policy.act(seen), size(4, 32)
    assert len(set(expected.loops.tolist())) > 2
    wrong, each = [], size(200, 10_000) // clients

    def client(number):
        chance = np.random.default_rng(number)
        for _ in range(each // 5):
            rows = chance.integers(0, len(seen), 5)
            answers = [future.result() for future in [engine.ask(seen[row]) for row in rows]]
            for row, answer in zip(rows, answers, strict=True):
                told = answer.action, answer.loops, answer.stop
                if told != (expected.action[row], expected.loops[row], expected.stop[row]):
                    wrong.append((row, told))

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(client, range(clients)))
    assert wrong == []
    stands = engine.stats
    assert (stands.waiting, stands.looping) == (0, 0)
    assert stands.answered >= clients * (each // 5) * 5
    assert stands.loops <= stands.executed


@pytest.mark.parametrize(
    "limits", [{"max_loops": 3}, {"threshold": 0.5}, {"threshold": 0.0, "max_loops": 12}]
)
def test_limits_are_of_each_request(policy, seen, engine, limits):
    """Beside requests without."""
    futures = [engine.ask(one, **(limits if row % 2 else {})) for row, one in enumerate(seen)]
    other = policy.act(seen, halting=replace(policy.halting, **limits))
    for row, (future, usual) in enumerate(zip(futures, policy.act(seen).loops, strict=True)):
        assert future.result().loops == (other.loops[row] if row % 2 else usual)
    decision = policy(seen[1:2], halting=replace(policy.halting, **limits))
    outputs = futures[1].result().outputs
    np.testing.assert_allclose(outputs["logits"], decision.distribution.logits[0], atol=1e-4)
    np.testing.assert_allclose(outputs["value"], decision.value[0], atol=1e-4)


def test_a_deadline_is_answered_by_the_loop_that_was_reached(policy, seen):
    told = []
    with Engine(policy, slots=1, max_loops=2000) as engine:
        engine.ask(seen[0], max_loops=1).result()
        for seconds in (0.001, 0.01, 0.05, 0.1, 0.3):
            asked = engine.ask(seen[0], threshold=0.0, max_loops=2000, seconds=seconds)
            try:
                told.append(asked.result())
            except LateError:
                continue
        waits = [engine.ask(seen[0], threshold=0.0, max_loops=2000) for _ in range(3)]
        with pytest.raises(LateError, match="before this request had a slot"):
            engine.ask(seen[0], seconds=1e-6).result()
        assert not waits[-1].done()  # nobody waits in the queue for what has passed
        assert [wait.result().loops for wait in waits] == [2000] * 3
    late = [answer for answer in told if answer.stop == StopReason.RUNNING]
    assert late
    assert 0 < late[0].loops < 2000
    rule = replace(policy.halting, threshold=0.0, min_loops=1, max_loops=late[0].loops)
    assert late[0].action == policy.act(seen[0], halting=rule).action


def test_latents_are_carried(policy, seen):
    carries, carry, carried = policy.with_carry(True), None, [None] * 5
    with Engine(carries, slots=2) as engine:
        for step in range(3):
            now = seen[5 * step : 5 * step + 5]
            expected = carries.act(now, carry=carry)
            carry = expected.carry
            answers = [engine.ask(one, carry=own).result() for one, own in zip(now, carried, strict=True)]
            carried = [answer.carry for answer in answers]
            assert [answer.loops for answer in answers] == expected.loops.tolist()
            assert [answer.action for answer in answers] == expected.action.tolist()
            np.testing.assert_allclose(carried[4].latent, carry.latent[4], atol=1e-4)
    with Engine(policy, slots=2) as engine, pytest.raises(ValueError, match="carries nothing"):
        engine.ask(seen[0], carry=carried[0])


@pytest.mark.parametrize("carries", [False, True])
def test_what_is_compiled_at_first_is_all_there_is(policy, seen, carries):
    """Or a client waits for seconds while a program is compiled."""
    with Engine(policy.with_carry(carries), slots=4, compile_all=True) as engine:
        programs = engine.rows._tick
        carry = engine.ask(seen[0]).result().carry
        assert programs._cache_size() == len(engine.rows.widths) == 3
        for together in (1, 2, 3, 8, 20):
            for future in [engine.ask(one, carry=carry) for one in seen[:together]]:
                future.result()
        assert programs._cache_size() == 3


@pytest.mark.parametrize("arm", ["iso-params", "drc"])
def test_nets_that_do_not_loop_answer_too(arm):
    run = run_of(tiny("rush-hour", arm))
    weights = jax.tree.map(lambda leaf: 0.1 * jnp.ones(leaf.shape, leaf.dtype), run.spec.weights_like)
    policy, one = Policy(run.spec, weights), run.observation
    boards = np.random.default_rng(0).integers(0, 2, (7, *one.shape)).astype(one.dtype)
    expected = policy.act(boards)
    with Engine(policy, slots=2) as engine:
        answers = [future.result() for future in [engine.ask(board) for board in boards]]
        assert [answer.action for answer in answers] == expected.action.tolist()
        assert [answer.loops for answer in answers] == expected.loops.tolist()
        with pytest.raises(ValueError, match="does not loop: its depth cannot be changed"):
            engine.ask(boards[0], max_loops=2)


def test_more_than_may_wait_are_refused_and_those_who_wait_answered(policy, seen):
    engine = Engine(policy, slots=1, max_waiting=3, max_loops=3000)
    slow = {"threshold": 0.0, "max_loops": 3000}
    accepted, refused = [], 0
    for _ in range(12):
        try:
            accepted.append(engine.ask(seen[0], **slow))
        except BusyError:
            refused += 1
    assert refused >= 12 - 3 - 2  # three wait, two are in rows
    assert engine.stats.refused == refused
    assert accepted[-1].cancel()
    engine.close()
    assert [future.result().loops for future in accepted[:-1]] == [3000] * (len(accepted) - 1)
    with pytest.raises(BusyError, match="closing"):
        engine.ask(seen[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_loops": 13}, "max_loops is 13; it must be from 1 to 12"),
        ({"max_loops": 0}, "it must be from 1 to 12"),
        ({"threshold": -1.0}, "threshold is -1.0"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"seconds": 0}, "seconds is 0"),
    ],
)
def test_mistakes_are_told_to_who_makes_them(engine, seen, given, message):
    with pytest.raises(ValueError, match=message):
        engine.ask(seen[0], **given)
    with pytest.raises(ValueError, match=r"an observation is uint8\[5, 5, 7\]; what was given is uint8\[2, "):
        engine.ask(seen[:2])


def test_when_the_device_fails_nobody_waits_forever(policy, seen, monkeypatch):
    engine = Engine(policy, slots=1)

    def broken(*_):
        raise MemoryError("no memory is left")

    monkeypatch.setattr(engine.rows, "tick", broken)
    future: Future = engine.ask(seen[0])
    with pytest.raises(RuntimeError, match="this engine has failed: MemoryError: no memory is left"):
        future.result()
    engine._thread.join()
    assert engine.failed
    with pytest.raises(RuntimeError, match="has failed"):
        engine.ask(seen[0])
