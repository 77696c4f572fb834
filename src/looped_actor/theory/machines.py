"""Deterministic single-tape Turing machines, with step counts and a binary description.

Theorem 3.1 implements policies as such machines ("Computational conventions" in its proof). The tape is
infinite to the right; a left move on the first cell leaves the head where it is. The tape alphabet has four
symbols: blank, 0, 1 and a mark. A machine starts in state 0 with its head on the first cell of the input. Of
its 2^s states the last two halt: state 2^s - 1 with action 0, state 2^s - 2 with action 1. A machine without
a transition for its state and the symbol under its head is stuck, and has no action.

The description of a machine is

    1^s 0, then for each transition: state, symbol read, next state, symbol written, move

with s bits for a state, 2 for a symbol and 1 for the move (0: left, 1: right). If several transitions have
the same state and symbol, the first one applies. Lists of transitions and valid descriptions are in
one-to-one correspondence.
"""

import functools
import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from looped_actor.utils.compiled import compiled
from looped_actor.utils.errors import UserError

BLANK, ZERO, ONE, MARK = range(4)


class Transition(NamedTuple):
    """One row of a transition table."""

    state: int
    read: int
    next_state: int
    write: int
    right: bool
    """Direction of the move."""


class RunResult(NamedTuple):
    """Result of running a machine on an input."""

    action: int | None
    """None if the machine is stuck or reached the step limit."""
    steps: int
    halted: bool
    """False if the machine reached the step limit. A stuck machine has halted."""


class DescriptionError(UserError):
    """Bits that are not a valid machine description."""


@dataclass(frozen=True)
class Machine:
    """A Turing machine with `2 ** state_bits` states."""

    state_bits: int
    transitions: tuple[Transition, ...]

    def __post_init__(self) -> None:
        states = 1 << self.state_bits
        for transition in self.transitions:
            if not (0 <= transition.state < states and 0 <= transition.next_state < states):
                raise UserError(f"{transition} has a state outside of 0 to {states - 1}")
            if not (0 <= transition.read < 4 and 0 <= transition.write < 4):
                raise UserError(f"{transition} has a symbol outside of 0 to 3")

    def describe(self) -> str:
        """Return the description of the machine, a string of 0 and 1."""
        s = self.state_bits
        rows = (
            _to_bits(t.state, s)
            + _to_bits(t.read, 2)
            + _to_bits(t.next_state, s)
            + _to_bits(t.write, 2)
            + "01"[t.right]
            for t in self.transitions
        )
        return "1" * s + "0" + "".join(rows)

    @classmethod
    def parse(cls, description: str) -> "Machine":
        """Return the machine with a given description."""
        if set(description) - {"0", "1"}:
            raise DescriptionError("a description consists of 0 and 1")
        header, stop, body = description.partition("0")
        if not stop:
            raise DescriptionError("a description starts with 1^s 0, but this one has no 0")
        s = len(header)
        size = 2 * s + 5
        if len(body) % size:
            raise DescriptionError(
                f"{len(body)} bits after the header are not a whole number of transitions of {size} bits"
            )
        return cls(s, tuple(_parse_transition(body[i : i + size], s) for i in range(0, len(body), size)))

    def run(self, word: str, max_steps: int | None = None) -> RunResult:
        """Run on an input of 0 and 1, for at most `max_steps` steps."""
        table, actions, state = self._dense_table
        limit = np.iinfo(np.int64).max if max_steps is None else max_steps
        tape = np.zeros(max(64, 2 * len(word)), np.uint8)
        tape[: len(word)] = [ZERO if bit == "0" else ONE for bit in word]
        head, steps = 0, 0
        while True:
            state, head, steps, stuck = _run(table, actions, tape, state, head, steps, limit)
            if stuck or actions[state] >= 0:
                return RunResult(None if stuck else int(actions[state]), int(steps), True)
            if steps >= limit:
                return RunResult(None, int(steps), False)
            tape = np.concatenate((tape, np.zeros_like(tape)))  # the head is past the end of the array

    @functools.cached_property
    def _dense_table(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Transition table [states, 4], action of each state (-1: not halting) and index of state 0.

        It contains the states that occur. Entries are 8 x next state + 2 x symbol + move, or -1.
        """
        last = (1 << self.state_bits) - 1
        states = {0, last, *(t.state for t in self.transitions), *(t.next_state for t in self.transitions)}
        index = {state: i for i, state in enumerate(sorted(states))}
        table = np.full((len(index), 4), -1, np.int32)
        for state, read, next_state, write, right in reversed(self.transitions):
            table[index[state], read] = 8 * index[next_state] + 2 * write + right
        actions = np.full(len(index), -1, np.int8)
        if self.state_bits and last - 1 in index:
            actions[index[last - 1]] = 1
        actions[index[last]] = 0
        return table, actions, index[0]


HALT = ("halt with action 0", "halt with action 1")
"""Names of the halting states, by action, in a `TransitionTable`."""

TransitionTable = dict[tuple[Hashable, int], tuple[Hashable, int, bool]]
"""Map from (state, symbol read) to (next state, symbol written, move right), with states of any name."""


def assemble(table: TransitionTable, start: Hashable) -> Machine:
    """Return the machine with a given transition table and start state."""
    names = {state: None for state, _ in table} | {next_state: None for next_state, _, _ in table.values()}
    working = [start, *(name for name in names if name != start and name not in HALT)]
    s = (len(working) + 1).bit_length()
    number: dict[Hashable, int] = {name: i for i, name in enumerate(working)}
    number |= {HALT[0]: (1 << s) - 1, HALT[1]: (1 << s) - 2}
    transitions = (
        Transition(state=number[state], read=read, next_state=number[following], write=write, right=right)
        for (state, read), (following, write, right) in table.items()
    )
    return Machine(s, tuple(transitions))


def _to_bits(number: int, width: int) -> str:
    return format(number, f"0{width}b") if width else ""


def _parse_transition(text: str, s: int) -> Transition:
    ends = (0, s, s + 2, 2 * s + 2, 2 * s + 4, 2 * s + 5)
    state, read, next_state, write, right = (int("0" + text[a:b], 2) for a, b in itertools.pairwise(ends))
    return Transition(state=state, read=read, next_state=next_state, write=write, right=bool(right))


@compiled
def _run(table, actions, tape, state, head, steps, limit):
    """Step until the machine halts, is stuck, reaches the limit or moves past the end of `tape`."""
    while actions[state] < 0 and steps < limit and head < tape.size:
        entry = table[state, tape[head]]
        if entry < 0:
            return state, head, steps, True
        tape[head] = (entry >> 1) & 3
        state = entry >> 3
        head = head + 1 if entry & 1 else max(head - 1, 0)
        steps += 1
    return state, head, steps, False
