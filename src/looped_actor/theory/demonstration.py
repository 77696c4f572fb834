"""The theorem shown on concrete machines: what `looped-actor theory` prints, as data and sentences."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from looped_actor.theory.machines import ONE, Entry, Machine
from looped_actor.theory.separation import (
    Costs,
    OneStepMDP,
    costs,
    evaluate,
    examine,
    hard_rule,
    own_state,
    polynomial_through,
)
from looped_actor.theory.universal import adaptive_policy, fixed_policy
from looped_actor.utils.processes import Progress

WITHIN_REACH = 26
"""The n of states that hold a program of one entry and one bit of padding: about 1e8 steps of a policy."""


def count_costs(lengths: Sequence[int], progress: Progress) -> list[Costs]:
    """Steps of both policies, at each n."""
    adaptive, fixed = adaptive_policy(), fixed_policy()
    counted = []
    for number, n in enumerate(sorted(set(lengths))):
        progress(number, len(lengths))
        counted.append(costs(adaptive, fixed, n))
    progress(len(lengths), len(lengths))
    return counted


def as_rows(counted: Sequence[Costs]) -> list[dict[str, Any]]:
    """Counts as rows of a table."""
    return [
        {
            "n": row.n,
            "fixed": row.fixed,
            "adaptive": float(row.adaptive),
            "most": row.most,
            "easy": row.easy,
            "hard": row.hard,
            "ratio": float(row.ratio),
            "bound": float(row.bound),
        }
        for row in counted
    ]


def try_all_states(largest: int, progress: Progress) -> Iterator[str]:
    """Both policies on every state up to an n; a sentence for each n."""
    adaptive, fixed = adaptive_policy(), fixed_policy()
    for n in range(2, largest + 1):
        mdp = OneStepMDP(n, adaptive.run("1" + "0" * n).steps)
        ours, theirs = examine(adaptive, mdp), examine(fixed, mdp)
        progress(n - 1, largest - 1)
        same = sum(a == b for a, b in zip(ours.actions, theirs.actions, strict=True))
        yield (
            f"n = {n}: same action on {same} of {len(ours.actions)} states, returns {ours.expected_return} "
            f"and {theirs.expected_return}; adaptive {ours.fewest:,} to {ours.most:,} steps, expected "
            f"{float(ours.expected_cost):.4f}; fixed {theirs.fewest:,} to {theirs.most:,}"
        )


def random_program(rng: random.Random) -> Machine:
    """A program of one entry, which applies at least once: it begins on a 1."""
    return Machine(2, (Entry(0, ONE, rng.randrange(4), rng.randrange(4), rng.random() < 0.5),))


def try_programs(samples: int, seed: int, progress: Progress) -> str:
    """Both policies on states that hold random programs; a sentence."""
    rng = random.Random(seed)
    adaptive, fixed = adaptive_policy(), fixed_policy()
    same = right = ones = 0
    for number in range(samples):
        progress(number, samples)
        state = own_state(random_program(rng), WITHIN_REACH - rng.randrange(2))
        ours, theirs = adaptive.run(state), fixed.run(state)
        same += ours.action == theirs.action
        right += theirs.action == hard_rule(state[1:])
        ones += theirs.action or 0
    progress(samples, samples)
    return (
        f"n = 25 and 26: same action on {same} of {samples} states that hold random programs of one entry, "
        f"and the right one on {right}; {ones} times it is 1"
    )


def what_is_proof_only() -> list[str]:
    """What these machines are, and where running ends."""
    adaptive, fixed = adaptive_policy(), fixed_policy()
    runtime = polynomial_through({n: fixed.run("0" * (n + 1)).steps for n in range(2, 9)})
    longest = max(len(machine.describe()) for machine in (adaptive, fixed))
    terms = " + ".join(
        f"{part}{' n' * (p > 0)}{f'^{p}' * (p > 1)}" for p, part in reversed(list(enumerate(runtime)))
    )
    room = 2 * (longest + 1) + 1
    return [
        f"q(n) = {terms}: the steps of the fixed policy, a polynomial through n = 2 to 8 "
        f"({'and' if evaluate(runtime, 12) == fixed.run('0' * 13).steps else 'but not'} at n = 12).",
        f"Both policies have {longest:,} bits, so K_0 = {longest + 1:,}. Of every optimal policy with fewer "
        f"bits and a fixed runtime, n^2 / (c n + 1) is proved for n from {room:,} on: more than can be run.",
    ]
