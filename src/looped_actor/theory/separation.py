"""What adaptive computation saves: the family of MDPs of the theorem, and the costs of its two policies.

A state is b x, with n bits in x. Where b is 0, action 0 is right. Where b is 1, the right action is
`hard_rule(x)`: the opposite of what the program in x does on that very state within n^2 steps. States with
b = 1 are rare: their probability is one over the steps that they take.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from looped_actor.theory.machines import DescriptionError, Machine
from looped_actor.utils.errors import UserError

SCAN_COST = 2
"""The constant c of the theorem: a scan of b x takes n + 2 steps, which is at most 2 n for n of 2 or more."""


def program_in(x: str) -> Machine | None:
    """The program p of x = 1^l 0 p 0^k with l bits in p; None if there is none."""
    unary, comma, rest = x.partition("0")
    description, padding = rest[: len(unary)], rest[len(unary) :]
    if not comma or len(description) < len(unary) or "1" in padding:
        return None
    try:
        return Machine.parse(description)
    except DescriptionError:
        return None


def hard_rule(x: str) -> int:
    """h_n(x): disagree with the program in x if it has an action on 1 x within n^2 steps; else 0."""
    program = program_in(x)
    if program is None:
        return 0
    action = program.run("1" + x, limit=len(x) ** 2).action
    return 0 if action is None else 1 - action


def room_for(machine: Machine) -> int:
    """The least n for which a state of n + 1 bits can hold a machine's own description."""
    return 2 * len(machine.describe()) + 1


def own_state(machine: Machine, n: int | None = None) -> str:
    """The state 1 x whose program is the machine that looks at it."""
    description = machine.describe()
    least = room_for(machine)
    n = least if n is None else n
    if n < least:
        raise UserError(f"a description of {len(description)} bits needs n of at least {least}, not {n}")
    return "1" + "1" * len(description) + "0" + description + "0" * (n - least)


class Costs(NamedTuple):
    """What the two policies spend at one n, by count."""

    n: int
    easy: int
    """Steps of the adaptive policy where b is 0."""
    hard: int
    """Steps of the adaptive policy where b is 1; q(n), so hard states have probability 1 / q(n)."""
    fixed: int
    """Steps of the fixed policy, on any state."""

    @property
    def adaptive(self) -> Fraction:
        """Expected steps of the adaptive policy."""
        return (1 - Fraction(1, self.hard)) * self.easy + 1

    @property
    def most(self) -> int:
        """What the theorem allows the adaptive policy: c n + 1."""
        return SCAN_COST * self.n + 1

    @property
    def ratio(self) -> Fraction:
        """Steps of the fixed policy for one of the adaptive."""
        return self.fixed / self.adaptive

    @property
    def bound(self) -> Fraction:
        """What the theorem says of every fixed policy that is optimal and short enough: n^2 / (c n + 1)."""
        return Fraction(self.n**2, self.most)


class OneStepMDP(NamedTuple):
    """M_n: a state is drawn, one action taken, and the episode is over."""

    n: int
    hard_odds: int
    """q(n): one state in q(n) is hard, on average."""

    def states(self) -> Iterator[str]:
        """All states, in order."""
        return (format(number, f"0{self.n + 1}b") for number in range(1 << self.n + 1))

    def probability(self, state: str) -> Fraction:
        """Of beginning in a state."""
        hard = Fraction(1, self.hard_odds)
        return (hard if state[0] == "1" else 1 - hard) / (1 << self.n)

    def right_action(self, state: str) -> int:
        """The action that is rewarded."""
        return hard_rule(state[1:]) if state[0] == "1" else 0

    def reward(self, state: str, action: int | None) -> int:
        """1 for the right action, else 0; also for none."""
        return int(action == self.right_action(state))


class Examination(NamedTuple):
    """A policy on every state of an MDP."""

    expected_return: Fraction
    expected_cost: Fraction
    fewest: int
    """Steps, over all states."""
    most: int
    actions: tuple[int | None, ...]


def examine(policy: Machine, mdp: OneStepMDP) -> Examination:
    """Run a policy on every state, and count."""
    value = cost = Fraction(0)
    outcomes = [policy.run(state) for state in mdp.states()]
    for state, outcome in zip(mdp.states(), outcomes, strict=True):
        probability = mdp.probability(state)
        value += probability * mdp.reward(state, outcome.action)
        cost += probability * outcome.steps
    steps = [outcome.steps for outcome in outcomes]
    return Examination(value, cost, min(steps), max(steps), tuple(outcome.action for outcome in outcomes))


def costs(adaptive: Machine, fixed: Machine, n: int) -> Costs:
    """Count the steps of both policies on a state of each kind; `examine` tries all of them."""
    x = "0" * n
    return Costs(n, adaptive.run("0" + x).steps, adaptive.run("1" + x).steps, fixed.run("0" + x).steps)


def polynomial_through(points: dict[int, int]) -> list[Fraction]:
    """Coefficients, constant first, of the polynomial of least degree through points (n, value); exact."""
    coefficients, basis = [Fraction(0)] * len(points), [Fraction(1)]
    for number, (n, value) in enumerate(points.items()):
        scale = (value - evaluate(coefficients, n)) / evaluate(basis, n)
        for power, part in enumerate(basis):
            coefficients[power] += scale * part
        if number < len(points) - 1:  # times (z - n), which is zero at all points so far
            basis = [
                up - n * down for up, down in zip([Fraction(0), *basis], [*basis, Fraction(0)], strict=True)
            ]
    while len(coefficients) > 1 and not coefficients[-1]:
        coefficients.pop()
    return coefficients


def evaluate(coefficients: list[Fraction], n: int) -> Fraction:
    """The value of a polynomial."""
    return sum((part * n**power for power, part in enumerate(coefficients)), Fraction(0))


class Trial(NamedTuple):
    """A machine on the state that holds its own description."""

    bits: int
    n: int
    steps: int
    action: int | None
    right_action: int

    @property
    def within(self) -> bool:
        """Whether it took at most n^2 steps, so that the theorem speaks of it."""
        return self.steps <= self.n**2

    @property
    def reward(self) -> int:
        """Of what it did."""
        return int(self.action == self.right_action)


def on_own_state(machine: Machine, n: int | None = None) -> Trial:
    """Run a machine on the state that holds it."""
    state = own_state(machine, n)
    outcome = machine.run(state)
    return Trial(len(machine.describe()), len(state) - 1, outcome.steps, outcome.action, hard_rule(state[1:]))
