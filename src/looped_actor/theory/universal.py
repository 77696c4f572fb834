"""The adaptive and the fixed-runtime policy of the theorem, as machines.

Both are one universal machine: on the state b x they read a program from x, run it on 1 x for n^2 of its
steps, and do the opposite of what it does. They differ in a single transition. When the adaptive one has
scanned its input and b is 0, it halts with action 0; the fixed one goes on, and throws the result away.

The work is a program over tracks (`tracks`) that only sweeps: to the right over all blocks, back to the
left, and again, so often as n says and never as the input says. So its runtime on all inputs of a length is
the same, by construction and by count.
"""

import functools
from collections.abc import Hashable
from enum import IntEnum
from typing import Any, NamedTuple

from looped_actor.theory.machines import BLANK, HALT, MARK, ONE, ZERO, Machine, assemble
from looped_actor.theory.tracks import Block, Layout, Step, compile_program, entrance


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
        raise NotImplementedError


def program(state: Sweep, block: Block) -> Step:
    """A step of the sweep that a state is on."""
    phase = PHASES[state.name]
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
    return Step(changes, "stay", begin(state.name) if again else phase.then(memory))


def begin(name: str, *memory: Hashable) -> Sweep:
    """The state at the beginning of a sweep."""
    return Sweep(name, memory[0] if memory else PHASES[name].start)


def _bit(block: Block) -> int:
    return int(block.input == Input.ONE)


class _Eraser(Phase):
    """A phase of reading x that forgets all roles if it remembers "erase": x holds no program."""

    def back(self, memory: Any, block: Block) -> Seen:
        return memory, {"role": Role.NONE} if memory == "erase" else {}


class _Unary(Phase):
    """The ones at the beginning of x, and the zero after them."""

    start = "prefix"

    def out(self, memory: Any, block: Block) -> Seen:
        if memory is None or block.first:
            return memory, {}
        return ("prefix", {"role": Role.UNARY}) if _bit(block) else (None, {"role": Role.COMMA})

    def then(self, memory: Any) -> Hashable:
        return begin("measure")


class _Measure(_Eraser):
    """For each of these ones a bit after the zero belongs to the program."""

    repeated = True
    start = "search"

    def out(self, memory: Any, block: Block) -> Seen:
        if memory == "search" and block.role == Role.UNARY and not block.done:
            return "carry", {"done": 1}
        if memory == "carry" and not block.first and block.role == Role.NONE:
            return None, {"role": Role.BODY}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return "erase" if memory == "carry" else None

    def then(self, memory: Any) -> Hashable:
        return begin("header")


class _Header(_Eraser):
    """The ones at the beginning of the program, and the zero after them; only zeros follow the program."""

    start = "header"

    def out(self, memory: Any, block: Block) -> Seen:
        if memory == "header" and block.role == Role.BODY:
            return ("header", {"role": Role.HEADER}) if _bit(block) else ("body", {"role": Role.STOP})
        if not block.first and block.role == Role.NONE and _bit(block):
            return "erase", {}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return None if memory == "body" else "erase"

    def then(self, memory: Any) -> Hashable:
        return begin("cut")


class _Cut(Phase):
    """Give the next bit of the program its role; the header counts the bits of a state."""

    repeated = True
    start = ("no header", Role.STOP)

    def out(self, memory: Any, block: Block) -> Seen:
        if isinstance(memory, str):
            return memory, {}
        header, last = memory
        if block.role == Role.HEADER:
            return ("full" if block.done and header != "part" else "part", last), {}
        if block.role == Role.BODY:
            role, memory = self.following(header, last)
            return memory, {"role": role}
        return (header, block.role if Role.STATE <= block.role <= Role.MOVE else last), {}

    @staticmethod
    def following(header: str, last: int) -> tuple[Role, str]:
        """The role after another, and what becomes of the marks in the header."""
        if last in (Role.STATE, Role.NEXT) and header == "part":
            return Role(last), "mark"
        if last in (Role.STATE, Role.NEXT):
            return Role(last + 1), "clear"
        role = Role.STATE if last in (Role.STOP, Role.MOVE) else Role(last + 1)
        if role in (Role.STATE, Role.NEXT):
            return (Role(role + 1), "keep") if header == "no header" else (role, "mark")
        return role, "keep"

    def turn(self, memory: Any) -> Any:
        return memory if isinstance(memory, str) else "keep"

    def back(self, memory: Any, block: Block) -> Seen:
        if memory == "mark" and block.role == Role.HEADER and not block.done:
            return "keep", {"done": 1}
        if memory == "clear" and block.role == Role.HEADER:
            return memory, {"done": 0}
        return memory, {}

    def then(self, memory: Any) -> Hashable:
        return begin("whole")


class _Whole(_Eraser):
    """The program ends with its header or a whole entry."""

    def out(self, memory: Any, block: Block) -> Seen:
        return (block.role if block.role >= Role.HEADER else memory), {}

    def turn(self, memory: Any) -> Any:
        return None if memory in (Role.STOP, Role.MOVE) else "erase"

    def then(self, memory: Any) -> Hashable:
        return begin("rounds", (False, "stay"))


class _Counter(Phase):
    """Set one more mark; if none is left to set, clear all. It remembers if it has, and a move to be made."""

    def __init__(self, track: str, counted: str, full: str) -> None:
        self.track, self.counted, self.full = track, counted, full

    def out(self, memory: Any, block: Block) -> Seen:
        found, move = memory
        if found or block.first or getattr(block, self.track):
            return memory, {}
        return (True, move), {self.track: 1}

    def turn(self, memory: Any) -> Any:
        return memory

    def back(self, memory: Any, block: Block) -> Seen:
        return memory, {} if memory[0] else {self.track: 0}

    def then(self, memory: Any) -> Hashable:
        found, move = memory
        following = self.counted if found else self.full
        match following:
            case "answer":
                return begin("answer")
            case "look":
                return begin("look", move)
        return begin(following, (False, move))


class _Look(Phase):
    """Move the simulated head to the right, if that is to be done, and read the symbol under it."""

    far = grows = True

    def out(self, memory: Any, block: Block) -> Seen:
        if memory == "stay" and block.head:
            return block.tape, {}
        if memory == "right" and block.head:
            return "place", {"head": 0}
        if memory == "place":
            return block.tape, {"head": 1}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return memory if isinstance(memory, int) else BLANK  # a head is always found

    def then(self, memory: Any) -> Hashable:
        return begin("arm", (memory, "last"))


def _state_kind(kind: str, bit: int) -> str:
    """Read a state bit by bit: is it the "last" (all ones), the one "before" it, or an "other"?"""
    return {("last", 1): "last", ("last", 0): "before"}.get((kind, bit), "other")


class _Arm(Phase):
    """Mark the entries that read another symbol; if the machine has halted, all of them."""

    def out(self, memory: Any, block: Block) -> Seen:
        symbol, kind = memory
        match block.role:
            case Role.HEADER:
                return (symbol, _state_kind(kind, block.register)), {"done": 0}
            case Role.STATE:
                return memory, {"done": 0, "differs": 0}
            case Role.READ_HIGH:
                return memory, {"differs": int(kind != "other" or symbol >> 1 != _bit(block))}
            case Role.READ_LOW:
                return memory, {"differs": int(symbol & 1 != _bit(block))}
            case Role.NEXT:
                return memory, {"done": 1}
        return memory, {}

    def then(self, memory: Any) -> Hashable:
        return begin("compare")


class _Compare(Phase):
    """Carry one bit of the state to all entries at once, and mark those where it differs."""

    repeated = True
    start = (None, False)

    def out(self, memory: Any, block: Block) -> Seen:
        bit, taken = memory
        if block.role == Role.HEADER and bit is None and not block.done:
            return (block.register, False), {"done": 1}
        if block.role == Role.STATE and bit is not None and not taken and not block.done:
            return (bit, True), {"done": 1, "differs": int(bit != _bit(block))}
        if block.role == Role.READ_HIGH:
            return (bit, False), {}
        return memory, {}

    def then(self, memory: Any) -> Hashable:
        return begin("choose")


class _Choose(Phase):
    """Open the next state of the first entry in which nothing differs."""

    start = "same"

    def out(self, memory: Any, block: Block) -> Seen:
        if block.role == Role.HEADER:
            return memory, {"done": 0}
        memory = _entry_so_far(memory, block)
        if memory == "same" and block.role == Role.NEXT:
            return memory, {"done": 0}
        if memory == "same" and block.role == Role.MOVE:
            return "chosen", {}
        return memory, {}

    def then(self, memory: Any) -> Hashable:
        return begin("copy")


def _entry_so_far(memory: Any, block: Block) -> Any:
    """Whether an entry is the "same" so far or "differs", which is forgotten after its end."""
    if memory == "over":
        memory = "same"
    if memory == "same" and Role.STATE <= block.role <= Role.READ_LOW and block.differs:
        return "differs"
    return "over" if memory == "differs" and block.role == Role.MOVE else memory


class _Copy(Phase):
    """Carry one bit of the chosen next state to the register."""

    repeated = True

    def back(self, memory: Any, block: Block) -> Seen:
        if memory is None and block.role == Role.NEXT and not block.done:
            return _bit(block), {"done": 1}
        if isinstance(memory, int) and block.role == Role.HEADER and not block.done:
            return "put", {"register": memory, "done": 1}
        return memory, {}

    def then(self, memory: Any) -> Hashable:
        return begin("act")


class _Act(Phase):
    """Take symbol and move of the chosen entry to the simulated head; a move to the right is made later."""

    far = True
    start = "same"

    def out(self, memory: Any, block: Block) -> Seen:
        match memory:
            case "high", bit if block.role == Role.WRITE_LOW:
                return ("write", 2 * bit + _bit(block)), {}
            case "write", symbol if block.role == Role.MOVE:
                return ("act", symbol, "right" if _bit(block) else "left"), {}
            case str():
                memory = _entry_so_far(memory, block)
                if memory == "same" and block.role == Role.WRITE_HIGH:
                    return ("high", _bit(block)), {}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return memory if memory[0] == "act" else None

    def back(self, memory: Any, block: Block) -> Seen:
        match memory:
            case "act", symbol, move if block.head:
                if move == "right":
                    return "right", {"tape": symbol}
                if block.first:
                    return None, {"tape": symbol}
                return "place", {"tape": symbol, "head": 0}
            case "place":
                return None, {"head": 1}
        return memory, {}

    def then(self, memory: Any) -> Hashable:
        return begin("steps", (False, "right" if memory == "right" else "stay"))


class _Answer(Phase):
    """Action 1 if b is 1 and the program has halted with action 0; else action 0."""

    start = ("no", "last")

    def out(self, memory: Any, block: Block) -> Seen:
        if isinstance(memory, int):
            return memory, {}
        hard, kind = memory
        if block.first:
            return ("yes" if _bit(block) else "no", kind), {}
        if block.role == Role.HEADER:
            return (hard, _state_kind(kind, block.register)), {}
        if block.role == Role.STOP:
            return int(hard == "yes" and kind == "last"), {}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return memory if isinstance(memory, int) else 0

    def then(self, memory: Any) -> Hashable:
        return HALT[memory or 0]


PHASES: dict[str, Phase] = {
    "unary": _Unary(),
    "measure": _Measure(),
    "header": _Header(),
    "cut": _Cut(),
    "whole": _Whole(),
    "rounds": _Counter("round", counted="steps", full="answer"),
    "steps": _Counter("tock", counted="look", full="rounds"),
    "look": _Look(),
    "arm": _Arm(),
    "compare": _Compare(),
    "choose": _Choose(),
    "copy": _Copy(),
    "act": _Act(),
    "answer": _Answer(),
}
"""Reading x (the first five); n times n steps of the program that it holds; the answer."""


@functools.cache
def adaptive_policy() -> Machine:
    """The policy that halts after its scan where b is 0."""
    return _policy(adaptive=True)


@functools.cache
def fixed_policy() -> Machine:
    """The policy that spends the same number of steps on every state of a length."""
    return _policy(adaptive=False)


def _policy(*, adaptive: bool) -> Machine:
    start = begin("unary")
    return assemble(_scan(adaptive) | _spread(entrance(start)) | compile_program(program, LAYOUT, start), "b")


def _scan(adaptive: bool) -> dict:
    """Walk over the input, remembering b and whether it has three bits; mark its end, and walk back."""
    rules: dict = {("b", BLANK): (HALT[0], BLANK, True)}
    for b in (ZERO, ONE):
        rules["b", b] = (("scan", b, 1), MARK, True)
        for length in (1, 2, 3):
            here = ("scan", b, length)
            for symbol in (ZERO, ONE):
                rules[here, symbol] = (("scan", b, min(length + 1, 3)), symbol, True)
            at_once = length < 3 or (adaptive and b == ZERO)
            rules[here, BLANK] = (HALT[0], BLANK, True) if at_once else (("rewind", b), MARK, False)
        for symbol in (ZERO, ONE):
            rules[("rewind", b), symbol] = (("rewind", b), symbol, False)
        rules[("rewind", b), MARK] = (("carry", b, True), BLANK, True)
    return rules


def _spread(done: Hashable) -> dict:
    """Write each bit of the input as a block, to the right of the mark after it."""
    rules: dict = {}
    cells = LAYOUT.cells
    for bit in (ZERO, ONE):
        for first in (True, False):
            carry, at_block = ("carry", bit, first), ("at", bit, first, 0)
            for symbol in (ZERO, ONE):
                rules[carry, symbol] = (carry, symbol, True)
            rules[carry, MARK] = (at_block, MARK, True)
            block = LAYOUT.symbols(
                # The simulated machine runs on 1 x, whatever b is.
                {"input": Input(bit), "tape": ONE if first else bit, "first": first, "head": first}
            )
            rules[at_block, BLANK] = (("new", bit, first, 1), block[0], True)
            for symbol in (ZERO, ONE):
                rules[at_block, symbol] = (("at", bit, first, 1), symbol, True)
            for cell in range(1, cells):
                last = cell == cells - 1
                new = "return" if last else ("new", bit, first, cell + 1)
                rules[("new", bit, first, cell), BLANK] = (new, block[cell], not last)
                for symbol in (BLANK, ZERO, ONE):
                    rules[("at", bit, first, cell), symbol] = (
                        ("at", bit, first, (cell + 1) % cells),
                        symbol,
                        True,
                    )
        rules["return", bit] = ("return", bit, False)
        rules["find", bit] = ("find", bit, False)
        rules["take", bit] = (("carry", bit, False), BLANK, True)
    rules["return", BLANK] = ("return", BLANK, False)
    rules["return", MARK] = ("find", MARK, False)
    rules["find", BLANK] = ("take", BLANK, True)
    rules["take", MARK] = (done, MARK, True)
    return rules
