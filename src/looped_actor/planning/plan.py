"""Time and memory of a run on chips that are not attached, from programs compiled for them."""

import functools
import hashlib
import importlib.metadata
import json
import pathlib
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from looped_actor.planning.chips import Chip, Topology
from looped_actor.planning.depths import DISTRIBUTIONS, DepthDistribution
from looped_actor.planning.estimate import count
from looped_actor.planning.hlo import Body, read_program
from looped_actor.planning.programs import planned_programs
from looped_actor.planning.schedule import PackedLoops, count_packed_loops, count_stream_trips
from looped_actor.runs.run import Run
from looped_actor.utils.files import cache_folder, write_whole

MAX_STREAMS = 8
"""Chips whose streams are replayed, to find the slowest."""


class CompiledProgram(NamedTuple):
    """A compiled program."""

    text: str
    memory: dict[str, int]
    """Bytes on each chip: arguments, results, temporary, code."""
    seconds: float
    """Time that it took to compile."""


@dataclass(frozen=True, kw_only=True)
class LoopCost:
    """Cost of one loop of a program, without the loops inside it; or of what is outside of all loops."""

    name: str
    passes: float
    """Passes in an iteration of training, or in a batch of an evaluation."""
    kernels: float
    """Kernels of a pass."""
    bytes: float
    """Bytes of main memory, of a pass."""
    seconds: float
    """Seconds of a pass."""
    bound: str
    """Bottleneck: compute, memory, launches or exchange."""
    collectives: float
    """Exchanges between chips, of a pass."""
    collective_bytes: float
    """Bytes that they send, of a pass."""

    @property
    def total(self) -> float:
        """Seconds of all passes."""
        return self.passes * self.seconds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Estimated time and memory of a run."""

    topology: str
    chips: int
    memory: float
    """Bytes of a chip that the largest program needs."""
    chip_memory: float
    """Bytes that a chip has."""
    programs: dict[str, list[LoopCost]]
    """Loops of each program, the longest first."""
    mean_loops: float
    """Assumed loops per decision."""
    flops: float
    """FLOPs of an iteration at the mean loops."""
    iterations: int
    compile_seconds: float
    peak: float
    """FLOPs per second of a chip."""

    @property
    def _training(self) -> list[LoopCost]:
        return [loop for name, loops in self.programs.items() if name != "evaluate" for loop in loops]

    @property
    def seconds(self) -> float:
        """Seconds of an iteration, without evaluations."""
        return sum(loop.total for loop in self._training)

    @property
    def hours(self) -> float:
        """Hours of the run, without evaluations."""
        return self.seconds * self.iterations / 3600

    @property
    def collective_bytes(self) -> float:
        """Bytes that a chip sends in an iteration."""
        return sum(loop.passes * loop.collective_bytes for loop in self._training)

    @property
    def bound(self) -> str:
        """The loop that takes the most time, and its bottleneck."""
        longest = max(self._training, key=lambda loop: loop.total)
        return f"{longest.name}, by {longest.bound}"

    @property
    def results(self) -> dict[str, Any]:
        """All fields and properties, as JSON."""
        properties = ("seconds", "hours", "collective_bytes", "bound")
        return asdict(self) | {name: getattr(self, name) for name in properties}


def compile_program(lowered: Any, topology: str, cache: pathlib.Path | None) -> CompiledProgram:
    """Compile a program, or read it from the cache."""
    versions = map(_version, ("jaxlib", "jax-cuda12-plugin" if topology.startswith("h100") else "libtpu"))
    key = hashlib.sha256(json.dumps([lowered.as_text(), topology, *versions]).encode()).hexdigest()[:32]
    path = None if cache is None else cache / f"{key}.plan"
    if path is not None and path.is_file():
        try:
            return CompiledProgram(*json.loads(zlib.decompress(path.read_bytes())))
        except (ValueError, TypeError, OSError, zlib.error):
            path.unlink(missing_ok=True)  # damaged
    start = time.monotonic()
    compiled = lowered.compile()
    analysis = compiled.memory_analysis()
    memory = {
        "arguments": analysis.argument_size_in_bytes,
        "results": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        "temporary": analysis.temp_size_in_bytes,
        "code": analysis.generated_code_size_in_bytes,
    }
    program = CompiledProgram(compiled.as_text(), memory, time.monotonic() - start)
    if path is not None:
        write_whole(path, zlib.compress(json.dumps(program).encode()))
    return program


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def default_cache() -> pathlib.Path:
    """Return the folder in which compiled plans are kept."""
    return cache_folder() / "plans"


def assumed_depths(run: Run, mean_loops: float | None) -> Int[np.ndarray, " n"]:
    """Return loops of a trained policy's decisions: around a mean, or else as the paper reports them."""
    spec = run.spec
    if spec.halting is None:
        return np.full(1, spec.max_loops)
    reported = DISTRIBUTIONS.get(run.config.task) if mean_loops is None and spec.max_loops == 16 else None
    mean = mean_loops or 0.6 * spec.max_loops
    depths = reported or DepthDistribution(at_cap=0.0, mean_below=mean, deviation=min(2.8, mean / 3))
    return np.minimum(depths.draw(4096), spec.max_loops)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Trip counts of a program's loops."""

    depths: Int[np.ndarray, " n"]
    """Loops per decision, to draw from."""
    chips: int
    rows: int
    """Rows of a stream on each chip."""
    decisions: int
    """Decisions of each row."""
    batch: int = 1
    """Examples of a minibatch on each chip."""

    def trips(self, loop: Body, enclosing: float) -> float:
        """Return the passes of a loop for each pass of the loop around it, which makes `enclosing` passes."""
        kind, _, size = loop.name.partition("_")
        if kind in ("settle", "tick") and size:
            return self._stream_trips(int(size.rpartition("_")[2]))[loop.name]
        if kind in ("forward", "backward") and size:
            packed = self._packed_loops(int(size), max(1, round(enclosing)))
            return packed.slowest_over_mean * getattr(packed, kind)
        if kind == "steps":
            return self.decisions
        return 1.0 if loop.trips is None or kind == "restart" else loop.trips

    @functools.cache  # noqa: B019
    def _stream_trips(self, slots: int) -> dict[str, float]:
        """Return the trips on the slowest of some chips."""
        runs = [
            count_stream_trips(self.depths, self.rows, slots, self.decisions, seed)
            for seed in range(min(self.chips, MAX_STREAMS))
        ]
        return max(runs, key=_count_ticks)

    @functools.cache  # noqa: B019
    def _packed_loops(self, microbatch: int, together: int) -> PackedLoops:
        return count_packed_loops(self.depths, self.batch, microbatch, together, self.chips)


def _count_ticks(trips: dict[str, float]) -> float:
    settles = {name: trip for name, trip in trips.items() if name.startswith("settle_")}
    return sum(trip * trips[name.replace("settle", "tick")] for name, trip in settles.items())


def loop_costs(program: Body, chip: Chip, schedule: Schedule) -> list[LoopCost]:
    """Return the costs of all loops of a program that run, the longest first."""
    by_name: dict[str, list[LoopCost]] = {}

    def add(cost: LoopCost) -> None:
        by_name.setdefault(cost.name, []).append(cost)

    def walk(body: Body, passes: float, enclosing: float, path: str) -> None:
        add(_cost_of_body(body, passes, path, chip, schedule.chips))
        for loop in body.loops:
            trips = schedule.trips(loop, enclosing)
            if loop.trips is None and trips * chip.loop_latency * passes:
                add(
                    LoopCost(
                        name=f"{loop.name}, reading back whether it continues",
                        passes=1,
                        kernels=0,
                        bytes=0,
                        seconds=trips * chip.loop_latency * passes,
                        bound="launches",
                        collectives=0,
                        collective_bytes=0,
                    )
                )
            named = re.search(r"_\d", loop.name)
            walk(loop, passes * trips, trips, loop.name if named else f"{path}/{loop.name or 'loop'}")

    walk(program, 1.0, 1.0, "outside")
    merged = [_merge(costs) for costs in by_name.values()]
    return sorted((cost for cost in merged if cost.passes), key=lambda cost: -cost.total)


def _merge(costs: list[LoopCost]) -> LoopCost:
    """Return loops of one name as one, with the mean of their passes."""
    passes = sum(cost.passes for cost in costs)

    def mean(field: str) -> float:
        return sum(cost.passes * getattr(cost, field) for cost in costs) / passes if passes else 0.0

    return LoopCost(
        name=costs[0].name,
        passes=passes,
        kernels=mean("kernels"),
        bytes=mean("bytes"),
        seconds=mean("seconds"),
        bound=max(costs, key=lambda cost: cost.total).bound,
        collectives=mean("collectives"),
        collective_bytes=mean("collective_bytes"),
    )


def _cost_of_body(body: Body, passes: float, name: str, chip: Chip, chips: int) -> LoopCost:
    bytes_moved = sum(kernel.bytes for kernel in body.kernels)
    seconds = {"memory": bytes_moved / chip.bandwidth}
    if chip.clock is not None:  # cycles by the compiler's estimate; copies overlap with them
        seconds["compute"] = sum(kernel.cycles for kernel in body.kernels) / chip.clock
        total = max(seconds.values())
    else:
        seconds["compute"] = sum(kernel.flops for kernel in body.kernels) / chip.peak
        seconds["launches"] = chip.kernel_latency * len(body.kernels)
        total = sum(
            max(kernel.flops / chip.peak, kernel.bytes / chip.bandwidth, chip.kernel_latency)
            for kernel in body.kernels
        )
    seconds["exchange"] = 0.0
    if chips > 1:
        seconds["exchange"] = sum(
            chip.collective_latency + 2 * one.bytes / chip.link for one in body.collectives
        )
    return LoopCost(
        name=name,
        passes=passes,
        kernels=len(body.kernels),
        bytes=bytes_moved,
        seconds=total + seconds["exchange"],
        bound=max(seconds, key=lambda bottleneck: seconds[bottleneck]),
        collectives=len(body.collectives),
        collective_bytes=sum(one.bytes for one in body.collectives),
    )


def plan_run(
    run: Run,
    topology: Topology,
    *,
    mean_loops: float | None = None,
    cache: pathlib.Path | None = None,
    report: Callable[[str], None] = lambda step: None,
) -> Plan:
    """Compile a run's programs for a topology, and estimate their time and memory.

    Args:
      run: the run, whose mesh is of the topology.
      topology: the chips.
      mean_loops: loops per decision. Default: as the paper reports, or 0.6 of the cap.
      cache: folder that keeps compiled programs.
      report: called with a description of each step.
    """
    assert run.mesh is not None
    chips, depths = run.mesh.size, assumed_depths(run, mean_loops)
    programs, memory, compile_seconds = {}, 0.0, 0.0
    for name, traced in planned_programs(run).items():
        report(f"tracing {name}")
        lowered = traced.trace().lower()
        report(f"compiling {name} for {topology.name}")
        program = compile_program(lowered, topology.name, cache)
        compile_seconds += program.seconds
        memory = max(memory, float(sum(program.memory.values())))
        schedule = Schedule(depths, chips, traced.rows, traced.decisions, traced.batch)
        programs[name] = loop_costs(read_program(program.text), topology.chip, schedule)
    mean, config = float(depths.mean()), run.config
    return Plan(
        topology=topology.name,
        chips=chips,
        memory=memory,
        chip_memory=topology.chip.memory,
        programs=programs,
        mean_loops=mean,
        flops=count(run, mean).flops_per_step * config.total_steps / config.iterations,
        iterations=config.iterations,
        compile_seconds=compile_seconds,
        peak=topology.chip.peak,
    )
