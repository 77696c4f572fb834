"""Time of a gradient of the looped actor under each execution, relative to the frozen scan.

python benchmarks/gradient.py --out results/gradient.json

Width 128, boards of 10x10, random weights, and depths like those of the paper's policies on Boxoban (mean 9.8
of 16) and Rush Hour (15.1), and of an easy task (4). The frozen scan computes all 16 loops for every example.
`Packed` is also compared with a frozen scan in microbatches, which uses the cache alike, and with Iso-FLOPs,
a stack of 16 cores.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from looped_actor.loop import Execution, FrozenScan, LoopResult, Packed, PolicyKL
from looped_actor.models import CoreConfig
from looped_actor.models.arms import Looped, Stacked
from looped_actor.models.cost import surrogate_gradient
from looped_actor.models.tasks import PUZZLE_TASKS
from looped_actor.planning.depths import DISTRIBUTIONS, MAX_LOOPS, never_converging
from looped_actor.planning.timing import take_turns
from looped_actor.reproduction.record import write_record

QUICK_SECONDS = 50


class GradientTiming(NamedTuple):
    """Times of one distribution of depths."""

    mean_loops: float
    """Loops needed, per example."""
    packed_over_frozen: float
    """Time of `Packed`, relative to the frozen scan."""
    iso_flops_over_frozen: float
    """Time of the stack of 16 cores, relative to the frozen scan."""
    packed_over_frozen_in_microbatches: float | None
    """Time of `Packed`, relative to a frozen scan in microbatches of the same size; None if not measured."""
    executed_over_needed: float
    """Loops that `Packed` computed for each loop needed."""


@dataclass(frozen=True)
class FrozenMicrobatches(Execution):
    """The frozen scan, one microbatch at a time: it uses the cache like `Packed`, and does not exit early."""

    microbatch: int

    def run(self, problem: Any, z0: Array, x: Any, expected_loops: Any, record: bool) -> LoopResult:
        def split(leaf: Array) -> Array:
            return leaf.reshape(-1, self.microbatch, *leaf.shape[1:])

        results = jax.lax.map(lambda part: FrozenScan().run(problem, *part), jax.tree.map(split, (z0, x)))
        joined = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in results[:4])
        executed = results.executed.sum()
        return LoopResult(*joined, executed=executed, executed_back=executed)


def time_gradients(
    batch: int, microbatch: int | None, rounds: int, error: float, quick: bool
) -> dict[str, GradientTiming]:
    """Return the times of a gradient for each distribution of depths.

    Args:
      batch: examples of the minibatch.
      microbatch: examples that `Packed` loops together. Default: what suits this machine.
      rounds: turns of each contestant; the fastest counts.
      error: standard deviation, in loops, of the error in the depths that `Packed` expects.
      quick: end within a minute, without the frozen scan in microbatches.
    """
    key, task, core = jax.random.key(0), PUZZLE_TASKS["boxoban"], CoreConfig(width=128)
    rule = never_converging(PolicyKL(max_loops=MAX_LOOPS))
    looped, stack = Looped(core).build(task, nnx.Rngs(0)), Stacked(core, MAX_LOOPS).build(task, nnx.Rngs(0))
    observation = jax.random.bernoulli(key, 0.3, task.observation(batch).shape).astype(jnp.float32)
    microbatch = Packed(microbatch).microbatch_for(101 * core.width)
    if not quick and batch % microbatch:
        raise SystemExit(f"batch {batch} is not a multiple of microbatch {microbatch}")
    depths = {name: jnp.asarray(some.draw(batch)) for name, some in DISTRIBUTIONS.items()}
    expected = {name: some + error * jax.random.normal(key, some.shape) for name, some in depths.items()}

    def compile_gradient(model: Any, execution: Execution, *arguments: Array) -> Callable:
        print(f"compiling {execution}", file=sys.stderr)
        _, trained, fixed = nnx.split(model, nnx.Param, ...)
        halting = rule if model is looped else None
        gradient = jax.jit(surrogate_gradient(model, execution, halting))
        return partial(gradient.lower(trained, fixed, observation, *arguments).compile(), trained, fixed)

    some = expected["boxoban"], depths["boxoban"]  # the frozen scan takes equally long for all depths
    frozen = compile_gradient(looped, FrozenScan(), *some)
    contestants = {
        "frozen": partial(frozen, observation, *some),
        "iso-flops": partial(compile_gradient(stack, Packed(microbatch)), observation),
    }
    if not quick:
        in_microbatches = compile_gradient(looped, FrozenMicrobatches(microbatch), *some)
        contestants["frozen in microbatches"] = partial(in_microbatches, observation, *some)
    packed = compile_gradient(looped, Packed(microbatch), *some)
    contestants |= {name: partial(packed, observation, expected[name], depths[name]) for name in depths}
    seconds, results = take_turns(contestants, rounds, QUICK_SECONDS if quick else float("inf"), report)
    timings = {}
    for name, drawn in depths.items():
        loops = results[name].metrics
        timings[name] = GradientTiming(
            mean_loops=float(drawn.mean()),
            packed_over_frozen=seconds[name] / seconds["frozen"],
            iso_flops_over_frozen=seconds["iso-flops"] / seconds["frozen"],
            packed_over_frozen_in_microbatches=(
                None if quick else seconds[name] / seconds["frozen in microbatches"]
            ),
            executed_over_needed=float(loops.executed / loops.needed),
        )
    return timings


def report(fraction: float, step: str) -> None:
    """Print progress."""
    print(f"{fraction:4.0%} {step}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--microbatch", type=int, help="default: what suits this machine")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--expectation-error", type=float, default=0.0, help="standard deviation, in loops")
    parser.add_argument("--quick", action="store_true", help="within a minute: a check that it works")
    options = parser.parse_args()
    timings = time_gradients(
        options.batch, options.microbatch, options.rounds, options.expectation_error, options.quick
    )
    write_record(
        options.out,
        {"batch": options.batch, "timings": {name: timing._asdict() for name, timing in timings.items()}},
    )


if __name__ == "__main__":
    main()
