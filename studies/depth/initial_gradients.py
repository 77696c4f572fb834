"""Gradients before the first update: one shared block, against blocks of their own, by initial weights.

python benchmarks/initial_gradients.py --out results/initial_gradients.json

Boxoban 10x10, the paper's net (width 128, 2 layers, 16 loops or cores), cross-entropy to a solver's moves,
boards scaled by their statistics as in training. The norm of the gradient by all core weights, and by those
of each loop or core: of the shared block, as if every loop had a copy of its own. For three kinds of initial
weights: ours; with the authors' readout token and convolution; and all of theirs. Seeds differ much.
"""

import argparse
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from looped_actor.algorithms.instruments import CoreGradient, core_gradient
from record import write_record

from looped_actor.algorithms import Advised, Weights, imitation_loss, no_statistics
from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.loop import PolicyKL
from looped_actor.models import AUTHORS, CoreConfig, InitialWeights
from looped_actor.models.arms import arm_named
from looped_actor.models.tasks import TASKS
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.teachers import BoxobanTeacher, planes_of

NEVER = PolicyKL(threshold=0.0, max_loops=16)
"""All examples take all loops."""
KINDS = {
    "ours": InitialWeights(),
    "authors' token and convolution": InitialWeights(token_deviation=0.02, uniform_convolution=True),
    "authors'": AUTHORS,
}
ARMS = {"shared block": "looped", "blocks of their own": "iso-flops"}


def examples(count: int) -> Advised:
    """Boards of the starter bank and what its solver would do."""
    observation = planes_of(starter_bank("boxoban").cells(slice(0, count)), len(Cell))
    optimal = jnp.asarray(BoxobanTeacher().advise(observation).optimal)
    return Advised(jnp.asarray(observation, jnp.float32), optimal, jnp.full(count, 16, jnp.int32))


def norms(arm: str, initial: InitialWeights, batch: Advised, seed: int) -> CoreGradient:
    """Of a new net."""
    net = arm_named(arm, NEVER).build(TASKS["boxoban"], CoreConfig(initial=initial), nnx.Rngs(seed))
    definition, parameters, fixed = nnx.split(net, nnx.Param, ...)
    statistics = no_statistics((len(Cell),)).update(batch.observation)
    return _norms(definition, Weights(parameters, fixed, statistics), batch)


@functools.partial(jax.jit, static_argnums=0)
def _norms(definition: nnx.GraphDef, weights: Weights, batch: Advised) -> Any:
    return core_gradient(definition, weights, imitation_loss, batch)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--boards", type=int, default=64)
    options.add_argument("--seeds", type=int, default=8)
    options.add_argument(
        "--out", type=pathlib.Path, required=True, help="the record; its figure lies beside it"
    )
    given = options.parse_args()
    batch, facts = examples(given.boards), {}
    for name, arm in ARMS.items():
        for kind, initial in KINDS.items():
            found = [norms(arm, initial, batch, seed) for seed in range(given.seeds)]
            whole = [float(one.core_gradient) for one in found]
            facts[f"{name}, {kind}"] = {
                "whole": whole,
                "median": float(np.median(whole)),
                "each": [np.asarray(one.core_gradient_of_loop).tolist() for one in found],
            }
            print(name, kind, np.round(sorted(whole), 1), flush=True)
    draw(facts, given.out)
    write_record(given.out, {"boards": given.boards, "norms": facts})


def draw(facts: dict[str, Any], out: pathlib.Path) -> None:
    """The norm by each loop or core: every seed faint, their median bold."""
    figure, axes = new_axes(2)
    for axis, name in zip(axes[0], ARMS, strict=True):
        for kind, colour in zip(KINDS, COLOURS, strict=False):
            each, median = (facts[f"{name}, {kind}"][what] for what in ("each", "median"))
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
