"""Is this commit slower on a CPU? The core and an iteration of PPO, here and in another checkout.

git worktree add ../before 395f374
python benchmarks/against.py ../before --out results/against.json

A loop of the core, forward and back, is timed by two processes that take turns, beside the matrix products of
this machine. Iterations are those of `train`, which any two commits have in common: side by side on a core
each, then with the cores exchanged. Two cores must be free.
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

from rates import products
from record import write_record

HERE = pathlib.Path(__file__).resolve()
SIZES = {
    "the paper's core": ({}, (10, 10), 8),
    "micro": ({"width": 32, "heads": 2, "layers": 1, "hidden_multiple": 32}, (6, 6), 16),
}
"""Shape of the core, of the board, and examples together."""
TURNS = 20
MICRO = ["rush-hour"]
PAPER_NET = ["boxoban", "core.width=128", "core.heads=4", "core.layers=2", "core.hidden_multiple=256"]
PAPER_NET += ["halting.max_loops=16", "ppo.num_envs=16", "ppo.rollout_steps=16", "ppo.minibatch=64"]
ITERATIONS = {"micro, Rush Hour": (MICRO, 10), "the paper's net, boards of 6 x 7": (PAPER_NET, 4)}
"""Words of the command, and how many iterations are timed."""
LONGEST = 300.0


def core_worker() -> None:
    """Compile, then time what each line of the input names, once."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from looped_actor.models.fprm import CoreConfig, FPRMCore

    work, flops = {}, {}
    for name, (shape, grid, examples) in SIZES.items():
        config, tokens = CoreConfig(**shape), grid[0] * grid[1] + 1
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
    work["products"], flops["products"] = products()
    for each in work.values():
        jax.block_until_ready(each())
    print(json.dumps(flops), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        jax.block_until_ready(work[line.strip()]())
        print(time.perf_counter() - start, flush=True)


def cores(sources: dict[str, str]) -> dict:
    """The fastest of many turns, taken by the two in alternation."""
    workers = {}
    for name, source in sources.items():
        env = os.environ | {"PYTHONPATH": source, "XLA_FLAGS": ""}
        command = ["taskset", "-c", "0", sys.executable, str(HERE), "--worker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers[name] = subprocess.Popen(command, env=env, **pipes)
    # Both tell the same, when they have compiled.
    flops, _ = (json.loads(worker.stdout.readline()) for worker in workers.values())

    def turn(worker, case):
        worker.stdin.write(case + "\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())

    best = {case: dict.fromkeys(workers, float("inf")) for case in flops}
    for _ in range(TURNS):
        for case in flops:
            for name, worker in workers.items():
                best[case][name] = min(best[case][name], turn(worker, case))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    rate = flops["products"] / min(best.pop("products").values())
    found = {"gflops_of_products": rate / 1e9}
    for case, seconds in best.items():
        found[case] = {"time_ratio": seconds["here"] / seconds["before"]}
        found[case] |= {f"of_products_{k}": flops[case] / s / rate for k, s in seconds.items()}
    return found


def iterations(words: list[str], rows: int, sources: dict[str, str]) -> dict:
    """The best rate of each, over both ways to share out the cores."""
    best = dict.fromkeys(sources, 0.0)
    few = ["levels.train_count=300", "levels.held_out_count=50", "evaluate_every=1000"]
    for turn in range(2):
        with tempfile.TemporaryDirectory() as folder:
            outs = {name: pathlib.Path(folder, name) for name in sources}
            running = []
            for n, (name, source) in enumerate(sources.items()):
                command = ["taskset", "-c", str((n + turn) % 2), sys.executable, "-m", "looped_actor"]
                command += ["train", words[0], "--devices", "1", "--out", str(outs[name])]
                command += ["--set", *words[1:], *few]
                env = os.environ | {"PYTHONPATH": source}
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                running.append(subprocess.Popen(command, env=env, cwd=folder, **quiet))
            end = time.monotonic() + LONGEST
            while time.monotonic() < end and any(len(rates(out)) < rows for out in outs.values()):
                time.sleep(1)
            for process in running:
                process.terminate()
                process.wait()
            # The first compiles.
            best = {name: max([best[name], *rates(out)[1:]]) for name, out in outs.items()}
    return {"steps_per_second": best, "time_ratio": best["before"] / best["here"]}


def rates(run: pathlib.Path) -> list[float]:
    """Steps a second of every iteration so far."""
    path = run / "timings.csv"
    if not path.exists():
        return []
    with path.open() as lines:
        return [float(row["steps_per_second"]) for row in csv.DictReader(lines)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("checkout", type=pathlib.Path, nargs="?", help="of the commit to compare with")
    options.add_argument("--out", type=pathlib.Path)
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.worker:
        return core_worker()
    if given.checkout is None:
        options.error("give the checkout to compare with")
    before = ["git", "-C", str(given.checkout), "rev-parse", "--short", "HEAD"]
    found: dict = {"before": subprocess.run(before, capture_output=True, text=True).stdout.strip()}
    sources = {"before": str(given.checkout.resolve() / "src"), "here": str(HERE.parents[1] / "src")}
    found["core"] = cores(sources)
    for name, (words, rows) in ITERATIONS.items():
        print(f"iterations: {name}", file=sys.stderr)
        found[f"iteration, {name}"] = iterations(words, rows, sources)
    return write_record(given.out, found)


if __name__ == "__main__":
    main()
