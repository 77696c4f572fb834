"""Compiler from programs on a tape with multiple tracks to the four-symbol machines of `machines`.

A program's tape consists of blocks. A block has one value for each track, and takes several cells of the
machine's tape, two bits to a cell. A program is a Python function from its state and the block under its head
to a `Step`: new values for some tracks, a move to a neighbouring block, and the next state. The compiler
enumerates the steps of each state: it calls the function again with every value of a track that it reads.

The machine executes a step in three stages. It reads the block from left to right, keeping in its state the
branches of the program that remain possible; writes the changes from right to left; and walks to the next
block. The number of its steps depends only on the move. A program with a fixed sequence of moves becomes a
machine with a fixed runtime.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from looped_actor.theory.machines import BLANK, HALT, TransitionTable

Move = Literal["left", "right", "stay"]


class Step(NamedTuple):
    """One step of a program."""

    changes: dict[str, int]
    """New values of tracks in this block."""
    move: Move
    next_state: Hashable
    """State of the program after the step; a member of `HALT` ends it."""


class _UndecidedTrackError(Exception):
    """A program has read a track whose value is not decided yet."""


class Block:
    """View of a block for a program: `block.name` is the value of a track."""

    def __init__(self, values: dict[str, int]) -> None:
        self._values = values

    def __getattr__(self, track: str) -> int:
        if track not in self._values:
            raise _UndecidedTrackError(track)
        return self._values[track]


Program = Callable[[Any, Block], Step]
"""Pure function from (state, block under the head) to a step."""


@dataclass(frozen=True)
class Layout:
    """Positions of the tracks in a block, in the order of `widths`, from the lowest bit up."""

    widths: dict[str, int]
    """Number of bits of each track. The sum is even: a cell has two bits."""

    @functools.cached_property
    def _shifts(self) -> dict[str, int]:
        ends = itertools.accumulate(self.widths.values())
        return {track: end - self.widths[track] for track, end in zip(self.widths, ends, strict=True)}

    @property
    def cells(self) -> int:
        """Number of cells of a block."""
        return sum(self.widths.values()) // 2

    def pack(self, values: dict[str, int]) -> tuple[int, int]:
        """Return the bits of a block that these tracks occupy, as a mask, and their values."""
        mask = value = 0
        for track, number in values.items():
            mask |= ((1 << self.widths[track]) - 1) << self._shifts[track]
            value |= number << self._shifts[track]
        return mask, value

    def symbols(self, values: dict[str, int]) -> list[int]:
        """Return the symbols of a block with these values, and zeros in the other tracks."""
        _, value = self.pack(values)
        return [value >> 2 * cell & 3 for cell in range(self.cells)]


class EnterBlock(NamedTuple):
    """Machine state on the first cell of a block, before a step of the program."""

    state: Hashable


class _PackedStep(NamedTuple):
    """A step with its changes as bits of the block."""

    mask: int
    value: int
    move: Move
    next_state: Hashable


class _Branch(NamedTuple):
    """A step, and the bits of the block under which the program takes it."""

    mask: int
    value: int
    step: _PackedStep


class _Read(NamedTuple):
    """Machine state about to read a cell. Masks and values of branches begin at this cell."""

    cell: int
    branches: frozenset[_Branch]


class _Write(NamedTuple):
    """Machine state about to write a cell, on the way from right to left."""

    cell: int
    step: _PackedStep


class _Walk(NamedTuple):
    """Machine state on the way to the first cell of the next block."""

    right: bool
    cells: int
    next_state: Hashable


def compile_program(program: Program, layout: Layout, start: Hashable) -> TransitionTable:
    """Return the transition table of a machine that runs a program from the state `EnterBlock(start)`."""
    table: TransitionTable = {}
    pending: list[Hashable] = [EnterBlock(start)]
    while pending:
        state = pending.pop()
        if state in HALT or (state, BLANK) in table:
            continue
        stage = state
        if isinstance(state, EnterBlock):
            stage = _Read(0, frozenset(_enumerate_branches(program, layout, state.state)))
        for symbol in range(4):
            table[state, symbol] = _transition(stage, symbol, layout.cells)
            pending.append(table[state, symbol][0])
    return table


def _enumerate_branches(program: Program, layout: Layout, state: Hashable) -> Iterator[_Branch]:
    """Yield the steps of a program in a state: one for each combination of the values that it reads."""
    pending: list[dict[str, int]] = [{}]
    while pending:
        values = pending.pop()
        try:
            step = program(state, Block(values))
        except _UndecidedTrackError as error:
            track = str(error)
            pending += [{**values, track: value} for value in range(1 << layout.widths[track])]
        else:
            changes = {track: new for track, new in step.changes.items() if values.get(track) != new}
            packed = _PackedStep(*layout.pack(changes), step.move, step.next_state)
            yield _Branch(*layout.pack(values), packed)


def _transition(stage: Hashable, symbol: int, cells: int) -> tuple[Hashable, int, bool]:
    """Return the machine's next state, the symbol that it writes, and its move."""
    match stage:
        case _Read(cell, branches):
            possible = frozenset(
                _Branch(branch.mask >> 2, branch.value >> 2, branch.step)
                for branch in branches
                if not (symbol ^ branch.value) & branch.mask & 3
            )
            if cell < cells - 1:
                return _Read(cell + 1, possible), symbol, True
            (branch,) = possible  # all bits are known, and branches exclude each other
            return _Write(cell - 1, branch.step), _overwrite(symbol, cell, branch.step), False
        case _Write(cell, step):
            written = _overwrite(symbol, cell, step)
            if cell:
                low = (1 << 2 * cell) - 1  # drop the cells already written: fewer machine states
                step = step._replace(mask=step.mask & low, value=step.value & low)
                return _Write(cell - 1, step), written, False
            if step.move == "stay":
                return _Walk(False, 1, step.next_state), written, True
            right = step.move == "right"
            return _Walk(right, cells - 1, step.next_state), written, right
        case _Walk(right, distance, state):
            if distance > 1:
                return _Walk(right, distance - 1, state), symbol, right
            return (state if state in HALT else EnterBlock(state)), symbol, right
    raise AssertionError(stage)


def _overwrite(symbol: int, cell: int, step: _PackedStep) -> int:
    mask, value = step.mask >> 2 * cell & 3, step.value >> 2 * cell & 3
    return symbol & ~mask | value & mask
