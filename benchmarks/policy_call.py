"""What a call of a loaded policy costs beside the bare jitted function of the same net, taking turns.

python benchmarks/policy_call.py --out results/policy_call.json
"""

import argparse
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from record import write_record

import looped_actor
from looped_actor.planning.timing import take_turns

ROOT = pathlib.Path(__file__).parents[1]
POLICY = ROOT / "results" / "micro_rush_hour" / "policy"
COMPILED: list[str] = []
CALLS = 50
"""In one turn: a call is shorter than what a clock tells apart."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=pathlib.Path, default=ROOT / "results" / "policy_call.json")
    options.add_argument("--rounds", type=int, default=40)
    given = options.parse_args()
    jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: COMPILED.append(event))
    policy = looped_actor.load_policy(POLICY)
    boards = np.random.default_rng(0).integers(0, 2, (32, 5, 5, 7), np.uint8)
    measured = [measure(policy, boards[0], given.rounds), measure(policy, boards, given.rounds)]
    write_record(given.out, {"policy": str(POLICY.relative_to(ROOT)), "calls": measured})


def measure(policy: looped_actor.Policy, seen: np.ndarray, rounds: int) -> dict:
    """Milliseconds of a later call of `act`, of `policy(...)`, and of the net alone."""
    weights, batch = policy.weights, seen if seen.ndim == 4 else seen[None]
    net = nnx.merge(policy.run.definition, weights.parameters, weights.fixed)
    bare = jax.jit(lambda o: net(weights.statistics.normalise(o), execution=looped_actor.Packed()))

    def repeated(call):
        def run():
            for _ in range(CALLS):
                jax.block_until_ready(call())

        return run

    contestants = {
        "bare": repeated(lambda: bare(jnp.asarray(batch))),
        "act": repeated(lambda: policy.act(seen)),
        "call": repeated(lambda: policy(batch)),
    }
    started = time.perf_counter()
    policy.act(seen)
    first = time.perf_counter() - started
    for run in contestants.values():
        run()
    before = len(COMPILED)
    times, _ = take_turns(contestants, rounds, float("inf"), lambda done, what: None)
    milliseconds = {name: 1e3 * seconds / CALLS for name, seconds in times.items()}
    allowed = 1.5 * milliseconds["bare"] + 0.2
    return {
        "observations": len(batch) if seen.ndim == 4 else "one, without a batch axis",
        "first_call_seconds": round(first, 2),
        "milliseconds": {name: round(value, 3) for name, value in milliseconds.items()},
        "over_bare": {name: round(milliseconds[name] / milliseconds["bare"], 3) for name in ("act", "call")},
        "allowed_milliseconds": round(allowed, 3),
        "within": {name: milliseconds[name] <= allowed for name in ("act", "call")},
        "compilations_after_the_first_call": sum("backend_compile" in e for e in COMPILED[before:]),
    }


if __name__ == "__main__":
    main()
