"""Small machines that would like to be optimal policies, to be tried on the state that holds themselves."""

from looped_actor.theory.machines import BLANK, HALT, MARK, ONE, ZERO, Machine, assemble

BITS = (ZERO, ONE)


def _first_bit() -> Machine:
    return assemble({("b", ZERO): (HALT[0], ZERO, True), ("b", ONE): (HALT[1], ONE, True)}, "b")


def _scan() -> Machine:
    """What the adaptive policy does where b is 0, done everywhere."""
    rules = {("scan", bit): ("scan", bit, True) for bit in BITS}
    return assemble(rules | {("scan", BLANK): (HALT[0], BLANK, True)}, "scan")


def _last_bit() -> Machine:
    rules: dict = {("scan", bit): ("scan", bit, True) for bit in BITS}
    rules |= {("scan", BLANK): ("end", BLANK, False)}
    return assemble(rules | {("end", bit): (HALT[bit == ONE], bit, True) for bit in BITS}, "scan")


def _parity() -> Machine:
    rules: dict = {}
    for sum_so_far in (0, 1):
        for value, bit in enumerate(BITS):
            rules[sum_so_far, bit] = (sum_so_far ^ value, bit, True)
        rules[sum_so_far, BLANK] = (HALT[sum_so_far], BLANK, True)
    return assemble(rules, 0)


def _both_ends() -> Machine:
    """Mark the bits from both ends in turn, until they meet: about n^2 / 2 steps on every input."""
    rules: dict = {}
    for bit in BITS:
        rules["first", bit] = ("right", MARK, True)
        rules["right", bit] = ("right", bit, True)
        rules["last", bit] = ("left", MARK, False)
        rules["left", bit] = ("left", bit, False)
    for end in (BLANK, MARK):
        rules["first", end] = (HALT[1], end, True)
        rules["right", end] = ("last", end, False)
    rules["last", MARK] = (HALT[1], MARK, True)
    rules["left", MARK] = ("first", MARK, True)
    return assemble(rules, "first")


def _one_end() -> Machine:
    """Mark the bits from the left, going to the end each time: (n + 1)(n + 3) steps and one more."""
    rules: dict = {}
    for bit in BITS:
        rules["first", bit] = ("right", MARK, True)
        rules["right", bit] = ("right", bit, True)
        rules["left", bit] = ("left", bit, False)
    rules["right", BLANK] = ("left", BLANK, False)
    rules["left", MARK] = ("first", MARK, True)
    rules["first", BLANK] = (HALT[0], BLANK, True)
    return assemble(rules, "first")


CANDIDATES: dict[str, Machine] = {
    "always 0": Machine(0, ()),
    "always 1": Machine(1, ()),
    "the bit b": _first_bit(),
    "0, after a scan": _scan(),
    "the last bit": _last_bit(),
    "parity of all bits": _parity(),
    "1, from both ends": _both_ends(),
    "0, from one end": _one_end(),
}
"""By what they answer. All halt on every input; the last takes more than n^2 steps, and is not caught."""
