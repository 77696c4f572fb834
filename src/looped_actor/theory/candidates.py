"""Small candidate policies, each to be run on the state with its own description (step 4 of the proof)."""

from looped_actor.theory.machines import BLANK, HALT, MARK, ONE, ZERO, Machine, TransitionTable, assemble

BITS = (ZERO, ONE)
SCAN: TransitionTable = {("scan", bit): ("scan", bit, True) for bit in BITS}


def _parity() -> Machine:
    table: TransitionTable = {}
    for parity in (0, 1):
        for value, bit in enumerate(BITS):
            table[parity, bit] = (parity ^ value, bit, True)
        table[parity, BLANK] = (HALT[parity], BLANK, True)
    return assemble(table, 0)


def _mark_from_both_ends() -> Machine:
    """Mark the bits from both ends in turn until they meet: about n^2 / 2 steps."""
    table: TransitionTable = {}
    for bit in BITS:
        table["first", bit] = ("right", MARK, True)
        table["right", bit] = ("right", bit, True)
        table["last", bit] = ("left", MARK, False)
        table["left", bit] = ("left", bit, False)
    for end in (BLANK, MARK):
        table["first", end] = (HALT[1], end, True)
        table["right", end] = ("last", end, False)
    table["last", MARK] = (HALT[1], MARK, True)
    table["left", MARK] = ("first", MARK, True)
    return assemble(table, "first")


def _mark_from_left() -> Machine:
    """Mark the bits from the left, with a walk to the right end after each: (n + 1)(n + 3) + 1 steps."""
    table: TransitionTable = {}
    for bit in BITS:
        table["first", bit] = ("right", MARK, True)
        table["right", bit] = ("right", bit, True)
        table["left", bit] = ("left", bit, False)
    table["right", BLANK] = ("left", BLANK, False)
    table["left", MARK] = ("first", MARK, True)
    table["first", BLANK] = (HALT[0], BLANK, True)
    return assemble(table, "first")


CANDIDATES: dict[str, Machine] = {
    "always 0": Machine(0, ()),
    "always 1": Machine(1, ()),
    "first bit": assemble({("b", bit): (HALT[bit == ONE], bit, True) for bit in BITS}, "b"),
    "scan": assemble(SCAN | {("scan", BLANK): (HALT[0], BLANK, True)}, "scan"),
    "last bit": assemble(
        SCAN
        | {("scan", BLANK): ("end", BLANK, False)}
        | {("end", bit): (HALT[bit == ONE], bit, True) for bit in BITS},
        "scan",
    ),
    "parity": _parity(),
    "mark both ends": _mark_from_both_ends(),
    "mark from left": _mark_from_left(),
}
"""All halt on every input; only the last one takes more than n^2 steps."""
