"""Is a streamed rollout or evaluation the one in step? Counted by decisions, for any number of slots.

In float32 a decision may differ where a divergence is within rounding of the threshold, or two actions
within rounding of a tie. After such a decision an episode goes its own way, so every decision of a streamed
rollout is compared with what the frozen scan decides for the same observation, environment and step.
"""

import argparse
import os
import pathlib
from dataclasses import replace

os.environ.setdefault("JAX_ENABLE_X64", "1")  # both precisions in one process

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from record import write_record

from looped_actor import load_policy
from looped_actor.algorithms import Synchronous, Weights, no_statistics
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.algorithms.ppo_trainer import ppo_trainer
from looped_actor.algorithms.trainer import Trainer
from looped_actor.evaluation.levels import LevelPlayer
from looped_actor.loop import FrozenScan, Streaming
from looped_actor.loop.rng import Stream, addressed_key, folded
from looped_actor.planning.bench_work import Work, asked_work, policy_work
from looped_actor.training.sharding import all_devices

RESULTS = pathlib.Path(__file__).parents[2] / "results"
SLOTS = (3, 64)


def works(quick: bool) -> dict[str, Work]:
    """The paper's net on 10x10 boards, asked for depths, and the trained policies."""
    found = {"width 128, 10x10 boards": asked_work("boxoban", quick=True)}  # the frozen scan takes its time
    for task in ("boxoban", "rush_hour"):
        policy = load_policy(RESULTS / f"micro_{task}")
        found[f"micro {task}"] = policy_work(policy, None, quick)
    return found


def start(work: Work, trainer: Trainer, dtype):
    """The state of a run with the weights of this work."""
    state = trainer.begin(seed=0)
    weights = work.weights
    if weights is None:
        _, parameters, fixed = nnx.split(work.build(nnx.Rngs(0)), nnx.Param, ...)
        weights = Weights(parameters, fixed, no_statistics(state.players.observation.shape[-1]))
    weights = jax.tree.map(lambda a: jnp.asarray(a, dtype), weights)
    return state.with_weights(weights)


def compare(work: Work, dtype, slots: int, rollouts: int) -> dict:
    """Count the decisions and levels that differ."""
    config, mesh = work.config, all_devices()
    trainer = ppo_trainer(
        config.ppo, work.world.train, work.build, 1, mesh, dtype=dtype, acting=Streaming(slots)
    )
    state = start(work, trainer, dtype)
    frozen = Synchronous(FrozenScan())

    @jax.jit
    def decide_again(weights, observation, copies, step):
        decision = deciding(trainer.learner.net.definition, weights, execution=FrozenScan())(observation)
        key = addressed_key(state.root, Stream.ACTION)

        def draw(distribution, copy):
            return distribution.sample(jax.random.wrap_key_data(folded(key, copy, step)))

        return jax.vmap(draw)(decision.distribution, copies), decision.loop.loops

    decisions = actions = loops = 0
    for rollout_number in range(rollouts):
        players, rollout = trainer.programs.collect(trainer.collector.world, state, None)
        steps = rollout.steps
        for t in range(config.ppo.rollout_steps):
            step = rollout_number * config.ppo.rollout_steps + t
            action, loop = decide_again(
                state.weights, steps.observation[t], state.players.envs.copy, jnp.int32(step)
            )
            decisions += action.size
            actions += int((action != steps.action[t]).sum())
            loops += int((loop != steps.loops[t]).sum())
        state = state._replace(players=players, iteration=state.iteration + 1)

    player = LevelPlayer(
        work.world.held_out, work.world.levels, trainer.learner.net.definition, config.halting.max_loops, mesh
    )
    played = [
        replace(player, acting=acting).play(state.weights).episodes for acting in (Streaming(slots), frozen)
    ]
    fields = ("success", "length", "loops")
    differ = np.any([getattr(played[0], f) != getattr(played[1], f) for f in fields], axis=0)
    return {
        "decisions": decisions,
        "different_actions": actions,
        "different_loops": loops,
        "levels": len(differ),
        "different_levels": int(differ.sum()),
        "decisions_on_levels": int(played[1].length.sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="a file for the JSON")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    options = parser.parse_args()
    facts = {}
    for name, work in works(options.quick).items():
        for dtype in (jnp.float64, jnp.float32):
            for slots in SLOTS[:1] if options.quick else SLOTS:
                rollouts = 1 if options.quick else 4
                row = f"{name}, {jnp.dtype(dtype).name}, {slots} slots"
                facts[row] = compare(work, dtype, slots, rollouts)
                print(row, facts[row], flush=True)
    precise = [row for name, row in facts.items() if "float64" in name]
    single = [row for name, row in facts.items() if "float32" in name]
    summary = {
        "float64_identical": all(
            row[f"different_{what}"] == 0 for row in precise for what in ("actions", "loops", "levels")
        ),
        "float32_differences_per_10000_decisions": 1e4
        * sum(max(row["different_actions"], row["different_loops"]) for row in single)
        / sum(row["decisions"] for row in single),
    }
    write_record(options.out, {**summary, "comparisons": facts})


if __name__ == "__main__":
    main()
