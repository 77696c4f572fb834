"""One-step MDPs of Theorem 3.1, and the cost of its two policies, following the steps of the proof.

An initial state is b x, with n bits in x. If b is 0 (an easy state), action 0 is correct. If b is 1 (a hard
state), the correct action is h_n(x): the opposite of the action of the program in x on that state, if the
program halts within n^2 steps. Hard states are rare: their probability is one over the steps that they take.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from looped_actor.theory.machines import DescriptionError, Machine
from looped_actor.theory.universal import adaptive_policy, fixed_policy
from looped_actor.utils.errors import UserError

SCAN_COST = 2
"""Constant c of the theorem: a scan of b x takes n + 2 <= c n steps, for n >= 2."""
RUNTIME = (442, 578, 605, 428, 132)
"""Coefficients of q(n), constant first. The tests compare q(n) with counted steps."""


# Step 1: the correct action on the hard branch.


def extract_program(x: str) -> Machine | None:
    """Return the machine with description p if x = 1^l 0 p 0^k, with l bits in p; otherwise None."""
    ones, comma, rest = x.partition("0")
    description, padding = rest[: len(ones)], rest[len(ones) :]
    if not comma or len(description) < len(ones) or "1" in padding:
        return None
    try:
        return Machine.parse(description)
    except DescriptionError:
        return None


def hard_action(x: str) -> int:
    """Return h_n(x): 1 - a if the program in x outputs action a on 1 x within n^2 steps, otherwise 0."""
    program = extract_program(x)
    if program is None:
        return 0
    action = program.run("1" + x, max_steps=len(x) ** 2).action
    return 0 if action is None else 1 - action


# Step 2: the cost of the two policies.


def runtime(n: int) -> int:
    """Return q(n): steps of the adaptive policy if b = 1, and of the fixed-runtime policy on any state."""
    return sum(coefficient * n**power for power, coefficient in enumerate(RUNTIME))


class StepCounts(NamedTuple):
    """Machine steps of the two policies at one n, counted by running them."""

    n: int
    easy: int
    """Steps of the adaptive policy if b = 0."""
    hard: int
    """Steps of the adaptive policy if b = 1."""
    fixed: int
    """Steps of the fixed-runtime policy on any state."""

    @property
    def expected(self) -> Fraction:
        """Expected cost of the adaptive policy, with probability 1 / q(n) of hard states."""
        p_hard = Fraction(1, runtime(self.n))
        return (1 - p_hard) * self.easy + p_hard * self.hard

    @property
    def expected_bound(self) -> int:
        """Upper bound of the theorem on the expected cost of the adaptive policy, c n + 1."""
        return SCAN_COST * self.n + 1

    @property
    def ratio(self) -> Fraction:
        """Cost of the fixed-runtime policy over the expected cost of the adaptive policy."""
        return self.fixed / self.expected

    @property
    def ratio_bound(self) -> Fraction:
        """Lower bound of the theorem on the ratio of every optimal fixed-runtime policy, n^2 / (c n + 1)."""
        return Fraction(self.n**2, self.expected_bound)


def count_steps(n: int) -> StepCounts:
    """Run both policies on one state with b = 0 and one with b = 1. `evaluate_policy` covers all states."""
    easy, hard = "0" * (n + 1), "1" + "0" * n
    adaptive, fixed = adaptive_policy(), fixed_policy()
    return StepCounts(
        n=n, easy=adaptive.run(easy).steps, hard=adaptive.run(hard).steps, fixed=fixed.run(easy).steps
    )


# Step 3: the MDPs.


@dataclass(frozen=True)
class OneStepMDP:
    """The MDP M_n: an initial state is drawn, and the episode ends after one action."""

    n: int

    def states(self) -> Iterator[str]:
        """Yield all initial states, in order."""
        return (format(number, f"0{self.n + 1}b") for number in range(1 << self.n + 1))

    def probability(self, state: str) -> Fraction:
        """Return the probability mu_n of an initial state: b = 1 has 1 / q(n), and x is uniform."""
        p_hard = Fraction(1, runtime(self.n))
        return (p_hard if state[0] == "1" else 1 - p_hard) / (1 << self.n)

    def correct_action(self, state: str) -> int:
        """Return the rewarded action."""
        return hard_action(state[1:]) if state[0] == "1" else 0

    def reward(self, state: str, action: int | None) -> int:
        """Return 1 for the correct action, 0 for the other one or none."""
        return int(action == self.correct_action(state))


class PolicyEvaluation(NamedTuple):
    """Result of running a policy on all states of an MDP."""

    expected_return: Fraction
    expected_cost: Fraction
    min_steps: int
    max_steps: int
    actions: tuple[int | None, ...]


def evaluate_policy(policy: Machine, mdp: OneStepMDP) -> PolicyEvaluation:
    """Run a policy on all states of an MDP, and return its exact expected return and cost."""
    results = {state: policy.run(state) for state in mdp.states()}
    expected_return = expected_cost = Fraction(0)
    for state, result in results.items():
        expected_return += mdp.probability(state) * mdp.reward(state, result.action)
        expected_cost += mdp.probability(state) * result.steps
    steps = [result.steps for result in results.values()]
    return PolicyEvaluation(
        expected_return=expected_return,
        expected_cost=expected_cost,
        min_steps=min(steps),
        max_steps=max(steps),
        actions=tuple(result.action for result in results.values()),
    )


# Step 4: the state that contains the description of the policy itself (diagonalization).


def smallest_n(machine: Machine) -> int:
    """Return the smallest n for which x can contain the description of a machine: 2 l + 1."""
    return 2 * len(machine.describe()) + 1


def diagonal_state(machine: Machine, n: int | None = None) -> str:
    """Return the state 1 x with x = 1^l 0 p 0^k, where p is the description of the machine.

    By default n is the smallest one, so that k = 0.
    """
    description, least = machine.describe(), smallest_n(machine)
    n = least if n is None else n
    if n < least:
        raise UserError(f"a description of {len(description)} bits needs n of at least {least}, not {n}")
    return "1" + "1" * len(description) + "0" + description + "0" * (n - least)


class DiagonalRun(NamedTuple):
    """Result of running a machine on its diagonal state."""

    description_bits: int
    n: int
    steps: int
    action: int | None
    correct_action: int

    @property
    def within_cutoff(self) -> bool:
        """The machine took at most n^2 steps. The proof then says that its reward is 0."""
        return self.steps <= self.n**2

    @property
    def reward(self) -> int:
        return int(self.action == self.correct_action)


def run_on_diagonal_state(machine: Machine) -> DiagonalRun:
    """Run a machine on its diagonal state with the smallest n."""
    state = diagonal_state(machine)
    result = machine.run(state)
    return DiagonalRun(
        description_bits=len(machine.describe()),
        n=len(state) - 1,
        steps=result.steps,
        action=result.action,
        correct_action=hard_action(state[1:]),
    )
