"""The adaptive and the fixed-runtime policy of the theorem, as machines.

Both are one universal machine: on the state b x they read a program from x, run it on 1 x for n^2 of its
steps, and do the opposite of what it does. They differ in a single transition. When the adaptive one has
scanned its input and b is 0, it halts with action 0; the fixed one goes on, and throws the result away.

The work is a program over tracks (`tracks`) that only sweeps (`sweeps`), so its runtime on all inputs of a
length is the same, by construction and by count.
"""

import functools
from collections.abc import Hashable

from looped_actor.theory.machines import BLANK, HALT, MARK, ONE, ZERO, Machine, assemble
from looped_actor.theory.reading import Cut, Header, Measure, Unary, Whole
from looped_actor.theory.simulation import Act, Answer, Arm, Choose, Compare, Copy, Counter, Look
from looped_actor.theory.sweeps import LAYOUT, Input, Phase, begin, sweeping
from looped_actor.theory.tracks import compile_program, entrance

PHASES: dict[str, Phase] = {
    "unary": Unary(),
    "measure": Measure(),
    "header": Header(),
    "cut": Cut(),
    "whole": Whole(),
    "rounds": Counter("round", counted="steps", full="answer"),
    "steps": Counter("tock", counted="look", full="rounds"),
    "look": Look(),
    "arm": Arm(),
    "compare": Compare(),
    "choose": Choose(),
    "copy": Copy(),
    "act": Act(),
    "answer": Answer(),
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
    start = begin("unary", PHASES["unary"].start)
    work = compile_program(sweeping(PHASES), LAYOUT, start)
    return assemble(_scan(adaptive) | _spread(entrance(start)) | work, "b")


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
