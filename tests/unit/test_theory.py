"""Machines, correct actions, MDPs and costs of Theorem 3.1."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped_actor.theory import (
    CANDIDATES,
    SCAN_COST,
    DescriptionError,
    Machine,
    OneStepMDP,
    Transition,
    adaptive_policy,
    count_steps,
    diagonal_state,
    evaluate_policy,
    extract_program,
    fixed_policy,
    hard_action,
    run_on_diagonal_state,
    runtime,
    smallest_n,
)
from turing import machines

many = settings(max_examples=200)  # cheap examples: nothing is compiled


@many
@given(machines())
def test_parse_inverts_describe(machine):
    assert Machine.parse(machine.describe()) == machine


@many
@given(st.text("01", max_size=60))
def test_a_valid_description_is_that_of_its_machine(bits):
    try:
        machine = Machine.parse(bits)
    except DescriptionError:
        return
    assert machine.describe() == bits


@many
@given(machines(), st.integers(0, 9))
def test_the_diagonal_state_contains_the_machine(machine, padding):
    n = smallest_n(machine) + padding
    state = diagonal_state(machine, n)
    assert extract_program(state[1:]) == machine
    assert len(state) == n + 1


@pytest.mark.parametrize(
    ("bits", "message"),
    [("", "has no 0"), ("111", "has no 0"), ("100", "not a whole number"), ("10x", "0 and 1")],
)
def test_invalid_descriptions_are_rejected(bits, message):
    with pytest.raises(DescriptionError, match=message):
        Machine.parse(bits)


def test_invalid_transitions_and_lengths_are_rejected():
    with pytest.raises(ValueError, match="state outside of 0 to 3"):
        Machine(2, (Transition(state=4, read=0, next_state=0, write=0, right=True),))
    with pytest.raises(ValueError, match="symbol outside"):
        Machine(2, (Transition(state=0, read=4, next_state=0, write=0, right=True),))
    with pytest.raises(ValueError, match="needs n of at least 5, not 4"):
        diagonal_state(CANDIDATES["always 1"], 4)


def test_candidates_act_as_named():
    for length in (3, 4, 7):
        for bits in itertools.product("01", repeat=length):
            word = "".join(bits)
            assert CANDIDATES["first bit"].run(word).action == int(word[0])
            assert CANDIDATES["last bit"].run(word).action == int(word[-1])
            assert CANDIDATES["parity"].run(word).action == word.count("1") % 2
            assert CANDIDATES["mark both ends"].run(word).action == 1
            assert CANDIDATES["mark from left"].run(word).steps == length * (length + 2) + 1


def test_candidates_within_the_cutoff_fail_on_their_diagonal_state():
    runs = {name: run_on_diagonal_state(machine) for name, machine in CANDIDATES.items()}
    within = {name for name, run in runs.items() if run.within_cutoff}
    assert within == set(CANDIDATES) - {"mark from left"}
    assert all(runs[name].action is not None and runs[name].reward == 0 for name in within)
    # h_n is 0 if the program takes more than n^2 steps, and 0 is the action of this machine.
    assert runs["mark from left"].reward == 1


@many
@given(machines(max_state_bits=3, max_transitions=6), st.integers(0, 20))
def test_machines_within_the_cutoff_fail_on_their_diagonal_state(machine, padding):
    n = smallest_n(machine) + padding
    state = diagonal_state(machine, n)
    result = machine.run(state, max_steps=n**2)
    assert hard_action(state[1:]) == (0 if result.action is None else 1 - result.action)
    assert OneStepMDP(n).reward(state, result.action) == 0 or not result.halted


def test_machines_that_fail_on_their_diagonal_state_are_not_optimal():
    mdp = OneStepMDP(5)
    for name in ("always 0", "always 1"):
        machine = CANDIDATES[name]
        lost = mdp.probability(diagonal_state(machine, 5))
        assert lost > 0
        assert evaluate_policy(machine, mdp).expected_return <= 1 - lost


def test_probabilities_sum_to_one():
    for n in (2, 5):
        mdp = OneStepMDP(n)
        assert sum(mdp.probability(state) for state in mdp.states()) == 1


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_both_policies_are_optimal_at_the_stated_costs(n):
    counts = count_steps(n)
    mdp = OneStepMDP(n)
    adaptive, fixed = evaluate_policy(adaptive_policy(), mdp), evaluate_policy(fixed_policy(), mdp)
    assert adaptive.actions == fixed.actions
    assert adaptive.expected_return == fixed.expected_return == 1
    # Action 1 is correct in some state if n is large enough for a program that halts with action 0.
    assert (1 in fixed.actions) == (n >= smallest_n(CANDIDATES["always 0"]))
    assert fixed.min_steps == fixed.max_steps == counts.fixed == runtime(n) > n**2
    assert (adaptive.min_steps, adaptive.max_steps) == (counts.easy, counts.hard)
    assert adaptive.expected_cost == counts.expected <= counts.expected_bound == SCAN_COST * n + 1
    assert counts.ratio == fixed.expected_cost / adaptive.expected_cost > counts.ratio_bound


@pytest.mark.parametrize("word", ["", "0", "1", "00", "01", "10", "11"])
def test_inputs_of_fewer_than_three_bits_are_scanned(word):
    for policy in (adaptive_policy(), fixed_policy()):
        assert policy.run(word) == (0, len(word) + 1, True)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 9, 14])
def test_the_runtime_is_q(n):
    """Five n determine a polynomial of degree four."""
    assert fixed_policy().run("1" * (n + 1)).steps == runtime(n)


def test_the_two_policies_differ_in_one_transition():
    differences = set(adaptive_policy().transitions) ^ set(fixed_policy().transitions)
    assert len({(transition.state, transition.read) for transition in differences}) == 1
