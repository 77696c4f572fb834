"""Compiled machine runs against an interpreter, and the universal machine against h_n."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import thorough
from looped_actor.theory import (
    CANDIDATES,
    Machine,
    Transition,
    adaptive_policy,
    diagonal_state,
    fixed_policy,
    hard_action,
)
from looped_actor.theory.machines import BLANK, MARK, ONE, ZERO, RunResult
from looped_actor.theory.report import sample_program
from turing import machines, words


def interpret(machine: Machine, word: str, max_steps: int) -> RunResult:
    """Run a machine by the definition, with one dictionary lookup for each step."""
    table = {}
    for transition in machine.transitions:
        table.setdefault((transition.state, transition.read), transition)
    last = 2**machine.state_bits - 1
    actions = {last - 1: 1, last: 0} if machine.state_bits else {last: 0}
    tape = dict(enumerate(ONE if bit == "1" else ZERO for bit in word))
    state, head, steps = 0, 0, 0
    while state not in actions and steps < max_steps:
        transition = table.get((state, tape.get(head, BLANK)))
        if transition is None:
            return RunResult(None, steps, True)
        tape[head], state = transition.write, transition.next_state
        head = max(head + (1 if transition.right else -1), 0)
        steps += 1
    return RunResult(actions.get(state), steps, state in actions)


@settings(max_examples=200)
@given(machines(), words, st.integers(0, 2000))
def test_compiled_runs_match_the_interpreter(machine, word, max_steps):
    compiled, expected = machine.run(word, max_steps), interpret(machine, word, max_steps)
    # If a machine is stuck exactly at the limit, `halted` may differ.
    at_limit = compiled.steps == expected.steps == max_steps
    assert compiled == expected or (at_limit and compiled.action is expected.action is None)


@pytest.mark.parametrize("n", [8, 9, 11])
def test_the_universal_machine_computes_h_n(n):
    """All x that start with a length and a program of up to four bits, with zeros or a final 1 after it."""
    fixed, steps = fixed_policy(), set()
    for length in range(1, 5):
        for program in range(2**length):
            start = "1" * length + "0" + format(program, f"0{length}b")
            for rest in ("0" * (n - len(start)), "0" * (n - len(start) - 1) + "1"):
                if len(start + rest) == n:
                    result = fixed.run("1" + start + rest)
                    assert result.action == hard_action(start + rest), start + rest
                    steps.add(result.steps)
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("next_state", "write", "right", "action"),
    [
        (3, ZERO, True, 1),  # halts with action 0
        (2, MARK, False, 0),  # halts with action 1
        (0, BLANK, True, 0),  # erases ones, and is stuck at the first 0
    ],
)
def test_programs_that_write_and_move(next_state, write, right, action):
    transition = Transition(state=0, read=ONE, next_state=next_state, write=write, right=right)
    state = diagonal_state(Machine(2, (transition,)))
    result = fixed_policy().run(state)
    assert result.action == hard_action(state[1:]) == action
    if action:
        assert adaptive_policy().run(state) == result


@thorough
def test_random_programs():
    rng, fixed = random.Random(0), fixed_policy()
    for number in range(60):
        state = diagonal_state(sample_program(rng), 25 + number % 2)
        assert fixed.run(state).action == hard_action(state[1:])


@thorough
@pytest.mark.parametrize("name", ["first bit", "scan"])
def test_the_action_is_the_opposite_of_a_candidate(name):
    state = diagonal_state(CANDIDATES[name])
    actions = {fixed_policy().run(state).action, CANDIDATES[name].run(state).action}
    assert actions == {0, 1}
