"""Compiled machines against plain ones, and the universal machine against the rule that it computes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import thorough
from looped_actor.theory import (
    CANDIDATES,
    Entry,
    Machine,
    adaptive_policy,
    fixed_policy,
    hard_rule,
    own_state,
)
from looped_actor.theory.demonstration import random_program
from looped_actor.theory.machines import BLANK, MARK, ONE, ZERO, Outcome
from turing import machines, words


def plain_run(machine: Machine, word: str, limit: int) -> Outcome:
    """The definition of a machine, one dictionary look-up at a time."""
    table = {}
    for entry in machine.entries:
        table.setdefault((entry.state, entry.read), entry)
    last = 2**machine.state_bits - 1
    actions = {last - 1: 1, last: 0} if machine.state_bits else {last: 0}
    tape = dict(enumerate(ONE if bit == "1" else ZERO for bit in word))
    state, at, steps = 0, 0, 0
    while state not in actions and steps < limit:
        entry = table.get((state, tape.get(at, BLANK)))
        if entry is None:
            return Outcome(None, steps, True)
        tape[at], state, at = entry.write, entry.then, max(at + (1 if entry.right else -1), 0)
        steps += 1
    return Outcome(actions.get(state), steps, state in actions)


@settings(max_examples=200)
@given(machines(), words, st.integers(0, 2000))
def test_compiled_runs_are_plain_runs(machine, word, limit):
    ran, plain = machine.run(word, limit), plain_run(machine, word, limit)
    # At the limit a stuck machine may be known to be stuck, or not yet.
    assert ran == plain or (ran.steps == plain.steps == limit and ran.action is plain.action is None)


@pytest.mark.parametrize("n", [8, 9, 11])
def test_the_universal_machine_computes_the_rule(n):
    """On all x that begin like a program of at most four bits, with and without bits where zeros belong."""
    fixed, steps = fixed_policy(), set()
    for length in range(1, 5):
        for program in range(2**length):
            start = "1" * length + "0" + format(program, f"0{length}b")
            for rest in ("0" * (n - len(start)), "0" * (n - len(start) - 1) + "1"):
                if len(start + rest) == n:
                    outcome = fixed.run("1" + start + rest)
                    assert outcome.action == hard_rule(start + rest), start + rest
                    steps.add(outcome.steps)
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("entry", "answer"),
    [
        (Entry(0, ONE, 3, ZERO, True), 1),  # halts with action 0
        (Entry(0, ONE, 2, MARK, False), 0),  # halts with action 1
        (Entry(0, ONE, 0, BLANK, True), 0),  # erases ones, and is stuck at the first 0
    ],
)
def test_it_runs_programs_that_write_and_move(entry, answer):
    state = own_state(Machine(2, (entry,)))
    outcome = fixed_policy().run(state)
    assert outcome.action == hard_rule(state[1:]) == answer
    if answer:
        assert adaptive_policy().run(state) == outcome


@thorough
def test_it_runs_random_programs():
    rng, fixed = random.Random(0), fixed_policy()
    for number in range(60):
        state = own_state(random_program(rng), 25 + number % 2)
        assert fixed.run(state).action == hard_rule(state[1:])


@thorough
@pytest.mark.parametrize("name", ["the bit b", "0, after a scan"])
def test_it_contradicts_candidates(name):
    state = own_state(CANDIDATES[name])
    actions = {fixed_policy().run(state).action, CANDIDATES[name].run(state).action}
    assert actions == {0, 1}
