"""Universal machine, and the adaptive and the fixed-runtime policy built from it (proof, steps 1 and 2).

On the state b x, both policies parse a program from x, simulate n^2 of its steps on 1 x, and take the
opposite of its action. They differ in one transition: after its scan of the input, the adaptive policy halts
with action 0 if b is 0. The fixed-runtime policy continues, and discards the result if b is 0.

A machine starts with a scan of the input, copies it to one block for each bit, and then parses and
simulates on the blocks.
"""

import functools
from collections.abc import Hashable

from looped_actor.theory.compiler import EnterBlock, compile_program
from looped_actor.theory.machines import BLANK, HALT, MARK, ONE, ZERO, Machine, TransitionTable, assemble
from looped_actor.theory.parsing import PARSING
from looped_actor.theory.simulation import SIMULATION
from looped_actor.theory.sweeps import LAYOUT, Input, make_sweeping_program, start_phase


@functools.cache
def adaptive_policy() -> Machine:
    """Return the policy pi_ad, which halts after the scan if b is 0."""
    return _make_policy(adaptive=True)


@functools.cache
def fixed_policy() -> Machine:
    """Return the policy pi_fix, which takes the same number of steps on all states of a length."""
    return _make_policy(adaptive=False)


def _make_policy(*, adaptive: bool) -> Machine:
    phases = (*PARSING, *SIMULATION)
    start = start_phase(phases[0])
    table = _scan_input(adaptive) | _copy_input_to_blocks(done=EnterBlock(start))
    return assemble(table | compile_program(make_sweeping_program(phases), LAYOUT, start), "read b")


def _scan_input(adaptive: bool) -> TransitionTable:
    """Scan the input with b and min(length, 3) in the state; mark both ends, and return to the first cell.

    On inputs of fewer than three bits, both policies halt with action 0 after the scan.
    """
    table: TransitionTable = {("read b", BLANK): (HALT[0], BLANK, True)}
    for b in (ZERO, ONE):
        table["read b", b] = (("scan", b, 1), MARK, True)
        for length in (1, 2, 3):
            state = ("scan", b, length)
            for symbol in (ZERO, ONE):
                table[state, symbol] = (("scan", b, min(length + 1, 3)), symbol, True)
            halts = length < 3 or (adaptive and b == ZERO)
            table[state, BLANK] = (HALT[0], BLANK, True) if halts else (("rewind", b), MARK, False)
        for symbol in (ZERO, ONE):
            table[("rewind", b), symbol] = (("rewind", b), symbol, False)
        table[("rewind", b), MARK] = (("carry", b, True), BLANK, True)
    return table


def _copy_input_to_blocks(done: Hashable) -> TransitionTable:
    """Move the input, bit by bit, to blocks after the mark at its end; then go to `done` on the first block.

    The machine erases a bit ("take"), carries it to the mark ("carry") and past the existing blocks ("skip"),
    writes a new block ("write"), and returns to the mark ("return") and the erased cell ("find"). States with
    a bit contain a flag for the first one, b; "skip" and "write" also contain the cell of the block.
    """
    table: TransitionTable = {}
    cells = LAYOUT.cells
    for bit in (ZERO, ONE):
        for first in (True, False):
            carry, next_block = ("carry", bit, first), ("skip", bit, first, 0)
            for symbol in (ZERO, ONE):
                table[carry, symbol] = (carry, symbol, True)
            table[carry, MARK] = (next_block, MARK, True)
            block = LAYOUT.symbols(
                # The simulated machine runs on 1 x, whatever b is.
                {"input": Input(bit), "symbol": ONE if first else bit, "first": first, "head": first}
            )
            table[next_block, BLANK] = (("write", bit, first, 1), block[0], True)
            for symbol in (ZERO, ONE):
                table[next_block, symbol] = (("skip", bit, first, 1), symbol, True)
            for cell in range(1, cells):
                last = cell == cells - 1
                next_state = "return" if last else ("write", bit, first, cell + 1)
                table[("write", bit, first, cell), BLANK] = (next_state, block[cell], not last)
                for symbol in (BLANK, ZERO, ONE):
                    next_state = ("skip", bit, first, (cell + 1) % cells)
                    table[("skip", bit, first, cell), symbol] = (next_state, symbol, True)
        table["return", bit] = ("return", bit, False)
        table["find", bit] = ("find", bit, False)
        table["take", bit] = (("carry", bit, False), BLANK, True)
    table["return", BLANK] = ("return", BLANK, False)
    table["return", MARK] = ("find", MARK, False)
    table["find", BLANK] = ("take", BLANK, True)
    table["take", MARK] = (done, MARK, True)
    return table
