"""Time of a call of a loaded policy, relative to the bare jitted function of its net.

python benchmarks/policy_call.py --out results/policy_call.json
"""

import argparse
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import looped_actor
from looped_actor.planning.timing import take_turns
from looped_actor.reproduction.record import write_record

ROOT = pathlib.Path(__file__).parents[1]
POLICY = ROOT / "results" / "micro_rush_hour" / "policy"
COMPILED: list[str] = []
CALLS = 50
"""Calls of one turn: a single one is shorter than the resolution of the clock."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    jax.monitoring.register_event_duration_secs_listener(count_compilation)
    policy = looped_actor.load_policy(POLICY)
    boards = np.random.default_rng(0).integers(0, 2, (32, 5, 5, 7), np.uint8)
    calls = [measure(policy, observation, options.rounds) for observation in (boards[0], boards)]
    write_record(options.out, {"policy": str(POLICY.relative_to(ROOT)), "calls": calls})


def count_compilation(event: str, duration_secs: float, **_: str | int) -> None:
    """Note an event of JAX that takes time: tracing or compiling."""
    COMPILED.append(event)


def measure(policy: looped_actor.Policy, observation: np.ndarray, rounds: int) -> dict[str, Any]:
    """Return the milliseconds of a later call of `act`, of `policy(...)`, and of the net alone."""
    weights, batch = policy.weights, observation if observation.ndim == 4 else observation[None]
    net = nnx.merge(policy.spec.definition, weights.parameters, weights.fixed)
    bare = jax.jit(lambda o: net(weights.statistics.normalize(o), execution=looped_actor.Packed()))

    def repeat(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(CALLS):
                jax.block_until_ready(call())

        return run

    contestants = {
        "bare": repeat(lambda: bare(jnp.asarray(batch))),
        "act": repeat(lambda: policy.act(observation)),
        "call": repeat(lambda: policy(batch)),
    }
    begin = time.perf_counter()
    policy.act(observation)
    first = time.perf_counter() - begin
    for run in contestants.values():
        run()
    before = len(COMPILED)
    seconds = take_turns(contestants, rounds).seconds
    milliseconds = {name: 1e3 * each / CALLS for name, each in seconds.items()}
    allowed = 1.5 * milliseconds["bare"] + 0.2
    return {
        "observations": len(batch) if observation.ndim == 4 else "one, without a batch axis",
        "first_call_seconds": round(first, 2),
        "milliseconds": {name: round(value, 3) for name, value in milliseconds.items()},
        "over_bare": {name: round(milliseconds[name] / milliseconds["bare"], 3) for name in ("act", "call")},
        "allowed_milliseconds": round(allowed, 3),
        "within": {name: milliseconds[name] <= allowed for name in ("act", "call")},
        "compilations_after_the_first_call": sum("backend_compile" in event for event in COMPILED[before:]),
    }


if __name__ == "__main__":
    main()
