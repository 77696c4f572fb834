"""Measurements and sentences that the command prints about the construction."""

import random
from collections.abc import Iterator, Sequence

from looped_actor.theory.machines import ONE, Machine, Transition
from looped_actor.theory.separation import (
    RUNTIME,
    OneStepMDP,
    StepCounts,
    count_steps,
    diagonal_state,
    evaluate_policy,
    hard_action,
    runtime,
)
from looped_actor.theory.universal import adaptive_policy, fixed_policy
from looped_actor.utils.processes import Progress

PROGRAM_N = 25
"""Smallest n for a program of one transition (two state bits). A policy takes about 6e7 steps there."""


def count_all_steps(lengths: Sequence[int], progress: Progress) -> list[StepCounts]:
    """Return the steps of both policies at each n, in increasing order."""
    lengths = sorted(set(lengths))
    counts = []
    for number, n in enumerate(lengths, start=1):
        counts.append(count_steps(n))
        progress(number, len(lengths))
    return counts


def to_rows(counts: Sequence[StepCounts]) -> list[dict[str, float]]:
    """Return the rows of separation.csv."""
    return [
        {
            "n": row.n,
            "fixed": row.fixed,
            "adaptive": float(row.expected),
            "most": row.expected_bound,
            "easy": row.easy,
            "hard": row.hard,
            "ratio": float(row.ratio),
            "bound": float(row.ratio_bound),
        }
        for row in counts
    ]


def compare_on_all_states(max_n: int, progress: Progress) -> Iterator[str]:
    """Run both policies on all states, for n from 2 to `max_n`; yield a sentence for each n."""
    for n in range(2, max_n + 1):
        mdp = OneStepMDP(n)
        adaptive, fixed = evaluate_policy(adaptive_policy(), mdp), evaluate_policy(fixed_policy(), mdp)
        progress(n - 1, max_n - 1)
        same = sum(a == b for a, b in zip(adaptive.actions, fixed.actions, strict=True))
        yield (
            f"n = {n}: same action on {same} of {len(fixed.actions)} states. Adaptive: return "
            f"{adaptive.expected_return}, {adaptive.min_steps:,} to {adaptive.max_steps:,} steps, "
            f"{float(adaptive.expected_cost):.4f} expected. Fixed runtime: return "
            f"{fixed.expected_return}, {fixed.min_steps:,} to {fixed.max_steps:,} steps."
        )


def sample_program(rng: random.Random) -> Machine:
    """Return a random machine with one transition, which applies in the first step: it reads b = 1."""
    transition = Transition(
        state=0, read=ONE, next_state=rng.randrange(4), write=rng.randrange(4), right=rng.random() < 0.5
    )
    return Machine(2, (transition,))


def compare_on_random_programs(samples: int, seed: int, progress: Progress) -> str:
    """Run both policies on hard states that contain random programs; return a sentence."""
    rng = random.Random(seed)
    same = correct = ones = 0
    for number in range(samples):
        progress(number, samples)
        state = diagonal_state(sample_program(rng), PROGRAM_N + 1 - rng.randrange(2))
        adaptive, fixed = adaptive_policy().run(state).action, fixed_policy().run(state).action
        same += adaptive == fixed
        correct += fixed == hard_action(state[1:])
        ones += fixed == 1
    progress(samples, samples)
    return (
        f"n = {PROGRAM_N} and {PROGRAM_N + 1}: on {samples} states that contain random programs of one "
        f"transition, same action on {same}, correct action on {correct}, action 1 on {ones}."
    )


def describe_scope() -> list[str]:
    """Return sentences about q(n), K_0, and the n from which the lower bound is proved."""
    terms = " + ".join(
        f"{coefficient}{' n' * (power > 0)}{f'^{power}' * (power > 1)}"
        for power, coefficient in reversed(list(enumerate(RUNTIME)))
    )
    lengths = (2, 3, 4, 5, 6, 7, 8, 12)
    confirmed = all(fixed_policy().run("0" * (n + 1)).steps == runtime(n) for n in lengths)
    k_0 = 1 + max(len(policy.describe()) for policy in (adaptive_policy(), fixed_policy()))
    return [
        f"The fixed-runtime policy takes q(n) = {terms} steps: "
        f"{'confirmed' if confirmed else 'wrong'} at n = 2 to 8 and 12.",
        f"The description of each policy has {k_0 - 1:,} bits, so K_0 = {k_0:,}. For optimal fixed-runtime "
        f"policies with shorter descriptions than K_0, the ratio bound n^2 / (c n + 1) is proved from "
        f"n = {2 * k_0 + 1:,} on, which is too large to run.",
    ]
