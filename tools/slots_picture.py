"""The picture of docs/halting.md: what four lanes of hardware compute, in step and as a stream.

The loops are those of a rollout of the trained micro policy. What the stream does with them is replayed
here in plain Python, and must count as many loops as the engine did.
"""

import argparse
import pathlib
from dataclasses import replace

import jax
import matplotlib.pyplot as plt
import numpy as np

from looped_actor import load_policy
from looped_actor.algorithms.ppo_trainer import ppo_trainer
from looped_actor.loop import Streaming
from looped_actor.planning.bench_work import policy_work
from looped_actor.training.sharding import all_devices

LANES, ENVS, STEPS = 4, 8, 5
POLICY = pathlib.Path(__file__).parents[1] / "results" / "micro_boxoban"


def rollout():
    """Loops of every decision, `[step, environment]`, and how many the engine computed for them."""
    policy = load_policy(POLICY)
    work = policy_work(policy, None, quick=True)
    ppo = replace(work.config.ppo, num_envs=ENVS, rollout_steps=STEPS, minibatch=ENVS)

    def rolled(steps):
        acting, own = Streaming(LANES), replace(ppo, rollout_steps=steps)
        trainer = ppo_trainer(own, work.world.train, work.build, 1, all_devices(), acting=acting)
        state = trainer.begin(seed=0).with_weights(policy.weights)
        return trainer.programs.collect(trainer.collector.world, state, None).rollout

    # The state after the last step is thought about too: how long shows in a rollout of one step more.
    rolled, longer_rolled = rolled(STEPS), rolled(STEPS + 1)
    return np.asarray(longer_rolled.steps.loops), int(jax.device_get(rolled.executed).sum())


def streamed(loops):
    """Bars (lane, first tick, ticks, environment), and the loops computed."""
    thoughts, envs = loops.shape
    waiting, ended, busy, done, bars = list(range(envs)), [], {}, [0] * envs, []
    lanes, tick, executed = list(range(LANES)), 0, 0

    def fill():
        for lane in lanes:
            if lane not in busy and waiting:
                env = waiting.pop(0)
                busy[lane] = (env, loops[done[env], env])
                bars.append((lane, tick, loops[done[env], env], env))

    for size, few in ((4, 2), (2, 1), (1, 0)):
        lanes = sorted(busy, key=lambda lane: busy[lane][0])[:size] if size < LANES else lanes
        while len(waiting) + len(ended) + len(busy) > few:
            waiting = sorted(waiting + [env for env in ended if done[env] < thoughts])
            ended = []
            fill()
            while busy and (len(busy) == size or not ended):
                tick, executed = tick + 1, executed + size
                busy = {lane: (env, left - 1) for lane, (env, left) in busy.items()}
                for lane in [lane for lane, (_, left) in busy.items() if left == 0]:
                    env = busy.pop(lane)[0]
                    ended.append(env)
                    done[env] += 1
                fill()
    return bars, executed


def in_step(loops, cap):
    """The same, for batches of four that compute all loops; and what of each bar was asked for."""
    bars, tick = [], 0
    for row in loops:
        for first in range(0, len(row), LANES):
            bars += [(i, tick, row[first + i], first + i) for i in range(LANES)]
            tick += cap
    return bars, tick * LANES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="docs/slots.png", help="the picture")
    options = parser.parse_args()
    cap = load_policy(POLICY).config.halting.max_loops
    loops, engine = rollout()
    stream_bars, executed = streamed(loops)
    assert executed == engine, (executed, engine)
    frozen_bars, frozen_executed = in_step(loops, cap)

    figure, axes = plt.subplots(2, 1, figsize=(11, 4.2), sharex=True, layout="constrained")
    colours = plt.get_cmap("tab10").colors
    asked = int(loops.sum())
    for axis, bars, computed, name in (
        (axes[0], frozen_bars, frozen_executed, f"In step: every decision takes {cap} ticks"),
        (axes[1], stream_bars, executed, "Streaming: a slot whose state has halted takes the next one"),
    ):
        for lane, tick, length, env in bars:
            if axis is axes[0]:
                axis.barh(lane, cap, left=tick, height=0.8, color="0.9", edgecolor="white", linewidth=0.8)
            axis.barh(
                lane, length, left=tick, height=0.8, color=colours[env], edgecolor="white", linewidth=0.8
            )
            axis.text(tick + length / 2, lane, str(length), ha="center", va="center", color="white", size=8)
        axis.set_title(f"{name} - {asked} loops asked for, {computed} computed", loc="left", size=11)
        axis.set_yticks(range(LANES), [f"slot {i + 1}" for i in range(LANES)])
        axis.invert_yaxis()
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(left=False)
    axes[1].set_xlabel("ticks (one loop in every slot)")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colours[env]) for env in range(ENVS)]
    handles.append(plt.Rectangle((0, 0), 1, 1, color="0.9"))
    labels = [f"env {env + 1}" for env in range(ENVS)] + ["computed in vain"]
    figure.legend(handles, labels, loc="outside lower center", ncols=9, frameon=False, fontsize=8)
    figure.savefig(options.out, dpi=130)
    print(f"{options.out}: asked {asked}, in step {frozen_executed}, streamed {executed}")


if __name__ == "__main__":
    main()
