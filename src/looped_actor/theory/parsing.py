"""Phases that parse x = 1^l 0 p 0^k, with a machine description p of l bits, and give each bit its role.

If x does not have this form, they erase all roles; the simulation then finds no transitions.
"""

from typing import Any

from looped_actor.theory.compiler import Block
from looped_actor.theory.sweeps import Phase, Role, Update, input_bit


class ErasingPhase(Phase):
    """A phase that erases all roles on the way to the left if its memory is "invalid"."""

    def sweep_left(self, memory: Any, block: Block) -> Update:
        return memory, {"role": Role.NONE} if memory == "invalid" else {}


class MarkLength(Phase):
    """Mark 1^l 0 at the beginning of x."""

    initial_memory = "ones"

    def sweep_right(self, memory: Any, block: Block) -> Update:
        if memory is None or block.first:
            return memory, {}
        return ("ones", {"role": Role.LENGTH}) if input_bit(block) else (None, {"role": Role.LENGTH_END})


class MarkProgram(ErasingPhase):
    """Mark the l bits after 1^l 0 as the program, one in each sweep. x is invalid if it is too short."""

    repeated = True
    initial_memory = "find length bit"

    def sweep_right(self, memory: Any, block: Block) -> Update:
        if memory == "find length bit" and block.role == Role.LENGTH and not block.done:
            return "find program bit", {"done": 1}
        if memory == "find program bit" and not block.first and block.role == Role.NONE:
            return None, {"role": Role.UNPARSED}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return "invalid" if memory == "find program bit" else None


class MarkHeader(ErasingPhase):
    """Mark 1^s 0 at the beginning of the program. x is invalid if there is no 0, or a 1 after the program."""

    initial_memory = "header"

    def sweep_right(self, memory: Any, block: Block) -> Update:
        if memory == "header" and block.role == Role.UNPARSED:
            if input_bit(block):
                return memory, {"role": Role.HEADER}
            return "body", {"role": Role.HEADER_END}
        if not block.first and block.role == Role.NONE and input_bit(block):
            return "invalid", {}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return None if memory == "body" else "invalid"


class AssignRoles(Phase):
    """Give the next bit of the program its role, one in each sweep.

    The s bits of a state are counted on the s blocks of the header: each bit sets one `done`. The memory is
    (header, last role), where header is "empty" (s = 0), "open" (not all are done) or "full". Once a bit has
    its role, the memory is the change to make on the header: "mark" one block, "clear" all, or "keep".
    """

    repeated = True
    initial_memory = ("empty", Role.HEADER_END)

    def sweep_right(self, memory: Any, block: Block) -> Update:
        if isinstance(memory, str):
            return memory, {}
        header, last = memory
        if block.role == Role.HEADER:
            return ("full" if block.done and header != "open" else "open", last), {}
        if block.role == Role.UNPARSED:
            role, header_change = self._next_role(header, last)
            return header_change, {"role": role}
        return (header, block.role if Role.STATE <= block.role <= Role.MOVE else last), {}

    @staticmethod
    def _next_role(header: str, last: int) -> tuple[Role, str]:
        """Return the role that follows another, and the change to make on the header."""
        if last in (Role.STATE, Role.NEXT_STATE):
            return (Role(last), "mark") if header == "open" else (Role(last + 1), "clear")
        role = Role.STATE if last in (Role.HEADER_END, Role.MOVE) else Role(last + 1)
        if role in (Role.STATE, Role.NEXT_STATE):
            return (Role(role + 1), "keep") if header == "empty" else (role, "mark")
        return role, "keep"

    def turn(self, memory: Any) -> Any:
        return memory if isinstance(memory, str) else "keep"

    def sweep_left(self, memory: Any, block: Block) -> Update:
        if memory == "mark" and block.role == Role.HEADER and not block.done:
            return "keep", {"done": 1}
        if memory == "clear" and block.role == Role.HEADER:
            return memory, {"done": 0}
        return memory, {}


class CheckEnd(ErasingPhase):
    """Check that the program ends with its header or a complete transition. The memory is the last role."""

    def sweep_right(self, memory: Any, block: Block) -> Update:
        return (block.role if block.role >= Role.HEADER else memory), {}

    def turn(self, memory: Any) -> Any:
        return None if memory in (Role.HEADER_END, Role.MOVE) else "invalid"


PARSING = (MarkLength, MarkProgram, MarkHeader, AssignRoles, CheckEnd)
"""Phases of parsing, in order."""
