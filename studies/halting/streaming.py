"""Decisions of streamed rollouts and evaluations that differ from those of the frozen scan, for any number of
slots.

python studies/halting/streaming.py --out results/streaming.json

In float32 a decision may differ if a divergence is within rounding of the threshold, or two actions within
rounding of a tie. After such a decision an episode takes another course, so every decision of a streamed
rollout is compared with that of the frozen scan for the same observation, environment and step.
"""

import argparse
import os
import pathlib
import sys
from dataclasses import replace
from typing import Any

os.environ.setdefault("JAX_ENABLE_X64", "1")  # both precisions in one process
ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from flax import nnx  # noqa: E402
from work import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    FROZEN,
    Contestant,
    Work,
    policy_work,
    prescribed_work,
)

from looped_actor import load_policy  # noqa: E402
from looped_actor.algorithms import PPO, OnlineState, Weights, make_policy, zero_statistics  # noqa: E402
from looped_actor.algorithms.rollout import sample_actions  # noqa: E402
from looped_actor.evaluation.levels import LevelPlayer  # noqa: E402
from looped_actor.loop import FrozenScan, Streaming  # noqa: E402
from looped_actor.reproduction.record import write_record  # noqa: E402
from looped_actor.training.sharding import all_devices  # noqa: E402

SLOTS = (3, 64)


def make_works(quick: bool) -> dict[str, Work]:
    """Return the paper's net on boards of 10x10 with prescribed depths, and the trained policies."""
    works = {"width 128, 10x10 boards": prescribed_work("boxoban", quick=True)}  # the frozen scan is slow
    for task in ("boxoban", "rush_hour"):
        works[f"micro {task}"] = policy_work(load_policy(ROOT / "results" / f"micro_{task}"), None, quick)
    return works


def init_state(work: Work, trainer: PPO, dtype: Any) -> OnlineState:
    """Return the state of a new run with the weights of a work."""
    state, weights = trainer.init(seed=0), work.weights
    if weights is None:
        _, parameters, fixed = nnx.split(work.build(nnx.Rngs(0)), nnx.Param, ...)
        weights = Weights(parameters, fixed, zero_statistics(state.env_state.observation.shape[-1:]))
    return state.with_weights(jax.tree.map(lambda a: jnp.asarray(a, dtype), weights))


def compare(work: Work, dtype: Any, slots: int, rollouts: int) -> dict[str, int]:
    """Count the decisions and levels that differ."""
    config, mesh = work.config.algorithm, all_devices()
    acting = Streaming(slots)
    trainer = PPO(config, work.train, work.build, 1, mesh, dtype=dtype, acting=acting)  # type: ignore[arg-type]
    state, definition = init_state(work, trainer, dtype), trainer.learner.definition
    player = LevelPlayer(work.test, work.levels, definition, work.arm.max_loops, mesh)
    contestant = Contestant(trainer, state, player)

    @jax.jit
    def decide_again(weights: Weights, observation: Any, copies: Any, step: Any) -> tuple[Any, Any]:
        output = make_policy(definition, weights, execution=FrozenScan())(observation)
        assert output.loop is not None
        return sample_actions(output.distribution, copies, state.root, step), output.loop.loops

    decisions = actions = loops = 0
    collect, (vector, _) = contestant.rollout()
    for number in range(rollouts):
        env_state, rollout = collect(vector, state)
        steps = rollout.steps
        for t in range(config.rollout_steps):
            step = jnp.int32(number * config.rollout_steps + t)
            copies = state.env_state.envs.copy
            action, loop = decide_again(state.weights, steps.observation[t], copies, step)
            decisions += action.size
            actions += int((action != steps.action[t]).sum())
            loops += int((loop != steps.loops[t]).sum())
        state = state._replace(env_state=env_state, iteration=state.iteration + 1)
    played = [replace(player, acting=one).play(state.weights).episodes for one in (acting, FROZEN)]
    fields = ("success", "length", "loops")
    differ = np.any([getattr(played[0], name) != getattr(played[1], name) for name in fields], axis=0)
    return {
        "decisions": decisions,
        "different_actions": actions,
        "different_loops": loops,
        "levels": len(differ),
        "different_levels": int(differ.sum()),
        "decisions_on_levels": int(played[1].length.sum()),
    }


def main() -> None:
    """Compare all policies in both precisions, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="a check that it works")
    options = parser.parse_args()
    comparisons = {}
    for name, work in make_works(options.quick).items():
        for dtype in (jnp.float64, jnp.float32):
            for slots in SLOTS[:1] if options.quick else SLOTS:
                row = f"{name}, {jnp.dtype(dtype).name}, {slots} slots"
                comparisons[row] = compare(work, dtype, slots, 1 if options.quick else 4)
                print(row, comparisons[row], flush=True)
    double = [row for name, row in comparisons.items() if "float64" in name]
    single = [row for name, row in comparisons.items() if "float32" in name]
    differences = sum(max(row["different_actions"], row["different_loops"]) for row in single)
    write_record(
        options.out,
        {
            "float64_identical": all(
                row[f"different_{part}"] == 0 for row in double for part in ("actions", "loops", "levels")
            ),
            "float32_differences_per_10000_decisions": 1e4
            * differences
            / sum(row["decisions"] for row in single),
            "comparisons": comparisons,
        },
    )


if __name__ == "__main__":
    main()
