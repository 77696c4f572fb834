"""Gradients before the first update, of one shared block and of separate blocks, by initial weights.

python studies/depth/initial_gradients.py --out results/initial_gradients.json

Boxoban 10x10, the paper's net (width 128, 2 layers, 16 loops or cores), cross-entropy to a solver's moves,
boards normalized by their statistics as in training. Measures the norm of the gradient by all core weights,
and by those of each loop or core; for the shared block, as if every loop had its own copy. Three kinds of
initial weights: ours; ours with the authors' readout token and convolution; and all of the authors'. Seeds
differ much.
"""

import argparse
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from core_gradients import CoreGradient, core_gradient
from flax import nnx

from looped_actor.algorithms import Weights, zero_statistics
from looped_actor.algorithms.imitation import LabelledBatch, imitation_loss
from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.loop import PolicyKL, empty_carry
from looped_actor.models import AUTHORS_INITIAL, DEFAULT_INITIAL, InitialWeights
from looped_actor.models.arms import arm_named, paper_core
from looped_actor.models.tasks import TASKS
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.boxoban.game import BOXOBAN
from looped_actor.puzzles.teachers import planes_of
from looped_actor.reproduction.record import write_record

LOOPS = 16
HALTING = PolicyKL(threshold=0.0, max_loops=LOOPS)
"""All examples run all loops."""
KINDS = {
    "ours": DEFAULT_INITIAL,
    "authors' token and convolution": InitialWeights(token_std=0.02, uniform_convolution=True),
    "authors'": AUTHORS_INITIAL,
}
ARMS = {"shared block": "looped", "blocks of their own": "iso-flops"}


def make_batch(count: int) -> LabelledBatch:
    """Return boards of the starter bank with the solver's labels."""
    observation = planes_of(starter_bank("boxoban").cells(slice(0, count)), BOXOBAN.planes)
    return LabelledBatch(
        observation=jnp.asarray(observation, jnp.float32),
        optimal=jnp.asarray(BOXOBAN.teacher().label(observation).optimal),
        loops=jnp.full(count, LOOPS, jnp.int32),
        carry=empty_carry(count),
    )


def measure(arm: str, initial: InitialWeights, batch: LabelledBatch, seed: int) -> CoreGradient:
    """Return the norms of the gradient of a new net."""
    net = arm_named(arm, paper_core(), HALTING).build(TASKS["boxoban"], nnx.Rngs(seed), initial)
    definition, parameters, fixed = nnx.split(net, nnx.Param, ...)
    statistics = zero_statistics((BOXOBAN.planes,)).update(batch.observation)
    return _measure_jit(definition, Weights(parameters, fixed, statistics), batch)


@functools.partial(jax.jit, static_argnums=0)
def _measure_jit(definition: nnx.GraphDef, weights: Weights, batch: LabelledBatch) -> Any:
    return core_gradient(definition, weights, imitation_loss, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--boards", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="file of the record; the figure is written next to it"
    )
    options = parser.parse_args()
    batch, norms = make_batch(options.boards), {}
    for name, arm in ARMS.items():
        for kind, initial in KINDS.items():
            found = [measure(arm, initial, batch, seed) for seed in range(options.seeds)]
            whole = [float(one.core_gradient) for one in found]
            norms[f"{name}, {kind}"] = {
                "whole": whole,
                "median": float(np.median(whole)),
                "each": [np.asarray(one.core_gradient_of_loop).tolist() for one in found],
            }
            print(name, kind, np.round(sorted(whole), 1), flush=True)
    draw(norms, options.out)
    write_record(options.out, {"boards": options.boards, "norms": norms})


def draw(norms: dict[str, Any], out: pathlib.Path) -> None:
    """Draw the norm by each loop or core: every seed faint, the median bold."""
    figure, axes = new_axes(2)
    for axis, name in zip(axes[0], ARMS, strict=True):
        for kind, colour in zip(KINDS, COLOURS, strict=False):
            each, median = (norms[f"{name}, {kind}"][column] for column in ("each", "median"))
            loops = range(1, len(each[0]) + 1)
            for seed in each:
                axis.semilogy(loops, seed, color=colour, alpha=0.2, linewidth=0.8)
            label = f"{kind} (whole: median {median:,.0f})"
            axis.semilogy(loops, np.median(each, axis=0), color=colour, marker="o", markersize=3, label=label)
        axis.set(title=name, xlabel="loop, or core", ylim=(0.1, 3e4))
        axis.legend(frameon=False, fontsize=7, loc="upper right")
    axes[0][0].set_ylabel("norm of the gradient")
    figure.suptitle("Gradients of the core before the first update")
    save_figure(figure, out)


if __name__ == "__main__":
    main()
