"""Draws the picture of docs/halting.md: the loops that four slots compute, synchronously and as a stream.

python tools/slots_picture.py --out docs/slots.png

The loops are those of a rollout of the trained micro policy. The stream is replayed here in plain Python, and
must compute as many loops as the engine did.
"""

import argparse
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from looped_actor import load_policy
from looped_actor.algorithms import Weights
from looped_actor.algorithms.rollout import Rollout, collect, init_env_state
from looped_actor.envs import VectorEnv
from looped_actor.loop import Streaming
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.catalogue import game_named
from looped_actor.puzzles.generate import generate

SLOTS, ENVS, STEPS = 4, 8, 5
POLICY = pathlib.Path(__file__).parents[1] / "results" / "micro_boxoban"


class Bar(NamedTuple):
    """A decision in a slot."""

    slot: int
    begin: int
    loops: int
    env: int


def collect_loops() -> tuple[np.ndarray, int]:
    """Return the loops of every decision, `[step, environment]`, and the loops that the engine computed."""
    policy = load_policy(POLICY)
    recipe = policy.config.levels.recipe
    bank = generate(recipe, {"new": 200})["new"] if recipe else starter_bank(policy.spec.task)
    env = game_named(policy.spec.task).environment(bank.on_device(), policy.config.time_limit)
    root, vector = jax.random.key_data(jax.random.key(0)), VectorEnv(env, ENVS)
    state = init_env_state(vector, root)

    def run(steps: int) -> Rollout:
        @jax.jit
        def run_stream(weights: Weights) -> Rollout:
            acting = Streaming(SLOTS)
            first = jnp.int32(0)
            return collect(vector, state, policy.spec.definition, weights, acting, root, first, steps)[1]

        return run_stream(policy.weights)

    # The state after the last step is decided too: a rollout of one step more has its loops.
    shorter, longer = run(STEPS), run(STEPS + 1)
    return np.asarray(longer.steps.loops), int(np.asarray(shorter.executed).sum())


def stream(loops: np.ndarray) -> tuple[list[Bar], int]:
    """Return the decisions of a stream, and the loops computed."""
    decisions, envs = loops.shape
    waiting, ended, bars, done = list(range(envs)), list[int](), list[Bar](), [0] * envs
    busy: dict[int, tuple[int, int]] = {}  # environment and loops left, by slot
    slots, tick, executed = list(range(SLOTS)), 0, 0

    def fill() -> None:
        for slot in slots:
            if slot not in busy and waiting:
                env = waiting.pop(0)
                busy[slot] = (env, loops[done[env], env])
                bars.append(Bar(slot, tick, loops[done[env], env], env))

    for size, few in ((4, 2), (2, 1), (1, 0)):
        slots = sorted(busy, key=lambda slot: busy[slot][0])[:size] if size < SLOTS else slots
        while len(waiting) + len(ended) + len(busy) > few:
            waiting = sorted(waiting + [env for env in ended if done[env] < decisions])
            ended = []
            fill()
            while busy and (len(busy) == size or not ended):
                tick, executed = tick + 1, executed + size
                busy = {slot: (env, left - 1) for slot, (env, left) in busy.items()}
                for slot in [slot for slot, (_, left) in busy.items() if left == 0]:
                    env = busy.pop(slot)[0]
                    ended.append(env)
                    done[env] += 1
                fill()
    return bars, executed


def compute_frozen(loops: np.ndarray, cap: int) -> tuple[list[Bar], int]:
    """Return the same decisions in batches of four that compute all loops, and the loops computed."""
    bars, tick = [], 0
    for row in loops:
        for first in range(0, len(row), SLOTS):
            bars += [Bar(i, tick, row[first + i], first + i) for i in range(SLOTS)]
            tick += cap
    return bars, tick * SLOTS


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", default="docs/slots.png", help="the picture")
    options = parser.parse_args()
    cap = load_policy(POLICY).spec.max_loops
    loops, engine = collect_loops()
    stream_bars, executed = stream(loops)
    assert executed == engine, (executed, engine)
    frozen_bars, frozen_executed = compute_frozen(loops, cap)

    figure, axes = plt.subplots(2, 1, figsize=(11, 4.2), sharex=True, layout="constrained")
    colours = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]
    needed = int(loops.sum())
    for axis, bars, computed, name in (
        (axes[0], frozen_bars, frozen_executed, f"Synchronous: every decision takes {cap} ticks"),
        (axes[1], stream_bars, executed, "Streaming: the slot of a state that halts takes the next one"),
    ):
        style = {"height": 0.8, "edgecolor": "white", "linewidth": 0.8}
        for bar in bars:
            if axis is axes[0]:
                axis.barh(bar.slot, cap, left=bar.begin, color="0.9", **style)
            axis.barh(bar.slot, bar.loops, left=bar.begin, color=colours[bar.env], **style)
            middle = bar.begin + bar.loops / 2
            axis.text(middle, bar.slot, str(bar.loops), ha="center", va="center", color="white", size=8)
        axis.set_title(f"{name} - {needed} loops needed, {computed} computed", loc="left", size=11)
        axis.set_yticks(range(SLOTS), [f"slot {i + 1}" for i in range(SLOTS)])
        axis.invert_yaxis()
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(left=False)
    axes[1].set_xlabel("ticks (one loop in every slot)")
    handles = [Rectangle((0, 0), 1, 1, color=colours[env]) for env in range(ENVS)]
    handles.append(Rectangle((0, 0), 1, 1, color="0.9"))
    labels = [f"env {env + 1}" for env in range(ENVS)] + ["not needed"]
    figure.legend(handles, labels, loc="outside lower center", ncols=9, frameon=False, fontsize=8)
    figure.savefig(options.out, dpi=130)
    print(f"{options.out}: {needed} needed, {frozen_executed} synchronously, {executed} streamed")


if __name__ == "__main__":
    main()
