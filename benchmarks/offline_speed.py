"""Gradient steps per second of offline learning, and how much of its time is not the compiled update.

Example: python benchmarks/offline_speed.py data/cube-double-play-v0.npz --out results/offline_speed.json

Trains with the runner (metrics, TensorBoard, checkpoints, progress) at the reference's sizes: an MLP actor
of 3 x 512, value and critics of 3 x 512, batch 1,024. Evaluation, compilation and the end of the run are left
out: timed is everything from the second iteration to the last but one. Other arms, sizes and worlds, if asked
for. FLOPs, as `train --dry-run` counts them, are told as a share of the machine's rate of matrix products.
"""

import argparse
import itertools
import pathlib
import tempfile
import time

from rates import product_rate
from record import write_record

from looped_actor.training.sharding import start_devices


def timed(config, folder, mesh, iterations):
    import jax

    from looped_actor.runs.registry import run_of
    from looped_actor.training import Schedule, fit

    parts = run_of(config, folder, mesh)
    inside, rows = [], []

    class Timed:
        steps_per_iteration = parts.trainer.steps_per_iteration
        begin = parts.trainer.begin

        def iterate(self, state):
            start = time.perf_counter()
            result = jax.block_until_ready(parts.trainer.iterate(state))
            inside.append(time.perf_counter() - start)
            return result

    def report(report):
        rows.append((time.perf_counter(), report))

    fit(
        Timed(),
        folder,
        seed=0,
        fingerprint="speed",
        schedule=Schedule(iterations, evaluate_every=10**9, checkpoint_every=config.checkpoint_every),
        evaluate=lambda state: {"success": 0.0, "loops": 0.0},
        report=report,
    )
    # From the first report to the last but one: the last iteration also ends the run.
    whole = rows[-2][0] - rows[0][0]
    within = sum(inside[1:-1])
    steps = config.gciql.updates_per_iteration * (iterations - 2)
    fastest = config.gciql.updates_per_iteration / min(inside[1:])
    numbers = rows[-1][1].numbers
    flops = parts.count(numbers["loops"]).flops_per_step
    return {
        "arm": config.arm,
        "batch": config.gciql.batch,
        "steps_timed": steps,
        "steps_per_second": round(steps / whole, 3),
        "fastest_iteration_steps_per_second": round(fastest, 3),
        "outside_the_compiled_update": round(1 - within / whole, 5),
        "of_matrix_products": round(flops * fastest / product_rate(), 3),
        "loops": round(numbers["loops"], 3),
        "utilisation": round(numbers["utilisation"], 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", help="a dataset of the world")
    parser.add_argument("--world", default="cube-double")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--updates", type=int, default=50, help="of an iteration; `paper` has 500")
    parser.add_argument("--batch", type=int, nargs="+", default=[1024])
    parser.add_argument("--hidden", type=int, default=512, help="channels of the three layers of MLPs")
    parser.add_argument("--arms", nargs="+", default=["mlp"])
    parser.add_argument("--devices", type=int)
    parser.add_argument("--out")
    options = parser.parse_args()
    mesh = start_devices(options.devices)
    from looped_actor.runs.presets import preset
    from looped_actor.utils.codec import replaced

    found = []
    for arm, batch in itertools.product(options.arms, options.batch):
        changes = {
            "data.train": options.data,
            "gciql.updates_per_iteration": options.updates,
            "gciql.batch": batch,
            "gciql.hidden": [options.hidden] * 3,
            "mlp": [options.hidden] * 3,
            "checkpoint_every": 4,
        }
        config = replaced(preset(options.world, "paper", arm), changes)
        with tempfile.TemporaryDirectory() as folder:
            found.append(timed(config, pathlib.Path(folder), mesh, options.iterations))
            print(found[-1], flush=True)
    write_record(options.out, {"devices": mesh.size, "runs": found})


if __name__ == "__main__":
    main()
