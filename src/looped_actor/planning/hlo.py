"""Cost of a compiled program, loop by loop, read from its text.

XLA's own analysis counts the body of a while loop once, whatever its trips. Here the loops stay apart, as a
tree: a node is the cost of one pass through a body, and its children are the loops inside it.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

_BITS = {"pred": 8, "token": 0, "opaque": 0, "s4": 4, "u4": 4}
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
_FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id"}
_FREE |= {"replica-id", "opt-barrier", "while", "conditional", "call", "iota", "copy-done"}
_SLICES = ("dynamic-slice", "slice", "gather")


class Kernel(NamedTuple):
    """One operation of the hardware."""

    operation: str
    flops: float
    """FLOPs of matrix products."""
    bytes: float
    """Bytes read and written in main memory."""
    cycles: float
    """Cycles by the compiler's estimate; 0 if it gives none."""


class Collective(NamedTuple):
    """One exchange between all devices."""

    operation: str
    bytes: int


@dataclass
class Body:
    """The body of a loop, or a whole program."""

    label: str
    """Scopes in which it was traced."""
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    trips: int | None = None
    """Number of passes; None if it depends on the data."""
    loops: "list[Body]" = field(default_factory=list)
    """Loops inside it."""

    @property
    def name(self) -> str:
        """Innermost scope: `tick_128` of `jit(iterate)/settle_128/while/body/tick_128/while`."""
        scopes = [scope for scope in self.label.split("/") if scope not in ("while", "body", "closed_call")]
        return scopes[-1] if self.label.endswith("/while") and scopes else ""


class _Shape(NamedTuple):
    kind: str
    sides: tuple[int, ...]
    layout: str

    @property
    def elements(self) -> int:
        return math.prod(self.sides)

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return _BITS[self.kind] if self.kind in _BITS else int(re.sub(r"^\D+(\d+).*", r"\1", self.kind))

    @property
    def in_fast_memory(self) -> bool:
        return re.search(r"S\([1-9]\)", self.layout) is not None

    @property
    def bytes(self) -> float:
        """Bytes in main memory, with the padding of its tiles; 0 for arrays in fast memory."""
        if self.in_fast_memory:
            return 0
        order, tile = re.match(r"([\d,]*)(?::T\(([\d,]+)\))?", self.layout).groups()  # type: ignore[union-attr]
        if not tile or not order:
            return self.bits / 8 * self.elements
        sides = [self.sides[int(axis)] for axis in order.split(",")]  # the innermost first
        tiles = [int(side) for side in reversed(tile.split(","))] + [1] * len(sides)
        return self.bits / 8 * math.prod(-(-side // t) * t for side, t in zip(sides, tiles, strict=False))


def _shapes(text: str) -> list[_Shape]:
    return [
        _Shape(kind, tuple(int(side.replace("<=", "")) for side in sides.split(",") if side), layout or "")
        for kind, sides, layout in _ARRAY.findall(text)
        if kind in _BITS or re.fullmatch(r"(?:[suf]|bf|c)\d+\w*", kind)
    ]


@dataclass
class _Instruction:
    name: str
    root: bool
    shape: str
    operation: str
    operands: list[str]
    inside: str
    """Text of the operands."""
    rest: str
    """Text after the operands."""

    @property
    def bytes(self) -> float:
        return sum(shape.bytes for shape in _shapes(self.shape))

    def attribute(self, name: str) -> str | None:
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return found.group(1) if found else None


def _find_closing(text: str) -> int:
    """Return the position of the bracket that closes the one with which the text begins."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return place
    return len(text)


def _parse_instruction(line: str) -> _Instruction | None:
    found = _INSTRUCTION.match(line)
    if found is None:
        return None
    root, name, text = found.groups()
    if text.startswith("("):
        end = _find_closing(text) + 1
        shape, text = text[:end], text[end:].lstrip()
    else:
        shape, _, text = text.partition(" ")
    operation, bracket, _ = text.partition("(")
    if not bracket:
        return None
    text = text[len(operation) :]
    end = _find_closing(text)
    inside = text[1:end]
    operands = re.findall(r"%([\w.\-]+)", inside)
    return _Instruction(name, bool(root), shape, operation, operands, inside, text[end + 1 :])


class _Module:
    """The computations of a program."""

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, _Instruction]] = {}
        self.entry, current = "", None
        for line in text.split("\n"):
            if current is None:
                if begun := _COMPUTATION.match(line):
                    current = self.computations.setdefault(begun.group(2), {})
                    self.entry = begun.group(2) if begun.group(1) else self.entry
            elif line.startswith("}"):
                current = None
            elif (read := _parse_instruction(line)) is not None:
                current[read.name] = read

    def body(self, name: str, label: str, trips: int | None = None) -> Body:
        """Return a computation with all loops inside it."""
        body = Body(label, trips=trips)
        for one in self.computations[name].values():
            if one.operation == "while":
                found = re.search(r'op_name="([^"]*)"', one.rest)
                inner = one.attribute("body") or ""
                trips = self._trips(one)
                body.loops.append(self.body(inner, found.group(1) if found else "", trips))
            elif one.operation == "conditional":  # count the longest branch
                names = re.findall(r"%([\w.\-]+)", one.rest.partition("branch_computations")[2])
                names += [n for side in ("true", "false") if (n := one.attribute(f"{side}_computation"))]
                branches = [self.body(n, label) for n in names if n in self.computations]
                if branches:
                    body.loops.append(max(branches, key=lambda b: sum(k.bytes + k.cycles for k in b.kernels)))
                    body.loops[-1].trips = 1
            elif one.operation == "call":
                body.loops.append(self.body(one.attribute("to_apply") or "", label, 1))
            elif any(one.operation in (kind, f"{kind}-start") for kind in _COLLECTIVES):
                kind = one.operation.removesuffix("-start")
                body.collectives.append(Collective(kind, self._sent(name, one)))
            elif one.operation not in _FREE and not one.operation.endswith("-done"):
                body.kernels.append(self._kernel(name, one))
        return body

    def _trips(self, loop: _Instruction) -> int | None:
        """Return the trips of a counted loop: as annotated, or the limit in its condition."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest):
            return int(known.group(1))
        limits, names = [], [loop.attribute("condition")]
        while names:
            for one in self.computations.get(names.pop() or "", {}).values():
                if one.operation == "constant" and one.shape.startswith("s32[]") and one.inside.isdigit():
                    limits.append(int(one.inside))
                if one.operation == "fusion":
                    names.append(one.attribute("calls"))
        return limits[0] if len(limits) == 1 else None

    def _sent(self, computation: str, one: _Instruction) -> int:
        """Return the bytes of the operands, in any memory and without the padding of tiles."""
        known = self.computations[computation]
        shapes = [shape for name in one.operands if name in known for shape in _shapes(known[name].shape)]
        return sum(shape.elements * shape.bits // 8 for shape in shapes)

    def _kernel(self, computation: str, one: _Instruction) -> Kernel:
        cycles = re.search(r'estimated_cycles":"(\d+)"', one.rest)
        moved = self._moved(computation, one)
        return Kernel(
            one.operation, self._flops(computation, one), moved, float(cycles.group(1)) if cycles else 0.0
        )

    def _flops(self, computation: str, one: _Instruction) -> float:
        """Return the FLOPs of the matrix products in an instruction."""
        if one.operation == "fusion":
            inner = one.attribute("calls") or ""
            return sum(self._flops(inner, part) for part in self.computations.get(inner, {}).values())
        known = self.computations[computation]
        if one.operation == "dot":
            contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.rest)
        elif one.operation == "custom-call" and re.search(r"gemm|matmul", one.rest):
            contracted = re.search(r'lhs_contracting_dimensions":\["?([\d",]*)"?\]', one.rest)
        else:
            return 0.0
        left = _shapes(known[one.operands[0]].shape)[0].sides if one.operands[0] in known else ()
        axes = [int(a) for a in contracted.group(1).replace('"', "").split(",") if a] if contracted else []
        over = math.prod(left[axis] for axis in axes) if axes else (left[-1] if left else 1)
        return 2.0 * _shapes(one.shape)[0].elements * over

    def _moved(self, computation: str, one: _Instruction) -> float:
        """Return the bytes of operands and results in main memory; of slices and updates, of their part."""
        known = self.computations[computation]
        if one.operation == "fusion" and (inner := one.attribute("calls")) in self.computations:
            return self._moved_by_fusion(known, one, self.computations[inner])
        operands = [known[name] for name in one.operands if name in known]
        if one.operation in _SLICES:
            return 2 * one.bytes
        if one.operation == "dynamic-update-slice":
            return 2 * operands[1].bytes
        if one.operation.endswith("-start"):  # (to, from, ...)
            return sum(shape.bytes for shape in _shapes(one.shape)[:2])
        return one.bytes + sum(operand.bytes for operand in operands)

    def _moved_by_fusion(
        self, known: dict[str, _Instruction], one: _Instruction, inner: dict[str, _Instruction]
    ) -> float:
        users = defaultdict(list)
        for part in inner.values():
            for name in part.operands:
                users[name].append(part)
        parameters = {int(p.inside): p.name for p in inner.values() if p.operation == "parameter"}

        def bytes_read(name: str, whole: float) -> float:
            total = 0.0
            for user in users[name]:
                if user.operation == "bitcast":
                    total += bytes_read(user.name, whole)
                elif user.operation in _SLICES and user.operands[0] == name:
                    total += user.bytes
                elif not (user.operation == "dynamic-update-slice" and user.operands[0] == name):
                    return whole
            return min(total, whole)

        read = sum(
            bytes_read(parameters[place], known[name].bytes)
            for place, name in enumerate(one.operands)
            if name in known and place in parameters
        )
        written = one.bytes
        root = next(part for part in inner.values() if part.root)
        roots = [inner[name] for name in root.operands] if root.operation == "tuple" else [root]
        for part in roots:
            if part.operation == "dynamic-update-slice" and not _shapes(part.shape)[0].in_fast_memory:
                written += inner[part.operands[1]].bytes - part.bytes
        return read + max(written, 0.0)


def read_program(text: str) -> Body:
    """Return the tree of a compiled program's loops, from its text."""
    module = _Module(text)
    return module.body(module.entry, "")
