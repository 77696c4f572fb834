"""The theorem's machines, rule, MDPs and costs."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped_actor.theory import (
    CANDIDATES,
    SCAN_COST,
    DescriptionError,
    Entry,
    Machine,
    OneStepMDP,
    adaptive_policy,
    costs,
    evaluate,
    examine,
    fixed_policy,
    hard_rule,
    on_own_state,
    own_state,
    polynomial_through,
    program_in,
    room_for,
)
from turing import machines

many = settings(max_examples=200)
"""Nothing here compiles: there is time."""


@many
@given(machines())
def test_a_machine_is_read_back_from_its_description(machine):
    assert Machine.parse(machine.describe()) == machine


@many
@given(st.text("01", max_size=60))
def test_bits_describe_one_machine_or_none(bits):
    try:
        machine = Machine.parse(bits)
    except DescriptionError:
        return
    assert machine.describe() == bits


@many
@given(machines(), st.integers(0, 9))
def test_a_program_is_found_in_its_state(machine, padding):
    state = own_state(machine, room_for(machine) + padding)
    assert program_in(state[1:]) == machine
    assert len(state) == room_for(machine) + padding + 1


@pytest.mark.parametrize(
    ("bits", "why"),
    [("", "there is none"), ("111", "there is none"), ("100", "do not divide"), ("10x", "0 and 1")],
)
def test_what_describes_no_machine_says_why(bits, why):
    with pytest.raises(DescriptionError, match=why):
        Machine.parse(bits)


def test_impossible_machines_and_states_are_refused():
    with pytest.raises(ValueError, match="state outside of 0 to 3"):
        Machine(2, (Entry(4, 0, 0, 0, True),))
    with pytest.raises(ValueError, match="symbol outside"):
        Machine(2, (Entry(0, 4, 0, 0, True),))
    with pytest.raises(ValueError, match="needs n of at least 5, not 4"):
        own_state(CANDIDATES["always 1"], 4)


def test_candidates_answer_what_they_say():
    for length in (3, 4, 7):
        for bits in itertools.product("01", repeat=length):
            word = "".join(bits)
            assert CANDIDATES["the bit b"].run(word).action == int(word[0])
            assert CANDIDATES["the last bit"].run(word).action == int(word[-1])
            assert CANDIDATES["parity of all bits"].run(word).action == word.count("1") % 2
            assert CANDIDATES["1, from both ends"].run(word).action == 1
            assert CANDIDATES["0, from one end"].run(word).steps == length * (length + 2) + 1


def test_no_candidate_within_the_cutoff_is_right_about_itself():
    trials = {name: on_own_state(machine) for name, machine in CANDIDATES.items()}
    caught = {name for name, trial in trials.items() if trial.within}
    assert caught == set(CANDIDATES) - {"0, from one end"}
    assert all(trials[name].action is not None and trials[name].reward == 0 for name in caught)
    # Beyond n^2 steps the rule looks no further, and says 0: which this machine answers too.
    assert trials["0, from one end"].reward == 1


@many
@given(machines(most_bits=3, most_entries=6), st.integers(0, 20))
def test_no_machine_within_the_cutoff_is_right_about_itself(machine, padding):
    n = room_for(machine) + padding
    state = own_state(machine, n)
    outcome = machine.run(state, limit=n**2)
    right = hard_rule(state[1:])
    assert right == (0 if outcome.action is None else 1 - outcome.action)
    assert OneStepMDP(n, 2).reward(state, outcome.action) == 0 or not outcome.halted


def test_a_policy_that_is_caught_is_not_optimal():
    mdp = OneStepMDP(5, costs(adaptive_policy(), fixed_policy(), 5).hard)
    for name in ("always 0", "always 1"):
        machine = CANDIDATES[name]
        lost = mdp.probability(own_state(machine, 5))
        assert lost > 0
        assert examine(machine, mdp).expected_return <= 1 - lost


def test_probabilities_sum_to_one():
    for n in (2, 5):
        mdp = OneStepMDP(n, 77)
        assert sum(mdp.probability(state) for state in mdp.states()) == 1


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_both_policies_are_optimal_on_every_state_and_only_one_is_cheap(n):
    counted = costs(adaptive_policy(), fixed_policy(), n)
    mdp = OneStepMDP(n, counted.hard)
    adaptive, fixed = examine(adaptive_policy(), mdp), examine(fixed_policy(), mdp)
    assert adaptive.actions == fixed.actions
    assert adaptive.expected_return == fixed.expected_return == 1
    # Not all of one kind: some program is contradicted, from the length on that has room for one.
    assert (1 in fixed.actions) == (n >= room_for(CANDIDATES["always 0"]))
    assert fixed.fewest == fixed.most == counted.fixed > n**2
    assert (adaptive.fewest, adaptive.most) == (counted.easy, counted.hard)
    assert adaptive.expected_cost == counted.adaptive <= SCAN_COST * n + 1
    assert counted.ratio == fixed.expected_cost / adaptive.expected_cost > counted.bound


@pytest.mark.parametrize("word", ["", "0", "1", "00", "01", "10", "11"])
def test_inputs_of_fewer_than_three_bits_are_scanned(word):
    for policy in (adaptive_policy(), fixed_policy()):
        assert policy.run(word) == (0, len(word) + 1, True)


def test_the_runtime_is_a_polynomial():
    fixed = fixed_policy()
    counted = {n: fixed.run("0" * (n + 1)).steps for n in (2, 3, 4, 5, 6)}
    runtime = polynomial_through(counted)
    assert runtime == [442, 578, 605, 428, 132]
    for n in (9, 14):
        assert evaluate(runtime, n) == fixed.run("1" * (n + 1)).steps


def test_polynomials_are_found():
    assert polynomial_through({1: 3, 2: 7, 5: 31, 9: 91}) == [1, 1, 1]
    assert polynomial_through({4: 6}) == [6]
    assert evaluate([Fraction(1, 2), Fraction(3)], 2) == Fraction(13, 2)


def test_the_two_policies_differ_in_one_transition():
    differences = set(adaptive_policy().entries) ^ set(fixed_policy().entries)
    assert len({(entry.state, entry.read) for entry in differences}) == 1
