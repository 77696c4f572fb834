"""Phases that simulate n^2 steps of the parsed program on 1 x, and choose the action.

The simulation runs n rounds of n steps. A step compares the current state and symbol with all transitions of
the program in parallel, one bit of the state in each sweep; selects the first transition that agrees in all
bits; copies its next state to the register; writes its symbol and makes its move. If the simulated machine
has halted or is stuck, no transition agrees, and the step changes nothing.
"""

from typing import Any

from looped_actor.theory.compiler import Block
from looped_actor.theory.machines import BLANK, HALT
from looped_actor.theory.sweeps import Phase, Role, Successor, Update, input_bit


class Count(Phase):
    """Increment a unary counter up to n, or clear it if it is full.

    The memory is (incremented, pending move). The pending move is "right" if the last transition moves to the
    right, which `ReadSymbol` executes, otherwise "stay".
    """

    track: str

    def sweep_right(self, memory: Any, block: Block) -> Update:
        incremented, move = memory
        if incremented or block.first or getattr(block, self.track):
            return memory, {}
        return (True, move), {self.track: 1}

    def turn(self, memory: Any) -> Any:
        return memory

    def sweep_left(self, memory: Any, block: Block) -> Update:
        return memory, {} if memory[0] else {self.track: 0}


class CountRounds(Count):
    """Start the next round, or answer after n rounds."""

    initial_memory = (False, "stay")
    track = "round_mark"

    def finish(self, memory: Any) -> Successor:
        incremented, move = memory
        return (CountSteps, (False, move)) if incremented else (Answer, None)


class CountSteps(Count):
    """Start the next step, or end the round after n steps."""

    track = "step_mark"

    def finish(self, memory: Any) -> Successor:
        incremented, move = memory
        return (ReadSymbol, move) if incremented else (CountRounds, (False, move))


class ReadSymbol(Phase):
    """Make the pending move of the simulated head, and read the symbol under it.

    The memory is the pending move, "place head" between the old and the new block, or the symbol read.
    """

    covers_padding = adds_block = True

    def sweep_right(self, memory: Any, block: Block) -> Update:
        if memory == "stay" and block.head:
            return block.symbol, {}
        if memory == "right" and block.head:
            return "place head", {"head": 0}
        if memory == "place head":
            return block.symbol, {"head": 1}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return memory if isinstance(memory, int) else BLANK  # the head is always in some block

    def finish(self, memory: Any) -> Successor:
        return CompareSymbol, (memory, "halt 0")


def _classify_state(kind: str, bit: int) -> str:
    """Return the kind of a state from its next bit and the kind of its bits so far.

    All ones is "halt 0" (also for no bits), ones and a final zero are "halt 1", all else is "working".
    """
    return {("halt 0", 1): "halt 0", ("halt 0", 0): "halt 1"}.get((kind, bit), "working")


class CompareSymbol(Phase):
    """Mark the transitions that read another symbol; all of them, if the simulated machine has halted.

    Clear `done` in the bits of states, for `CompareState`, and set it in those of next states, for
    `SelectTransition`. The memory is (symbol, kind of the current state).
    """

    def sweep_right(self, memory: Any, block: Block) -> Update:
        symbol, kind = memory
        match block.role:
            case Role.HEADER:
                return (symbol, _classify_state(kind, block.register)), {"done": 0}
            case Role.STATE:
                return memory, {"done": 0, "differs": 0}
            case Role.READ_HIGH:
                return memory, {"differs": int(kind != "working" or symbol >> 1 != input_bit(block))}
            case Role.READ_LOW:
                return memory, {"differs": int(symbol & 1 != input_bit(block))}
            case Role.NEXT_STATE:
                return memory, {"done": 1}
        return memory, {}


class CompareState(Phase):
    """Compare one bit of the current state with all transitions, in each sweep.

    The memory is (bit of the state or None, bit compared in this transition).
    """

    repeated = True
    initial_memory = (None, False)

    def sweep_right(self, memory: Any, block: Block) -> Update:
        bit, compared = memory
        if block.role == Role.HEADER and bit is None and not block.done:
            return (block.register, False), {"done": 1}
        if block.role == Role.STATE and bit is not None and not compared and not block.done:
            return (bit, True), {"done": 1, "differs": int(bit != input_bit(block))}
        if block.role == Role.READ_HIGH:
            return (bit, False), {}
        return memory, {}


class SelectTransition(Phase):
    """Select the first transition without a difference: clear `done` in the bits of its next state."""

    initial_memory = "agrees"

    def sweep_right(self, memory: Any, block: Block) -> Update:
        if block.role == Role.HEADER:
            return memory, {"done": 0}
        memory = _track_agreement(memory, block)
        if memory == "agrees" and block.role == Role.NEXT_STATE:
            return memory, {"done": 0}
        if memory == "agrees" and block.role == Role.MOVE:
            return "selected", {}
        return memory, {}


def _track_agreement(memory: Any, block: Block) -> Any:
    """Return "agrees" or "differs" for a transition up to this block.

    A transition that differs has "ended" in its last block, and the next one starts with "agrees".
    """
    if memory == "ended":
        memory = "agrees"
    if memory == "agrees" and Role.STATE <= block.role <= Role.READ_LOW and block.differs:
        return "differs"
    return "ended" if memory == "differs" and block.role == Role.MOVE else memory


class CopyState(Phase):
    """Copy one bit of the selected next state to the register, in each sweep. The memory is this bit."""

    repeated = True

    def sweep_left(self, memory: Any, block: Block) -> Update:
        if memory is None and block.role == Role.NEXT_STATE and not block.done:
            return input_bit(block), {"done": 1}
        if isinstance(memory, int) and block.role == Role.HEADER and not block.done:
            return "copied", {"register": memory, "done": 1}
        return memory, {}


class ApplyTransition(Phase):
    """Write the symbol of the selected transition, and make its move if that is to the left."""

    covers_padding = True
    initial_memory = "agrees"

    def sweep_right(self, memory: Any, block: Block) -> Update:
        match memory:
            case "high bit", bit if block.role == Role.WRITE_LOW:
                return ("symbol", 2 * bit + input_bit(block)), {}
            case "symbol", symbol if block.role == Role.MOVE:
                return ("apply", symbol, "right" if input_bit(block) else "left"), {}
            case str():
                memory = _track_agreement(memory, block)
                if memory == "agrees" and block.role == Role.WRITE_HIGH:
                    return ("high bit", input_bit(block)), {}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return memory if memory[0] == "apply" else None

    def sweep_left(self, memory: Any, block: Block) -> Update:
        match memory:
            case "apply", symbol, move if block.head:
                if move == "right":
                    return "right", {"symbol": symbol}
                if block.first:
                    return None, {"symbol": symbol}
                return "place head", {"symbol": symbol, "head": 0}
            case "place head":
                return None, {"head": 1}
        return memory, {}

    def finish(self, memory: Any) -> Successor:
        return CountSteps, (False, "right" if memory == "right" else "stay")


class Answer(Phase):
    """Halt with action 1 if b is 1 and the program has halted with action 0, otherwise with action 0."""

    initial_memory = (0, "halt 0")

    def sweep_right(self, memory: Any, block: Block) -> Update:
        if isinstance(memory, int):
            return memory, {}
        b, kind = memory
        if block.first:
            return (input_bit(block), kind), {}
        if block.role == Role.HEADER:
            return (b, _classify_state(kind, block.register)), {}
        if block.role == Role.HEADER_END:
            return int(b == 1 and kind == "halt 0"), {}
        return memory, {}

    def turn(self, memory: Any) -> Any:
        return memory if isinstance(memory, int) else 0

    def finish(self, memory: Any) -> Successor:
        return HALT[memory or 0], None


STEP = (ReadSymbol, CompareSymbol, CompareState, SelectTransition, CopyState, ApplyTransition)
"""Phases of one simulated step, in order."""

SIMULATION = (CountRounds, CountSteps, *STEP, Answer)
"""Phases of the simulation. `ApplyTransition` returns to `CountSteps`, which returns to `CountRounds`."""
