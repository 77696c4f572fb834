"""Programs that sweep over the whole tape, out and back, in a fixed sequence of moves.

This is the "prescribed sequence of full tape sweeps" in step 1 of the proof of Theorem 3.1. A program is a
list of phases. A phase sweeps from the first block to the right end and back, once or n + 1 times. The block
under the head and the memory of the phase determine the symbols written, but not the moves of the head. The
runtime is therefore the same on all inputs of a length.
"""

import itertools
from collections.abc import Hashable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from looped_actor.theory.compiler import Block, Layout, Program, Step


class Input(IntEnum):
    """Values of the track `input`."""

    OUTSIDE = 0
    """To the right of all blocks."""
    ZERO = 1
    ONE = 2
    PADDING = 3
    """After the input: a block for the tape of the simulated machine only."""


class Role(IntEnum):
    """Values of the track `role`: the function of a bit of x = 1^l 0 p 0^k."""

    NONE = 0
    LENGTH = 1
    """A bit of 1^l."""
    LENGTH_END = 2
    """The 0 after 1^l."""
    UNPARSED = 3
    """A bit of the program p without a role so far."""
    HEADER = 4
    """A bit of 1^s at the beginning of p. Its block holds one bit of the simulated machine's state, too."""
    HEADER_END = 5
    STATE = 6
    READ_HIGH = 7
    READ_LOW = 8
    NEXT_STATE = 9
    WRITE_HIGH = 10
    WRITE_LOW = 11
    MOVE = 12


# In a new block, no cell equals MARK: the machine finds the left end of the blocks by that symbol.
LAYOUT = Layout(
    {
        "input": 2,
        "symbol": 2,  # tape symbol of the simulated machine
        "first": 1,  # 1 in the leftmost block, which holds b
        "register": 1,  # a bit of the simulated machine's state, in blocks with role HEADER
        "role": 4,
        "head": 1,  # 1 under the head of the simulated machine
        "done": 1,  # 1 if this bit has been processed
        "differs": 1,  # 1 if this bit of a transition differs from the current state or symbol
        # Unary counters up to n, with one bit in each block of x:
        "sweep_mark": 1,  # sweeps of a repeated phase
        "step_mark": 1,  # simulated steps of a round
        "round_mark": 1,  # rounds
    }
)
"""Tracks of the universal machine, and their widths in bits."""


class SweepState(NamedTuple):
    """State of a sweeping program."""

    phase: type["Phase"]
    memory: Hashable
    marked: bool = False
    """This sweep of a repeated phase has set a `sweep_mark`."""
    leftward: bool = False


Update = tuple[Any, dict[str, int]]
"""Memory of a phase after a block, and new values of tracks in the block."""

Successor = tuple["type[Phase] | str | None", Hashable]
"""Next phase (a member of `HALT` ends the program) and its memory."""


class Phase:
    """One kind of sweep. The memory is a hashable value; subclasses document theirs."""

    initial_memory: Hashable = None
    covers_padding = False
    """Sweep over the padding blocks, too."""
    adds_block = False
    """Add a padding block at the right end."""
    repeated = False
    """Sweep n + 1 times: one `sweep_mark` is set in each of n sweeps, and all are cleared in the last one."""

    def sweep_right(self, memory: Any, block: Block) -> Update:
        """Process a block on the way to the right."""
        return memory, {}

    def turn(self, memory: Any) -> Any:
        """Return the memory with which the sweep to the left starts."""
        return None

    def sweep_left(self, memory: Any, block: Block) -> Update:
        """Process a block on the way to the left."""
        return memory, {}

    def finish(self, memory: Any) -> Successor:
        """Return the next phase and its memory (None: the next one in order, and its initial memory)."""
        return None, None


def make_sweeping_program(phases: Sequence[type[Phase]]) -> Program:
    """Return the program that executes phases, beginning with `start_phase(phases[0])`."""
    in_order = dict(itertools.pairwise(phases))

    def program(state: SweepState, block: Block) -> Step:
        phase = state.phase()
        if not state.leftward:
            if block.input == Input.OUTSIDE or (not phase.covers_padding and block.input == Input.PADDING):
                added = {"input": int(Input.PADDING)} if phase.adds_block else {}
                return Step(added, "left", state._replace(memory=phase.turn(state.memory), leftward=True))
            memory, changes = phase.sweep_right(state.memory, block)
            marked = state.marked
            if phase.repeated and not marked and not block.first and not block.sweep_mark:
                marked, changes = True, changes | {"sweep_mark": 1}
            return Step(changes, "right", state._replace(memory=memory, marked=marked))
        memory, changes = phase.sweep_left(state.memory, block)
        if phase.repeated and not state.marked:
            changes = changes | {"sweep_mark": 0}
        if not block.first:
            return Step(changes, "left", state._replace(memory=memory))
        if phase.repeated and state.marked:
            return Step(changes, "stay", start_phase(state.phase))
        following, memory = phase.finish(memory)
        return Step(changes, "stay", start_phase(following or in_order[state.phase], memory))

    return program


def start_phase(phase: type[Phase] | str, memory: Hashable = None) -> Hashable:
    """Return the program state at the beginning of a phase. A halting state is returned unchanged."""
    if isinstance(phase, str):
        return phase
    return SweepState(phase, phase.initial_memory if memory is None else memory)


def input_bit(block: Block) -> int:
    """Return the input bit of a block."""
    return int(block.input == Input.ONE)
