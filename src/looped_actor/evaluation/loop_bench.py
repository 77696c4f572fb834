"""How much of halting becomes time: the gradient of the looped actor under each execution.

The weights are random and the depths are drawn, so the question is about the engine alone. All
contestants take turns in one run and the minimum of each counts, because machines are noisy.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from looped_actor.evaluation.compute import surrogate_loss
from looped_actor.loop import (
    Distribution,
    Execution,
    FrozenScan,
    LoopResult,
    Packed,
    PolicyKL,
    Readout,
    run_loop,
)
from looped_actor.loop.packing import default_chunk
from looped_actor.models import (
    ActorCritic,
    ActorCriticOutput,
    CoreConfig,
    LoopedTrunk,
    PlanesTokenizer,
    ReadoutLogits,
    Stack,
    ValueHead,
)
from looped_actor.models.looped import start_like

MAX_LOOPS = 16


@dataclass(frozen=True)
class DepthDistribution:
    """Loops asked for: a share at the cap, the others around a mean, as trained policies show it."""

    at_cap: float
    mean_below: float
    deviation: float

    def draw(self, count: int) -> Int[np.ndarray, " n"]:
        """`count` depths in random order. Stratified, so that the mean hardly depends on the count."""
        capped = round(self.at_cap * count)
        normal = statistics.NormalDist(self.mean_below, self.deviation)
        free = count - capped
        below = [round(normal.inv_cdf((i + 0.5) / free)) for i in range(free)]
        depths = np.concatenate([np.clip(below, 2, MAX_LOOPS - 1), np.full(capped, MAX_LOOPS)])
        return np.random.default_rng(0).permutation(depths).astype(np.int32)


# Means of 9.8, 15.1 and 4. The paper's policies: 91% of Boxoban's decisions stop before loop 16 and
# 21% of Rush Hour's, so the mean of those that do is (9.8 - 0.09 x 16) / 0.91, and so on.
DISTRIBUTIONS = {
    "boxoban": DepthDistribution(at_cap=0.09, mean_below=9.19, deviation=2.8),
    "rush_hour": DepthDistribution(at_cap=0.79, mean_below=11.7, deviation=2.0),
    "easy": DepthDistribution(at_cap=0.0, mean_below=4.0, deviation=1.2),
}


class _Asked(NamedTuple):
    """The input of an example, and the depth that the benchmark asks of it."""

    embedding: Float[Array, "b t d"]
    depth: Int[Array, " b"]


class _Observed(NamedTuple):
    policy: Distribution
    depth: Int[Array, " b"]


@dataclass(frozen=True)
class _AskedLoops(PolicyKL):
    """All the work of `PolicyKL`, and then the decision to stop at the depth asked for."""

    def observe(self, latent: Float[Array, "b ..."], x: Any, readout: Readout) -> Any:
        return _Observed(super().observe(latent, x, readout), x.depth)

    def divergence(self, before: Any, now: Any) -> Float[Array, " b"]:
        # The KL decides nothing here, but XLA must not find that out.
        kl = super().divergence(before.policy, now.policy)
        return jnp.where(jnp.isnan(kl), kl, now.depth)

    def converged(self, loop: Int[Array, " b"], divergence: Float[Array, " b"]) -> Bool[Array, " b"]:
        return loop >= divergence


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
        for name in ("batch", "rounds", "width", "board"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.cache_control and self.batch % self.packed_chunk:
            raise ValueError(f"batch {self.batch} is not a multiple of chunk {self.packed_chunk}")

    @property
    def packed_chunk(self) -> int:
        """Examples that Packed loops together."""
        if self.chunk is None:
            return default_chunk((1 + self.board**2) * self.width)
        if self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; it must be at least 1")
        return self.chunk


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
class _FrozenInChunks:
    """The frozen scan, a chunk at a time: it uses the cache as `Packed` does, and does not exit early."""

    chunk: int

    def run(self, problem: Any, z0: Array, x: Any, expected_loops: Any, record: bool) -> LoopResult:
        def cut(leaf: Array) -> Array:
            return leaf.reshape(-1, self.chunk, *leaf.shape[1:])

        results = jax.lax.map(lambda part: FrozenScan().run(problem, *part), jax.tree.map(cut, (z0, x)))
        joined = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in results[:4])
        return LoopResult(*joined, executed=results.executed.sum())


class _Gradient(NamedTuple):
    """The gradient of a loss, not yet compiled, and the parameters to take it at."""

    function: Any
    trained: nnx.State

    def compile(self, *data: Array) -> Callable:
        return partial(self.function.lower(self.trained, *data).compile(), self.trained)


def _looped_gradient(model: ActorCritic, execution: Execution) -> _Gradient:
    definition, trained, fixed = nnx.split(model, nnx.Param, ...)

    def loss(trained: nnx.State, observation: Array, depth: Array, expected: Array) -> tuple[Array, Array]:
        model = nnx.merge(definition, trained, fixed)
        tokens, trunk = model.tokenizer(observation), model.trunk
        assert isinstance(trunk, LoopedTrunk)
        loop = run_loop(
            lambda z, x: trunk.core(z, x.embedding, tokens.grid),
            lambda z, x: model.policy(z),
            start_like(trunk.start, tokens.embedding),
            _Asked(tokens.embedding, depth),
            halting=_AskedLoops(max_loops=MAX_LOOPS),
            execution=execution,
            expected_loops=expected,
        )
        output = ActorCriticOutput(model.policy(loop.latent), model.value(loop.latent), loop)
        return surrogate_loss(output), loop.executed

    return _Gradient(jax.jit(jax.grad(loss, has_aux=True)), trained)


def _stack_gradient(model: ActorCritic) -> _Gradient:
    definition, trained, fixed = nnx.split(model, nnx.Param, ...)

    def loss(trained: nnx.State, observation: Array) -> Array:
        return surrogate_loss(nnx.merge(definition, trained, fixed)(observation))

    return _Gradient(jax.jit(jax.grad(loss)), trained)


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
    looped = _model(bench, lambda core, rngs: LoopedTrunk(core, rngs=rngs))
    stack = _model(bench, lambda core, rngs: Stack(core, MAX_LOOPS, rngs=rngs))
    # The frozen scan costs the same whatever the depths.
    some = (observation, depths["boxoban"], expected["boxoban"])
    to_compile = {
        "packed": (_looped_gradient(looped, Packed(bench.packed_chunk)), some),
        "frozen": (_looped_gradient(looped, FrozenScan()), some),
        "iso-flops": (_stack_gradient(stack), (observation,)),
    }
    if bench.cache_control:
        frozen_in_chunks = _looped_gradient(looped, _FrozenInChunks(bench.packed_chunk))
        to_compile["frozen in chunks"] = (frozen_in_chunks, some)
    compiled = {}
    for name, (gradient, data) in to_compile.items():
        progress(0.0, f"compiling {name}")
        compiled[name] = gradient.compile(*data)
    packed = compiled.pop("packed")
    contestants = {name: partial(run, *to_compile[name][1]) for name, run in compiled.items()}
    contestants |= {name: partial(packed, observation, depths[name], expected[name]) for name in depths}
    seconds = bench.seconds - (time.perf_counter() - begin)
    times, results = _take_turns(contestants, bench.rounds, seconds, progress)
    return {
        name: LoopTiming(
            mean_loops=float(depth.mean()),
            packed_over_frozen=times[name] / times["frozen"],
            iso_flops_over_frozen=times["iso-flops"] / times["frozen"],
            packed_over_frozen_in_chunks=(
                times[name] / times["frozen in chunks"] if bench.cache_control else None
            ),
            executed_over_asked=int(results[name][1]) / int(depth.sum()),
        )
        for name, depth in depths.items()
    }


def _take_turns(
    contestants: dict[str, Callable[[], Any]],
    rounds: int,
    seconds: float,
    progress: Callable[[float, str], None],
) -> tuple[dict[str, float], dict[str, Any]]:
    """The shortest time and the last result of each. They run in turn, so that noise hits all alike."""
    begin = time.perf_counter()
    best = dict.fromkeys(contestants, float("inf"))
    results = {}
    for turn in range(rounds):
        for place, (name, run) in enumerate(contestants.items()):
            progress((turn + place / len(contestants)) / rounds, name)
            start = time.perf_counter()
            results[name] = jax.block_until_ready(run())
            best[name] = min(best[name], time.perf_counter() - start)
        if time.perf_counter() - begin + sum(best.values()) > seconds:
            break
    progress(1.0, "done")
    return best, results
