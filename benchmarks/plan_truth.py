"""Time of an iteration of PPO on one CPU core as `looped-actor plan` estimates it, relative to its measured
time.

python benchmarks/plan_truth.py --out results/plans/truth.json

The estimate is that for a GPU: each kernel takes its FLOPs at this core's measured rate of matrix products,
or its bytes at the measured rate of copies, whichever is longer. Depths are those of the timed iterations.
"""

import argparse
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rates import product_rate

jax.config.update("jax_num_cpu_devices", 1)

from looped_actor.algorithms import PPO  # noqa: E402
from looped_actor.planning.chips import Chip  # noqa: E402
from looped_actor.planning.hlo import read_program  # noqa: E402
from looped_actor.planning.plan import Schedule, loop_costs  # noqa: E402
from looped_actor.planning.timing import fastest  # noqa: E402
from looped_actor.reproduction.record import write_record  # noqa: E402
from looped_actor.runs.folder import begin_run  # noqa: E402
from looped_actor.runs.presets import preset  # noqa: E402
from looped_actor.runs.registry import run_of  # noqa: E402
from looped_actor.training.sharding import all_devices  # noqa: E402
from looped_actor.utils.codec import replace_fields  # noqa: E402


def measure_core() -> Chip:
    """Return the rates of this core: matrix products, and copies larger than any cache."""
    large = jnp.ones(2**25)
    copy = jax.jit(lambda x: x + 1)
    bandwidth = 2 * large.nbytes / fastest(lambda: copy(large))
    return Chip(memory=0, bandwidth=bandwidth, peak=product_rate(), link=1)


def compare(task: str, chip: Chip) -> dict[str, Any]:
    """Return the measured and the estimated time of an iteration of a small run."""
    few = {"levels.train_count": 100, "levels.held_out_count": 10, "levels.evaluate_count": 10}
    config = replace_fields(preset(task, "micro"), few)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name, "run")
        run = run_of(begin_run(config, folder), folder, all_devices(1))
        trainer, algorithm = run.trainer, config.algorithm
        assert isinstance(trainer, PPO)
        state = trainer.init(0)
        program = trainer._iterate_jit.lower(trainer.vector, state).compile()
        state, metrics = program(trainer.vector, state)
        seconds = fastest(lambda: program(trainer.vector, state))
    loops = float(metrics["loops"])
    depths = np.clip(np.random.default_rng(0).normal(loops, 1, 4096).round(), 2, 8).astype(int)
    schedule = Schedule(
        depths=depths,
        chips=1,
        rows=algorithm.num_envs,
        decisions=algorithm.rollout_steps + 1,
        batch=algorithm.minibatch,
    )
    costs = loop_costs(read_program(program.as_text()), chip, schedule)
    estimate = sum(cost.total for cost in costs)
    return {
        "loops": loops,
        "measured_seconds": seconds,
        "estimated_over_measured": estimate / seconds,
        "longest": {cost.name: cost.total / estimate for cost in costs[:4]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    options, chip = parser.parse_args(), measure_core()
    results: dict[str, Any] = {task: compare(task, chip) for task in ("boxoban", "rush-hour")}
    results |= {"gflops": chip.peak / 1e9, "gigabytes_per_second": chip.bandwidth / 1e9}
    write_record(options.out, results)


if __name__ == "__main__":
    main()
