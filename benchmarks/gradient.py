"""How much of halting becomes time: the gradient of the looped actor under each execution.

The weights are random and the depths are drawn, so the question is about the engine alone. All
contestants take turns in one run and the minimum of each counts, because machines are noisy.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from looped_actor.loop import Execution, FrozenScan, LoopResult, Packed
from looped_actor.models import (
    ActorCritic,
    CoreConfig,
    LoopedTrunk,
    PlanesTokenizer,
    ReadoutLogits,
    Stack,
    ValueHead,
)
from looped_actor.models.cost import surrogate_gradient
from looped_actor.planning.depths import DISTRIBUTIONS, MAX_LOOPS, AskedActorCritic
from looped_actor.planning.timing import take_turns
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class LoopBench:
    """What to time. Ratios are of one gradient of a minibatch."""

    batch: int = 128
    """Examples of the minibatch."""
    chunk: int | None = None
    """Examples that Packed loops together; by default, its own choice."""
    rounds: int = 4
    """Turns each contestant takes; the fastest counts."""
    seconds: float = float("inf")
    """No further round is begun that would not end within this time."""
    width: int = 128
    """Width of the core."""
    board: int = 10
    """Rows and columns of the board."""
    expectation_error: float = 0.0
    """Standard deviation, in loops, of the error in the depth that Packed is told to expect."""
    cache_control: bool = True
    """Also time the frozen scan in chunks, to tell what halting saves from what the cache does."""

    def __post_init__(self) -> None:
        at_least_one(self, "batch", "rounds", "width", "board")
        if self.cache_control and self.batch % self.packed_chunk:
            raise UserError(f"batch {self.batch} is not a multiple of chunk {self.packed_chunk}")

    @property
    def packed_chunk(self) -> int:
        """Examples that Packed loops together."""
        return Packed(self.chunk).chunk_for((1 + self.board**2) * self.width)


class LoopTiming(NamedTuple):
    """One depth distribution."""

    mean_loops: float
    """Loops asked for, per example."""
    packed_over_frozen: float
    """Time of `Packed` over that of the frozen scan."""
    iso_flops_over_frozen: float
    """Time of the stack of 16 over that of the frozen scan."""
    packed_over_frozen_in_chunks: float | None
    """Time of `Packed` over a frozen scan in chunks of the same size; None if not measured."""
    executed_over_asked: float
    """Loops that `Packed` computed for each loop asked for."""


def _model(bench: LoopBench, trunk: Callable[[CoreConfig, nnx.Rngs], Any]) -> ActorCritic:
    rngs, width = nnx.Rngs(0), bench.width
    return ActorCritic(
        PlanesTokenizer(4, width, rngs=rngs),
        trunk(CoreConfig(width=width), rngs),
        ReadoutLogits(width, 4, rngs=rngs),
        ValueHead(width, rngs=rngs),
    )


@dataclass(frozen=True)
class _FrozenInChunks(Execution):
    """The frozen scan, a chunk at a time: it uses the cache as `Packed` does, and does not exit early."""

    chunk: int

    def run(self, problem: Any, z0: Array, x: Any, expected_loops: Any, record: bool) -> LoopResult:
        def cut(leaf: Array) -> Array:
            return leaf.reshape(-1, self.chunk, *leaf.shape[1:])

        results = jax.lax.map(lambda part: FrozenScan().run(problem, *part), jax.tree.map(cut, (z0, x)))
        joined = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in results[:4])
        executed = results.executed.sum()
        return LoopResult(*joined, executed=executed, executed_back=executed)


class _Gradient(NamedTuple):
    """A gradient, not yet compiled, and the parameters to take it at."""

    function: Any
    parameters: tuple[nnx.State, nnx.State]

    def compile(self, *data: Array) -> Callable:
        return partial(self.function.lower(*self.parameters, *data).compile(), *self.parameters)


def _gradient(model: Any, execution: Execution) -> _Gradient:
    _, trained, fixed = nnx.split(model, nnx.Param, ...)
    return _Gradient(jax.jit(surrogate_gradient(model, execution)), (trained, fixed))


def bench_loop(
    bench: LoopBench, progress: Callable[[float, str], None] = lambda fraction, what: None
) -> dict[str, LoopTiming]:
    """Time the gradient of a minibatch under each execution and depth distribution.

    Args:
      bench: the sizes.
      progress: called with the fraction done and what comes next.
    """
    begin = time.perf_counter()
    key = jax.random.key(0)
    shape = (bench.batch, bench.board, bench.board, 4)
    observation = jax.random.bernoulli(key, 0.3, shape).astype(jnp.float32)
    depths = {name: jnp.asarray(d.draw(bench.batch)) for name, d in DISTRIBUTIONS.items()}
    expected = {
        name: depth + bench.expectation_error * jax.random.normal(key, depth.shape)
        for name, depth in depths.items()
    }
    looped = AskedActorCritic(_model(bench, lambda core, rngs: LoopedTrunk(core, rngs=rngs)))
    stack = _model(bench, lambda core, rngs: Stack(core, MAX_LOOPS, rngs=rngs))
    asking = {
        name: jnp.concatenate([observation, jnp.full((*shape[:3], 1), depth[:, None, None, None])], axis=-1)
        for name, depth in depths.items()
    }
    # The frozen scan costs the same whatever the depths.
    some = (asking["boxoban"], expected["boxoban"])
    to_compile = {
        "packed": (_gradient(looped, Packed(bench.packed_chunk)), some),
        "frozen": (_gradient(looped, FrozenScan()), some),
        "iso-flops": (_gradient(stack, Packed(bench.packed_chunk)), (observation,)),
    }
    if bench.cache_control:
        frozen_in_chunks = _gradient(looped, _FrozenInChunks(bench.packed_chunk))
        to_compile["frozen in chunks"] = (frozen_in_chunks, some)
    compiled = {}
    for name, (gradient, data) in to_compile.items():
        progress(0.0, f"compiling {name}")
        compiled[name] = gradient.compile(*data)
    packed = compiled.pop("packed")
    contestants = {name: partial(run, *to_compile[name][1]) for name, run in compiled.items()}
    contestants |= {name: partial(packed, asking[name], expected[name]) for name in depths}
    seconds = bench.seconds - (time.perf_counter() - begin)
    times, results = take_turns(contestants, bench.rounds, seconds, progress)
    return {
        name: LoopTiming(
            mean_loops=float(depth.mean()),
            packed_over_frozen=times[name] / times["frozen"],
            iso_flops_over_frozen=times["iso-flops"] / times["frozen"],
            packed_over_frozen_in_chunks=(
                times[name] / times["frozen in chunks"] if bench.cache_control else None
            ),
            executed_over_asked=float(results[name].terms.executed / results[name].terms.asked),
        )
        for name, depth in depths.items()
    }
