"""Gradient steps per second of offline learning, and the share of time outside the compiled update.

python benchmarks/offline_speed.py data/cube-double-play-v0.npz --out results/offline_speed.json

Trains with the training loop (metrics, TensorBoard, checkpoints, progress) at the sizes of OGBench's
reference: an MLP actor, value and critics of 3 x 512, batch 1,024. Timed is everything from the second
iteration to the last but one, without evaluations and compilation. FLOPs, as `train --dry-run` counts them,
are relative to this machine's rate of matrix products.
"""

import argparse
import itertools
import pathlib
import tempfile
import time
from dataclasses import replace
from typing import Any

from rates import product_rate

from looped_actor.planning.estimate import count
from looped_actor.reproduction.record import write_record
from looped_actor.runs.config import RobotConfig
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training import Report, Schedule, Trainer, fit
from looped_actor.training.sharding import start_devices
from looped_actor.utils.codec import replace_fields


class TimedTrainer(Trainer):
    """A trainer that notes the seconds of each iteration."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.mesh, self.seconds = trainer, trainer.mesh, list[float]()
        self.metric_names = trainer.metric_names  # type: ignore[misc]

    @property
    def steps_per_iteration(self) -> int:
        return self.trainer.steps_per_iteration

    def init(self, seed: int) -> Any:
        return self.trainer.init(seed)

    def iterate(self, state: Any) -> tuple[Any, dict[str, Any]]:
        import jax

        begin = time.perf_counter()
        result = jax.block_until_ready(self.trainer.iterate(state))
        self.seconds.append(time.perf_counter() - begin)
        return result


def measure(config: RobotConfig, folder: pathlib.Path, mesh: Any, iterations: int) -> dict[str, Any]:
    """Train for some iterations, and return rates."""
    run = run_of(config, folder, mesh)
    trainer, reports = TimedTrainer(run.trainer), list[tuple[float, Report]]()
    fit(
        trainer,
        folder,
        seed=0,
        fingerprint="speed",
        schedule=Schedule(iterations, evaluate_every=10**9, checkpoint_every=config.checkpoint_every),
        evaluate=lambda state: {"success": 0.0, "loops": 0.0},
        report=lambda report: reports.append((time.perf_counter(), report)),
    )
    # From the first report to the last but one: the last iteration also ends the run.
    whole = reports[-2][0] - reports[0][0]
    updates = config.algorithm.updates_per_iteration
    fastest = updates / min(trainer.seconds[1:])
    metrics = reports[-1][1].metrics
    flops = count(run, metrics["loops"]).flops_per_step
    return {
        "arm": config.trained,
        "batch": config.algorithm.batch,
        "steps_timed": updates * (iterations - 2),
        "steps_per_second": round(updates * (iterations - 2) / whole, 3),
        "fastest_iteration_steps_per_second": round(fastest, 3),
        "outside_the_compiled_update": round(1 - sum(trainer.seconds[1:-1]) / whole, 5),
        "of_matrix_products": round(flops * fastest / product_rate(), 3),
        "loops": round(metrics["loops"], 3),
        "utilisation": round(metrics["utilisation"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", help="a dataset of the environment")
    parser.add_argument("--env", default="cube-double")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--updates", type=int, default=50, help="of an iteration; `paper` has 500")
    parser.add_argument("--batch", type=int, nargs="+", default=[1024])
    parser.add_argument("--hidden", type=int, default=512, help="width of the three layers of MLPs")
    parser.add_argument("--arms", nargs="+", default=["mlp"])
    parser.add_argument("--devices", type=int)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if options.iterations < 3:
        parser.error("--iterations must be at least 3: the first and the last are not timed")
    mesh, found = start_devices(options.devices), []
    for arm, batch in itertools.product(options.arms, options.batch):
        changes = {
            "data.train": options.data,
            "algorithm.updates_per_iteration": options.updates,
            "algorithm.batch": batch,
            "algorithm.hidden": [options.hidden] * 3,
            "checkpoint_every": 4,
        }
        config = replace_fields(preset(options.env, "paper", arm), changes)
        if arm == "mlp":
            config = replace(config, arm=replace(config.arm, hidden=(options.hidden,) * 3))
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(config, pathlib.Path(folder), mesh, options.iterations))
            print(found[-1], flush=True)
    write_record(options.out, {"devices": mesh.size, "runs": found})


if __name__ == "__main__":
    main()
