"""Running the program that was read, n times n steps of it, and answering with the opposite.

A step carries the state's bits one by one to all entries at once, takes the first entry in which nothing
differs, carries its next state back, and its symbol and move to where the simulated head is.
"""

from collections.abc import Hashable
from typing import Any

from looped_actor.theory.machines import BLANK, HALT
from looped_actor.theory.sweeps import Phase, Role, Seen, begin, bit_of
from looped_actor.theory.tracks import Block


class Counter(Phase):
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


class Look(Phase):
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


class Arm(Phase):
    """Mark the entries that read another symbol; if the machine has halted, all of them."""

    following = "compare"

    def out(self, memory: Any, block: Block) -> Seen:
        symbol, kind = memory
        match block.role:
            case Role.HEADER:
                return (symbol, _state_kind(kind, block.register)), {"done": 0}
            case Role.STATE:
                return memory, {"done": 0, "differs": 0}
            case Role.READ_HIGH:
                return memory, {"differs": int(kind != "other" or symbol >> 1 != bit_of(block))}
            case Role.READ_LOW:
                return memory, {"differs": int(symbol & 1 != bit_of(block))}
            case Role.NEXT:
                return memory, {"done": 1}
        return memory, {}


class Compare(Phase):
    """Carry one bit of the state to all entries at once, and mark those where it differs."""

    following = "choose"
    repeated = True
    start = (None, False)

    def out(self, memory: Any, block: Block) -> Seen:
        bit, taken = memory
        if block.role == Role.HEADER and bit is None and not block.done:
            return (block.register, False), {"done": 1}
        if block.role == Role.STATE and bit is not None and not taken and not block.done:
            return (bit, True), {"done": 1, "differs": int(bit != bit_of(block))}
        if block.role == Role.READ_HIGH:
            return (bit, False), {}
        return memory, {}


class Choose(Phase):
    """Open the next state of the first entry in which nothing differs."""

    following = "copy"
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


def _entry_so_far(memory: Any, block: Block) -> Any:
    """Whether an entry is the "same" so far or "differs", which is forgotten after its end."""
    if memory == "over":
        memory = "same"
    if memory == "same" and Role.STATE <= block.role <= Role.READ_LOW and block.differs:
        return "differs"
    return "over" if memory == "differs" and block.role == Role.MOVE else memory


class Copy(Phase):
    """Carry one bit of the chosen next state to the register."""

    following = "act"
    repeated = True

    def back(self, memory: Any, block: Block) -> Seen:
        if memory is None and block.role == Role.NEXT and not block.done:
            return bit_of(block), {"done": 1}
        if isinstance(memory, int) and block.role == Role.HEADER and not block.done:
            return "put", {"register": memory, "done": 1}
        return memory, {}


class Act(Phase):
    """Take symbol and move of the chosen entry to the simulated head; a move to the right is made later."""

    far = True
    start = "same"

    def out(self, memory: Any, block: Block) -> Seen:
        match memory:
            case "high", bit if block.role == Role.WRITE_LOW:
                return ("write", 2 * bit + bit_of(block)), {}
            case "write", symbol if block.role == Role.MOVE:
                return ("act", symbol, "right" if bit_of(block) else "left"), {}
            case str():
                memory = _entry_so_far(memory, block)
                if memory == "same" and block.role == Role.WRITE_HIGH:
                    return ("high", bit_of(block)), {}
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


class Answer(Phase):
    """Action 1 if b is 1 and the program has halted with action 0; else action 0."""

    start = ("no", "last")

    def out(self, memory: Any, block: Block) -> Seen:
        if isinstance(memory, int):
            return memory, {}
        hard, kind = memory
        if block.first:
            return ("yes" if bit_of(block) else "no", kind), {}
        if block.role == Role.HEADER:
            return (hard, _state_kind(kind, block.register)), {}
        if block.role == Role.STOP:
            return int(hard == "yes" and kind == "last"), {}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return memory if isinstance(memory, int) else 0

    def then(self, memory: Any) -> Hashable:
        return HALT[memory or 0]
