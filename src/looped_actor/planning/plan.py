"""What a run would take on chips that are not here, read from programs compiled for them."""

import functools
import hashlib
import importlib.metadata
import json
import pathlib
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from looped_actor.planning.chips import Chip, Topology
from looped_actor.planning.depths import DISTRIBUTIONS, DepthDistribution
from looped_actor.planning.hlo import Body, read_program
from looped_actor.planning.schedule import packed, streamed
from looped_actor.runs.run import Run
from looped_actor.utils.files import cache_folder, write_whole

CHIPS_REPLAYED = 8
"""Whose streams are replayed, to find the slowest."""


class Program(NamedTuple):
    """A compiled program."""

    text: str
    memory: dict[str, int]
    """Bytes on each chip: arguments, results, temporary, code."""
    seconds: float
    """In which it was compiled."""


class Part(NamedTuple):
    """A loop of a program, or what is around its loops."""

    name: str
    passes: float
    """Of an iteration."""
    kernels: float
    """Of one pass."""
    bytes: float
    """Of main memory, in one pass."""
    seconds: float
    """Of one pass, without the loops inside of it."""
    bound: str
    """What takes the time: compute, memory, or launches."""
    exchanges: float
    exchanged: float
    """Bytes, in one pass."""

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return self.passes * self.seconds


class Plan(NamedTuple):
    """What a run would take."""

    topology: str
    chips: int
    memory: float
    """Bytes of a chip that its largest program needs."""
    has: float
    """Bytes of a chip."""
    programs: dict[str, list[Part]]
    """Parts of each, the longest first."""
    loops: float
    """Mean of a thought, assumed."""
    flops: float
    """Of an iteration, for the loops that were asked for."""
    iterations: int
    compiling: float
    """Seconds."""
    peak: float
    """FLOPs per second of a chip."""

    @property
    def _trained(self) -> list[Part]:
        return [part for name, parts in self.programs.items() if name != "evaluate" for part in parts]

    @property
    def seconds(self) -> float:
        """Estimated for an iteration; evaluations come on top."""
        return sum(part.total for part in self._trained)

    @property
    def exchanged(self) -> float:
        """Bytes that a chip sends in an iteration."""
        return sum(part.passes * part.exchanged for part in self._trained)

    @property
    def bound(self) -> str:
        """The loop that takes the most time, and what bounds it."""
        longest = max(self._trained, key=lambda part: part.total)
        return f"{longest.name}, by {longest.bound}"

    @property
    def facts(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        programs = {name: [part._asdict() for part in parts] for name, parts in self.programs.items()}
        more = {name: getattr(self, name) for name in ("seconds", "hours", "exchanged", "bound")}
        return self._asdict() | more | {"programs": programs}

    @property
    def hours(self) -> float:
        """Estimated for the run."""
        return self.seconds * self.iterations / 3600


def compiled(lowered: Any, topology: str, cache: pathlib.Path | None) -> Program:
    """Compile a program, or read it from the cache."""
    about = [lowered.as_text(), topology, *map(_version, ("jaxlib", _compiler(topology)))]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
    place = None if cache is None else cache / f"{key}.plan"
    if place is not None and place.is_file():
        try:
            return Program(*json.loads(zlib.decompress(place.read_bytes())))
        except (ValueError, TypeError, OSError, zlib.error):
            place.unlink(missing_ok=True)  # damaged: made again
    begun = time.monotonic()
    made = lowered.compile()
    stats = made.memory_analysis()
    memory = {
        "arguments": stats.argument_size_in_bytes,
        "results": stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "temporary": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    program = Program(made.as_text(), memory, time.monotonic() - begun)
    if place is not None:
        write_whole(place, zlib.compress(json.dumps(program).encode()))
    return program


def _compiler(topology: str) -> str:
    return "jax-cuda12-plugin" if topology.startswith("h100") else "libtpu"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def default_cache() -> pathlib.Path:
    """Where compiled plans are kept."""
    return cache_folder() / "plans"


def depths_of(run: Run, loops: float | None) -> Int[np.ndarray, " n"]:
    """Loops of a trained policy's thoughts: around a mean, or as the paper reports them."""
    most = run.net.max_loops
    if run.net.halting is None:
        return np.full(1, most)
    reported = DISTRIBUTIONS.get(run.config.task.replace("-", "_")) if loops is None and most == 16 else None
    mean = loops or 0.6 * most
    chosen = reported or DepthDistribution(0.0, mean, min(2.8, mean / 3))
    return np.minimum(chosen.draw(4096), most)


@dataclass(frozen=True, eq=False)
class Schedule:
    """How often the loops of a program are passed."""

    depths: Int[np.ndarray, " n"]
    chips: int
    rows: int
    """Of a stream on each chip."""
    thoughts: int
    """Of each row."""
    batch: int = 1
    """Examples of a minibatch on each chip."""

    def trips(self, loop: Body, within: float) -> float:
        """Passes of a loop each time that it is entered; what holds it is passed `within` times in a row."""
        kind, _, size = loop.name.partition("_")
        if kind in ("settle", "tick") and size:
            return self._streamed(int(size.rpartition("_")[2]))[loop.name]
        if kind in ("forward", "backward") and size:
            forward, backward, slowest = self._packed(int(size), max(1, round(within)))
            return slowest * (forward if kind == "forward" else backward)
        if kind == "steps":
            return self.thoughts
        return 1.0 if loop.trips is None or kind == "restart" else loop.trips

    @functools.cache  # noqa: B019
    def _streamed(self, slots: int) -> dict[str, float]:
        """On the slowest of some chips."""
        runs = [
            streamed(self.depths, self.rows, slots, self.thoughts, seed)
            for seed in range(min(self.chips, CHIPS_REPLAYED))
        ]
        return max(runs, key=_ticks)

    @functools.cache  # noqa: B019
    def _packed(self, chunk: int, at_once: int) -> tuple[float, float, float]:
        return packed(self.depths, self.batch, chunk, at_once, self.chips)


def _ticks(trips: dict[str, float]) -> float:
    settles = {name: count for name, count in trips.items() if name.startswith("settle_")}
    return sum(count * trips[name.replace("settle", "tick")] for name, count in settles.items())


def parts_of(program: Body, chip: Chip, schedule: Schedule) -> list[Part]:
    """All loops of a program, the longest first. Those that do not run are left out."""
    parts: list[Part] = []

    def walk(body: Body, passes: float, within: float, path: str) -> None:
        moved = sum(kernel.bytes for kernel in body.kernels)
        seconds, bound = _cost(body, chip, schedule.chips)
        told = len(body.exchanges), sum(exchange.bytes for exchange in body.exchanges)
        parts.append(Part(path, passes, len(body.kernels), moved, seconds, bound, *told))
        for loop in body.loops:
            trips = schedule.trips(loop, within)
            turns = trips * chip.turn * passes if loop.trips is None else 0.0
            if turns:
                parts.append(Part(f"{loop.name}, asking whether to go on", 1, 0, 0, turns, "launches", 0, 0))
            walk(
                loop,
                passes * trips,
                trips,
                loop.name if re.search(r"_\d", loop.name) else f"{path}/{loop.name or 'loop'}",
            )

    walk(program, 1.0, 1.0, "around")
    joined: dict[str, list[Part]] = {}
    for part in parts:
        joined.setdefault(part.name, []).append(part)
    merged = [_joined(some) for some in joined.values()]
    return sorted((part for part in merged if part.passes), key=lambda part: -part.total)


def _joined(parts: list[Part]) -> Part:
    """Loops of one name as one: the mean of their passes."""
    longest, passes = max(parts, key=lambda part: part.total), sum(part.passes for part in parts)

    def mean(field: str) -> float:
        return sum(part.passes * getattr(part, field) for part in parts) / passes if passes else 0.0

    numbers = {field: mean(field) for field in ("kernels", "bytes", "seconds", "exchanges", "exchanged")}
    return longest._replace(passes=passes, **numbers)


def _cost(body: Body, chip: Chip, chips: int) -> tuple[float, str]:
    """Seconds of one pass, and what takes them."""
    exchanging = sum(chip.meet + 2 * each.bytes / chip.link for each in body.exchanges) if chips > 1 else 0.0
    memory = sum(kernel.bytes for kernel in body.kernels) / chip.bandwidth
    if chip.clock is not None:  # the compiler's cycles; copies go on beside them
        times = {"compute": sum(kernel.cycles for kernel in body.kernels) / chip.clock, "memory": memory}
        total = max(times.values())
    else:
        launches = chip.launch * len(body.kernels)
        compute = sum(kernel.flops for kernel in body.kernels) / chip.peak
        times = {"compute": compute, "memory": memory, "launches": launches}
        total = sum(
            max(kernel.flops / chip.peak, kernel.bytes / chip.bandwidth, chip.launch)
            for kernel in body.kernels
        )
    times["exchange"] = exchanging
    return total + exchanging, max(times, key=lambda what: times[what])


def plan_run(
    run: Run,
    topology: Topology,
    *,
    loops: float | None = None,
    cache: pathlib.Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Compile a run's programs for a topology, and estimate what they take.

    Args:
      run: whose mesh is of the topology.
      topology: the chips.
      loops: mean of a thought. Default: as the paper reports, or 0.6 of the cap.
      cache: where compiled programs are kept.
      progress: is told what is being done.
    """
    assert run.mesh is not None
    chips, depths = run.mesh.size, depths_of(run, loops)
    programs, memory, compiling = {}, 0.0, 0.0
    for name, planned in run.planned_programs().items():
        progress(f"tracing {name}")
        lowered = planned.trace().lower()
        progress(f"compiling {name} for {topology.name}")
        program = compiled(lowered, topology.name, cache)
        compiling += program.seconds
        memory = max(memory, float(sum(program.memory.values())))
        schedule = Schedule(depths, chips, planned.rows, planned.thoughts, planned.batch)
        programs[name] = parts_of(read_program(program.text), topology.chip, schedule)
    counted = run.count(float(depths.mean()))
    return Plan(
        topology.name,
        chips,
        memory,
        topology.chip.memory,
        programs,
        float(depths.mean()),
        counted.flops_per_step * run.config.total_steps / run.config.iterations,
        run.config.iterations,
        compiling,
        topology.chip.peak,
    )
