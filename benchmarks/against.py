"""Time of the core and of an iteration of PPO on a CPU, relative to another checkout.

git worktree add ../before 395f374
python benchmarks/against.py ../before --out results/against.json

A loop of the core, forward and back, is timed by two processes that take turns, and so are the matrix
products of this machine. Iterations are those of `looped-actor train`, which all commits have: side by side
on a core each, then with the cores exchanged. Two cores must be free.
"""

import argparse
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from rates import matrix_products

HERE = pathlib.Path(__file__).resolve()
SIZES = {
    "the paper's core": ({}, (10, 10), 8),
    "micro": ({"width": 32, "heads": 2, "layers": 1, "hidden_multiple": 32}, (6, 6), 16),
}
"""Shape of the core, shape of the board, and examples together."""
TURNS = 20
MICRO: dict[str, int] = {}
PAPER_NET = {
    "arm.core.width": 128,
    "arm.core.heads": 4,
    "arm.core.layers": 2,
    "arm.halting.max_loops": 16,
    "algorithm.num_envs": 16,
    "algorithm.rollout_steps": 16,
    "algorithm.minibatch": 64,
}
ITERATIONS = {
    "micro, Rush Hour": ("rush-hour", MICRO, 10),
    "the paper's net, boards of 6 x 7": ("boxoban", PAPER_NET, 4),
}
"""Task, changed fields, and number of iterations that are timed."""
FEW_LEVELS = {"levels.train_count": 300, "levels.held_out_count": 50, "evaluate_every": 1000}
FORMER_PREFIXES = {"arm.": "", "algorithm.": "ppo."}
"""Prefixes of fields, with those of version 0.2."""
MAX_SECONDS = 300.0


def core_worker() -> None:
    """Compile, then time the function that each line of the input names, once."""
    from dataclasses import fields

    import jax
    import jax.numpy as jnp
    from flax import nnx

    from looped_actor.models.fprm import CoreConfig, FPRMCore

    work, flops = {}, {}
    for name, (shape, grid, examples) in SIZES.items():
        known = {field.name for field in fields(CoreConfig)}  # those of the other checkout, perhaps
        config = CoreConfig(**{name: value for name, value in shape.items() if name in known})
        tokens = grid[0] * grid[1] + 1
        core = FPRMCore(config, rngs=nnx.Rngs(0))
        definition, weights = nnx.split(core)
        z = jax.random.normal(jax.random.key(1), (examples, tokens, config.width))

        def loop(weights, z, definition=definition, grid=grid):
            return nnx.merge(definition, weights)(z, z, grid)

        def loss(weights, z, loop=loop):
            return jnp.square(loop(weights, z)).sum()

        forward, both = jax.jit(loop), jax.jit(jax.grad(loss, (0, 1)))
        work[f"{name}, forward"] = lambda f=forward, w=weights, z=z: f(w, z)
        work[f"{name}, forward and back"] = lambda f=both, w=weights, z=z: f(w, z)
        flops[f"{name}, forward"] = examples * core.flops(tokens)
        flops[f"{name}, forward and back"] = 3 * examples * core.flops(tokens)
    work["products"], flops["products"] = matrix_products()
    for each in work.values():
        jax.block_until_ready(each())
    print(json.dumps(flops), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        jax.block_until_ready(work[line.strip()]())
        print(time.perf_counter() - start, flush=True)


def compare_cores(sources: dict[str, str]) -> dict[str, Any]:
    """Return the fastest of many turns, which the two checkouts take in alternation."""
    workers = {}
    for name, source in sources.items():
        env = os.environ | {"PYTHONPATH": source, "XLA_FLAGS": ""}
        command = ["taskset", "-c", "0", sys.executable, str(HERE), "--worker"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers[name] = subprocess.Popen(command, env=env, **pipes)
    # Both report the same FLOPs, once they have compiled.
    flops, _ = (json.loads(worker.stdout.readline()) for worker in workers.values())

    def take_turn(worker: Any, case: str) -> float:
        worker.stdin.write(case + "\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())

    best = {case: dict.fromkeys(workers, float("inf")) for case in flops}
    for _ in range(TURNS):
        for case in flops:
            for name, worker in workers.items():
                best[case][name] = min(best[case][name], take_turn(worker, case))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    rate = flops["products"] / min(best.pop("products").values())
    found: dict[str, Any] = {"gflops_of_products": rate / 1e9}
    for case, seconds in best.items():
        found[case] = {"time_ratio": seconds["here"] / seconds["before"]}
        found[case] |= {f"of_products_{k}": flops[case] / s / rate for k, s in seconds.items()}
    return found


def settings(source: str, changes: dict[str, int]) -> list[str]:
    """Return changed fields as words of the command, by their names in a checkout."""
    names = {name: name for name in changes}
    if pathlib.Path(source, "looped_actor", "configs").is_dir():
        for new, former in FORMER_PREFIXES.items():
            names = {
                name: former + word.removeprefix(new) if word.startswith(new) else word
                for name, word in names.items()
            }
        # Since then it depends on the width.
        changes = changes | ({"core.hidden_multiple": 256} if changes.get("arm.core.width") else {})
    return [f"{names.get(name, name)}={value}" for name, value in changes.items()]


def compare_iterations(
    task: str, changes: dict[str, int], rows: int, sources: dict[str, str]
) -> dict[str, Any]:
    """Return the best rate of each checkout, over both ways to share the cores."""
    best = dict.fromkeys(sources, 0.0)
    for turn in range(2):
        with tempfile.TemporaryDirectory() as folder:
            outs = {name: pathlib.Path(folder, name) for name in sources}
            running = []
            for n, (name, source) in enumerate(sources.items()):
                command = ["taskset", "-c", str((n + turn) % 2), sys.executable, "-m", "looped_actor"]
                command += ["train", task, "--devices", "1", "--out", str(outs[name])]
                command += ["--set", *settings(source, changes | FEW_LEVELS)]
                env = os.environ | {"PYTHONPATH": source}
                quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                running.append(subprocess.Popen(command, env=env, cwd=folder, **quiet))
            end = time.monotonic() + MAX_SECONDS
            while time.monotonic() < end and any(len(read_rates(out)) < rows for out in outs.values()):
                time.sleep(1)
            for process in running:
                process.terminate()
                process.wait()
            # The first iteration compiles.
            best = {name: max([best[name], *read_rates(out)[1:]]) for name, out in outs.items()}
    return {"steps_per_second": best, "time_ratio": best["before"] / best["here"]}


def read_rates(run: pathlib.Path) -> list[float]:
    """Return the steps per second of every iteration so far."""
    path = run / "timings.csv"
    if not path.exists():
        return []
    with path.open() as lines:
        return [float(row["steps_per_second"]) for row in csv.DictReader(lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkout", type=pathlib.Path, nargs="?", help="checkout to compare with")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return core_worker()
    if options.checkout is None:
        parser.error("give the checkout to compare with")
    from looped_actor.reproduction.record import write_record  # which a worker in another checkout lacks

    before = ["git", "-C", str(options.checkout), "rev-parse", "--short", "HEAD"]
    found: dict[str, Any] = {"before": subprocess.run(before, capture_output=True, text=True).stdout.strip()}
    sources = {"before": str(options.checkout.resolve() / "src"), "here": str(HERE.parents[1] / "src")}
    found["core"] = compare_cores(sources)
    for name, (task, changes, rows) in ITERATIONS.items():
        print(f"iterations: {name}", file=sys.stderr)
        found[f"iteration, {name}"] = compare_iterations(task, changes, rows, sources)
    return write_record(options.out, found)


if __name__ == "__main__":
    main()
