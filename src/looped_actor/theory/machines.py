"""Single-tape Turing machines: run with every step counted, and written as bits that can be read back.

The tape has a left end, where a move to the left stays, and four symbols: blank, 0, 1 and a mark. A machine
begins in state 0 on the first cell of its input. Of its 2^s states the last two halt: the very last with
action 0, the one before it with action 1. In a state and symbol without an entry the machine is stuck,
and has no action.

The description of a machine is

    1^s 0, then for each entry: state, symbol read, next state, symbol written, move

with states in s bits, symbols in 2 and the move in 1 (left 0, right 1). Of two entries for one state and
symbol the first counts. So every list of entries has one description, and every description one list.
"""

import functools
import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from looped_actor.utils.compiled import compiled
from looped_actor.utils.errors import UserError

BLANK, ZERO, ONE, MARK = range(4)


class Entry(NamedTuple):
    """What a machine does in a state when it reads a symbol."""

    state: int
    read: int
    then: int
    write: int
    right: bool


class Outcome(NamedTuple):
    """How a run ended."""

    action: int | None
    """None if the machine is stuck, or was stopped before it halted."""
    steps: int
    halted: bool
    """False if the limit came first. A stuck machine has halted."""


class DescriptionError(UserError):
    """Bits that describe no machine."""


@dataclass(frozen=True)
class Machine:
    """A transition table, with `2 ** state_bits` states."""

    state_bits: int
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        states = 1 << self.state_bits
        for entry in self.entries:
            if not (0 <= entry.state < states and 0 <= entry.then < states):
                raise UserError(f"{entry} has a state outside of 0 to {states - 1}")
            if not (0 <= entry.read < 4 and 0 <= entry.write < 4):
                raise UserError(f"{entry} has a symbol outside of 0 to 3")

    def describe(self) -> str:
        """The machine as a string of bits."""
        s = self.state_bits
        entries = (
            bits(entry.state, s)
            + bits(entry.read, 2)
            + bits(entry.then, s)
            + bits(entry.write, 2)
            + "01"[entry.right]
            for entry in self.entries
        )
        return "1" * s + "0" + "".join(entries)

    @classmethod
    def parse(cls, description: str) -> "Machine":
        """The machine that a string of bits describes."""
        if set(description) - {"0", "1"}:
            raise DescriptionError("a description consists of 0 and 1")
        header, stop, body = description.partition("0")
        if not stop:
            raise DescriptionError(
                "the bits of a state are counted by ones before the first 0: there is none"
            )
        s = len(header)
        size = 2 * s + 5
        if len(body) % size:
            raise DescriptionError(f"{len(body)} bits of entries do not divide into entries of {size} bits")
        return cls(s, tuple(_entry(body[at : at + size], s) for at in range(0, len(body), size)))

    def run(self, word: str, limit: int | None = None) -> Outcome:
        """Run on a word of 0 and 1, for at most `limit` steps."""
        table, actions, start = self._compact
        most = np.iinfo(np.int64).max if limit is None else limit
        tape = np.zeros(max(64, 2 * len(word)), np.uint8)
        tape[: len(word)] = [ZERO if bit == "0" else ONE for bit in word]
        state, at, steps = start, 0, 0
        while True:
            state, at, steps, stuck = _run(table, actions, tape, state, at, steps, most)
            if stuck or actions[state] >= 0:
                return Outcome(None if stuck else int(actions[state]), int(steps), True)
            if steps >= most:
                return Outcome(None, int(steps), False)
            tape = np.concatenate((tape, np.zeros_like(tape)))  # it stands at the end of what there is

    @functools.cached_property
    def _compact(self) -> tuple[np.ndarray, np.ndarray, int]:
        """What follows in the states that occur, packed as 8 x state + 2 x symbol + move."""
        last = (1 << self.state_bits) - 1
        names = {0, last, *(entry.state for entry in self.entries), *(entry.then for entry in self.entries)}
        place = {name: i for i, name in enumerate(sorted(names))}
        table = np.full((len(place), 4), -1, np.int32)
        for state, read, then, write, right in reversed(self.entries):
            table[place[state], read] = 8 * place[then] + 2 * write + right
        actions = np.full(len(place), -1, np.int8)
        if self.state_bits and last - 1 in place:
            actions[place[last - 1]] = 1
        actions[place[last]] = 0
        return table, actions, place[0]


HALT = ("halt with action 0", "halt with action 1")
"""Names of the halting states, by action, in the rules that `assemble` takes."""

Rules = Mapping[Any, tuple[Any, int, bool]]
"""(state, symbol read) to (next state, symbol written, to the right), with states of any name."""


def assemble(rules: Rules, start: Hashable) -> Machine:
    """The machine of rules whose states have names."""
    names = {state: None for state, _ in rules} | {then: None for then, _, _ in rules.values()}
    working = [start, *(name for name in names if name != start and name not in HALT)]
    s = (len(working) + 1).bit_length()
    number = {name: i for i, name in enumerate(working)}
    number |= {HALT[0]: (1 << s) - 1, HALT[1]: (1 << s) - 2}
    return Machine(
        s,
        tuple(
            Entry(number[state], read, number[then], write, right)
            for (state, read), (then, write, right) in rules.items()
        ),
    )


def bits(number: int, width: int) -> str:
    """A number in binary; no bits of no width."""
    return format(number, f"0{width}b") if width else ""


def _entry(text: str, s: int) -> Entry:
    cuts = (0, s, s + 2, 2 * s + 2, 2 * s + 4, 2 * s + 5)
    fields = [int("0" + text[a:b], 2) for a, b in itertools.pairwise(cuts)]
    return Entry(*fields[:4], right=bool(fields[4]))


@compiled
def _run(table, actions, tape, state, at, steps, limit):
    """Step until the machine halts, is stuck, reaches the limit, or leaves the tape that there is."""
    while actions[state] < 0 and steps < limit and at < tape.size:
        packed = table[state, tape[at]]
        if packed < 0:
            return state, at, steps, True
        tape[at] = (packed >> 1) & 3
        state = packed >> 3
        at = at + 1 if packed & 1 else max(at - 1, 0)
        steps += 1
    return state, at, steps, False
