"""Programs over a tape with many tracks, compiled to machines with the four symbols of `machines`.

A block of the tape holds one bit or more of every track; a program looks at the block under its head,
changes tracks of it, and goes to a neighbouring block. It is an ordinary function that reads the tracks it
wants. The compiler calls it once for every answer it could get, and so finds out what it does.

Each step of a program takes the same number of steps of the machine, whatever is on the tape: the machine
reads a block from left to right, remembers what matters, writes on its way back, and goes on. So a program
whose head moves by a schedule becomes a machine that moves by a schedule.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from looped_actor.theory.machines import HALT
from looped_actor.utils.errors import UserError

Move = Literal["left", "right", "stay"]


class Step(NamedTuple):
    """What a program does in a block: new values of tracks, where it goes, and its state there."""

    changes: dict[str, int]
    move: Move
    then: Hashable


class _UnknownError(Exception):
    """A program has asked for a track whose value is not decided yet."""


class Block:
    """What a program sees: a track's value, as an attribute of its name."""

    def __init__(self, known: dict[str, int]) -> None:
        self._known = known

    def __getattr__(self, track: str) -> int:
        if track not in self._known:
            raise _UnknownError(track)
        return self._known[track]


Program = Callable[[Any, Block], Step]


@dataclass(frozen=True)
class Layout:
    """Where the tracks lie in a block: two bits to a cell, in the order of their widths in bits."""

    widths: dict[str, int]

    def __post_init__(self) -> None:
        bits = sum(self.widths.values())
        if bits % 2:
            raise UserError(f"{bits} bits do not fill cells of two")

    @functools.cached_property
    def _shifts(self) -> dict[str, int]:
        ends = itertools.accumulate(self.widths.values())
        return {track: end - self.widths[track] for track, end in zip(self.widths, ends, strict=True)}

    @property
    def cells(self) -> int:
        """Cells of a block."""
        return sum(self.widths.values()) // 2

    def pack(self, values: dict[str, int]) -> tuple[int, int]:
        """Which bits of a block these tracks are, and their values, as two numbers."""
        mask = value = 0
        for track, number in values.items():
            mask |= ((1 << self.widths[track]) - 1) << self._shifts[track]
            value |= number << self._shifts[track]
        return mask, value

    def symbols(self, values: dict[str, int]) -> list[int]:
        """A block with these values, and zeros elsewhere, as symbols."""
        _, value = self.pack(values)
        return [value >> 2 * cell & 3 for cell in range(self.cells)]


class _Deed(NamedTuple):
    """A step in bits."""

    mask: int
    value: int
    move: Move
    then: Hashable


class _Case(NamedTuple):
    """A step, and the bits for which it is taken."""

    mask: int
    value: int
    deed: _Deed


class _Read(NamedTuple):
    """A state of the machine: about to read a cell; these cases are left."""

    cell: int
    cases: frozenset[_Case]


class _Write(NamedTuple):
    """On its way back through a block, with bits to write."""

    cell: int
    deed: _Deed


class _Travel(NamedTuple):
    """On its way to a neighbouring block."""

    right: bool
    cells: int
    then: Hashable


def compile_program(program: Program, layout: Layout, start: Hashable) -> dict:
    """Rules of a machine that runs a program; `entrance` names the state in which it begins."""
    rules: dict = {}
    pending, seen = [start], {start}

    def enter(state: Hashable) -> Hashable:
        """The machine's state at the first cell of a block."""
        if state in HALT:
            return state
        if state not in seen:
            seen.add(state)
            pending.append(state)
        return entrance(state)

    while pending:
        state = pending.pop()
        first = _Read(0, frozenset(_cases(program, layout, state)))
        _add_block(rules, layout.cells, entrance(state), first, enter)
    return rules


def entrance(start: Hashable) -> Hashable:
    """The machine's state in which a compiled program begins, on the first cell of a block."""
    return ("block", start)


def _cases(program: Program, layout: Layout, state: Hashable) -> Iterator[_Case]:
    """Everything that a program may do in a state: called again with one more answer each time it asks."""
    pending: list[dict[str, int]] = [{}]
    while pending:
        known = pending.pop()
        try:
            step = program(state, Block(known))
        except _UnknownError as asked:
            track = str(asked)
            pending += [{**known, track: value} for value in range(1 << layout.widths[track])]
        else:
            changes = {track: new for track, new in step.changes.items() if known.get(track) != new}
            yield _Case(*layout.pack(known), _Deed(*layout.pack(changes), step.move, step.then))


def _add_block(rules: dict, cells: int, name: Hashable, first: _Read, enter: Callable) -> None:
    """Rules for one step of a program, from the first cell of a block to the first of the next."""
    pending: list[tuple[Hashable, Hashable]] = [(name, first)]
    while pending:
        state, what = pending.pop()
        if (state, 0) in rules:
            continue
        for symbol in range(4):
            then, write, right = _rule(what, symbol, cells, enter)
            rules[state, symbol] = (then, write, right)
            if isinstance(then, (_Read, _Write, _Travel)):
                pending.append((then, then))


def _rule(what: Hashable, symbol: int, cells: int, enter: Callable) -> tuple[Hashable, int, bool]:
    match what:
        case _Read(cell, cases):
            left = frozenset(
                _Case(case.mask >> 2, case.value >> 2, case.deed)
                for case in cases
                if not (symbol ^ case.value) & case.mask & 3
            )
            if cell < cells - 1:
                return _Read(cell + 1, left), symbol, True
            (case,) = left  # all bits are known, and the cases exclude each other
            return _Write(cell - 1, case.deed), _written(symbol, cell, case.deed), False
        case _Write(cell, deed):
            write = _written(symbol, cell, deed)
            if cell:
                low = (1 << 2 * cell) - 1  # what lies to the right is written: forget it
                return (
                    _Write(cell - 1, deed._replace(mask=deed.mask & low, value=deed.value & low)),
                    write,
                    False,
                )
            if deed.move == "stay":
                return _Travel(False, 1, deed.then), write, True
            right = deed.move == "right"
            return _Travel(right, cells - 1, deed.then), write, right
        case _Travel(right, left, then):
            return (_Travel(right, left - 1, then) if left > 1 else enter(then)), symbol, right
    raise AssertionError(what)


def _written(symbol: int, cell: int, deed: _Deed) -> int:
    mask, value = deed.mask >> 2 * cell & 3, deed.value >> 2 * cell & 3
    return symbol & ~mask | value & mask
