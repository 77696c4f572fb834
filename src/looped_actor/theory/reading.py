"""Reading x: is it 1^l 0 p 0^k with a program p of l bits, and which bit of p is what?

Where it is not, all roles are forgotten, and what follows finds no program.
"""

from collections.abc import Hashable
from typing import Any

from looped_actor.theory.sweeps import Phase, Role, Seen, begin, bit_of
from looped_actor.theory.tracks import Block


class Eraser(Phase):
    """A phase of reading x that forgets all roles if it remembers "erase": x holds no program."""

    def back(self, memory: Any, block: Block) -> Seen:
        return memory, {"role": Role.NONE} if memory == "erase" else {}


class Unary(Phase):
    """The ones at the beginning of x, and the zero after them."""

    following = "measure"
    start = "prefix"

    def out(self, memory: Any, block: Block) -> Seen:
        if memory is None or block.first:
            return memory, {}
        return ("prefix", {"role": Role.UNARY}) if bit_of(block) else (None, {"role": Role.COMMA})


class Measure(Eraser):
    """For each of these ones a bit after the zero belongs to the program."""

    following = "header"
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


class Header(Eraser):
    """The ones at the beginning of the program, and the zero after them; only zeros follow the program."""

    following = "cut"
    start = "header"

    def out(self, memory: Any, block: Block) -> Seen:
        if memory == "header" and block.role == Role.BODY:
            return ("header", {"role": Role.HEADER}) if bit_of(block) else ("body", {"role": Role.STOP})
        if not block.first and block.role == Role.NONE and bit_of(block):
            return "erase", {}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return None if memory == "body" else "erase"


class Cut(Phase):
    """Give the next bit of the program its role; the header counts the bits of a state."""

    following = "whole"
    repeated = True
    start = ("no header", Role.STOP)

    def out(self, memory: Any, block: Block) -> Seen:
        if isinstance(memory, str):
            return memory, {}
        header, last = memory
        if block.role == Role.HEADER:
            return ("full" if block.done and header != "part" else "part", last), {}
        if block.role == Role.BODY:
            role, memory = self.next_role(header, last)
            return memory, {"role": role}
        return (header, block.role if Role.STATE <= block.role <= Role.MOVE else last), {}

    @staticmethod
    def next_role(header: str, last: int) -> tuple[Role, str]:
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


class Whole(Eraser):
    """The program ends with its header or a whole entry."""

    def out(self, memory: Any, block: Block) -> Seen:
        return (block.role if block.role >= Role.HEADER else memory), {}

    def turn(self, memory: Any) -> Any:
        return None if memory in (Role.STOP, Role.MOVE) else "erase"

    def then(self, memory: Any) -> Hashable:
        return begin("rounds", (False, "stay"))
