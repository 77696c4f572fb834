"""Plans held against truth where it can be had: an iteration of PPO on one CPU core, estimated and timed.

python benchmarks/plan_truth.py --out results/plans/truth.json

The accounting is that of `looped-actor plan` for a GPU: each kernel takes its FLOPs at this core's measured
rate of matrix products, or its bytes at its measured rate of copying, whichever is longer. Depths are those
that the timed iterations had.
"""

import argparse
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from rates import product_rate
from record import write_record

jax.config.update("jax_num_cpu_devices", 1)

from looped_actor.models.cost import fastest  # noqa: E402
from looped_actor.planning.chips import Chip  # noqa: E402
from looped_actor.planning.hlo import read_program  # noqa: E402
from looped_actor.planning.plan import Schedule, parts_of  # noqa: E402
from looped_actor.runs.folder import begin_run  # noqa: E402
from looped_actor.runs.presets import preset  # noqa: E402
from looped_actor.runs.registry import run_of  # noqa: E402
from looped_actor.training.sharding import all_devices  # noqa: E402
from looped_actor.utils.codec import replaced  # noqa: E402


def this_core() -> Chip:
    """Its rates: matrix products, and copies that no cache holds."""
    large = jnp.ones(2**25)
    copy = jax.jit(lambda x: x + 1)
    bandwidth = 2 * large.nbytes / fastest(lambda: copy(large))
    return Chip(memory=0, bandwidth=bandwidth, peak=product_rate(), link=1)


def truth(task: str, chip: Chip) -> dict:
    """An iteration of a small run, timed and estimated."""
    few = {"levels.train_count": 100, "levels.held_out_count": 10, "levels.evaluate_count": 10}
    config = replaced(preset(task, "micro"), few)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name, "run")
        run = run_of(begin_run(config, folder), folder, all_devices(1))
        trainer, learning = run.trainer, config.learning
        world, state = trainer.collector.world, trainer.begin(0)
        program = trainer.programs.iterate.lower(world, state).compile()
        state, metrics = program(world, state)
        seconds = fastest(lambda: program(world, state))
    loops = float(metrics.play.loops)
    depths = np.clip(np.random.default_rng(0).normal(loops, 1, 4096).round(), 2, 8).astype(int)
    schedule = Schedule(depths, 1, learning.num_envs, learning.rollout_steps + 1, learning.minibatch)
    parts = parts_of(read_program(program.as_text()), chip, schedule)
    estimate = sum(part.total for part in parts)
    return {
        "loops": loops,
        "measured_seconds": seconds,
        "estimated_over_measured": estimate / seconds,
        "longest": {part.name: part.total / estimate for part in parts[:4]},
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--out", type=pathlib.Path)
    given, chip = options.parse_args(), this_core()
    facts: dict = {task: truth(task, chip) for task in ("boxoban", "rush-hour")}
    facts |= {"gflops": chip.peak / 1e9, "gigabytes_per_second": chip.bandwidth / 1e9}
    write_record(given.out, facts)


if __name__ == "__main__":
    main()
