"""Programs that only sweep: out over all blocks, back, and again, as often as n says, whatever the input.

A phase is one kind of sweep. What it does in a block depends on the block and on what it remembers; where it
goes does not. So the runtime of such a program is the same on all inputs of a length.
"""

from collections.abc import Hashable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from looped_actor.theory.tracks import Block, Layout, Program, Step

START = "start"
"""Stands for what a phase remembers at its beginning."""


class Input(IntEnum):
    """The track that says which blocks there are."""

    OUTSIDE = 0
    ZERO = 1
    ONE = 2
    PAD = 3
    """A block after the input, on which only the simulated machine writes."""


class Role(IntEnum):
    """What a bit of x = 1^l 0 p 0^k is there for."""

    NONE = 0
    UNARY = 1
    COMMA = 2
    BODY = 3
    """Of the program p, and not yet cut into fields."""
    HEADER = 4
    """One of the ones that count the bits of a state. The state of the simulated machine is kept here."""
    STOP = 5
    STATE = 6
    READ_HIGH = 7
    READ_LOW = 8
    NEXT = 9
    WRITE_HIGH = 10
    WRITE_LOW = 11
    MOVE = 12


LAYOUT = Layout(
    {
        "input": 2,
        "tape": 2,  # a symbol of the simulated machine
        "first": 1,  # the leftmost block
        "register": 1,  # a bit of the simulated machine's state
        "role": 4,
        "head": 1,  # the simulated head is here
        "done": 1,  # this bit of a field has had its turn
        "differs": 1,  # this bit of an entry differs from state or symbol
        "tick": 1,  # three counters up to n, a mark for each
        "tock": 1,
        "round": 1,
    }
)
"""In a fresh block no cell is MARK: that bounds the blocks on the left while they are made."""


class Sweep(NamedTuple):
    """A state of the program: which sweep it is on, what it remembers, and in which direction it goes."""

    name: str
    memory: Hashable = None
    ticked: bool = False
    """Of a repeated sweep: this one has set a mark of its counter."""
    back: bool = False


Seen = tuple[Any, dict[str, int]]
"""What a sweep remembers after a block, and what it changes in it."""


class Phase:
    """One sweep out and back; this one only passes."""

    far = False
    """Whether it sweeps over all blocks, or those of the input only."""
    grows = False
    """Whether it adds a block at the right end."""
    repeated = False
    """Whether it is repeated until each bit of x has been counted: n times, and once more."""
    start: Hashable = None
    """What it remembers at its beginning."""
    following = ""
    """The phase after it, where that is always the same."""

    def out(self, memory: Any, block: Block) -> Seen:
        """On the way to the right."""
        return memory, {}

    def turn(self, memory: Any) -> Any:
        """What is remembered on the way back."""
        return None

    def back(self, memory: Any, block: Block) -> Seen:
        """On the way to the left."""
        return memory, {}

    def then(self, memory: Any) -> Hashable:
        """The state after it."""
        return begin(self.following)


def sweeping(phases: Mapping[str, Phase]) -> Program:
    """The program that goes through phases."""

    def begun(state: Hashable) -> Hashable:
        if isinstance(state, Sweep) and state.memory is START:
            return state._replace(memory=phases[state.name].start)
        return state

    def program(state: Sweep, block: Block) -> Step:
        phase = phases[state.name]
        if not state.back:
            if block.input == Input.OUTSIDE or (not phase.far and block.input == Input.PAD):
                added = {"input": int(Input.PAD)} if phase.grows else {}
                return Step(added, "left", state._replace(memory=phase.turn(state.memory), back=True))
            memory, changes = phase.out(state.memory, block)
            ticked = state.ticked
            if phase.repeated and not ticked and not block.first and not block.tick:
                ticked, changes = True, changes | {"tick": 1}
            return Step(changes, "right", state._replace(memory=memory, ticked=ticked))
        memory, changes = phase.back(state.memory, block)
        if phase.repeated and not state.ticked:
            changes = changes | {"tick": 0}
        if not block.first:
            return Step(changes, "left", state._replace(memory=memory))
        again = phase.repeated and state.ticked
        return Step(changes, "stay", begun(begin(state.name) if again else phase.then(memory)))

    return program


def begin(name: str, memory: Hashable = START) -> Sweep:
    """The state at the beginning of a sweep; without a memory, with the one that the phase starts with."""
    return Sweep(name, memory)


def bit_of(block: Block) -> int:
    """The bit of the input in a block."""
    return int(block.input == Input.ONE)
