"""Gradients before the first update: one shared block, against blocks of their own, by initial weights.

python benchmarks/initial_gradients.py --out results/initial_gradients.json

Boxoban 10x10, the paper's net (width 128, 2 layers, 16 loops or cores), cross-entropy to a solver's moves.
The norm of the gradient by all core weights, and by those of each loop or core: of the shared block, as if
every loop had a copy of its own. For three kinds of initial weights: ours; with the authors' readout token
and convolution; and all of theirs.
"""

import argparse
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from record import write_record

from looped_actor.algorithms import Advised, imitation_loss, no_statistics
from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.games.boxoban import Cell
from looped_actor.levels import starter_bank
from looped_actor.loop import PolicyKL
from looped_actor.models import AUTHORS, CoreConfig, InitialWeights
from looped_actor.models.arms import arm_named
from looped_actor.models.tasks import TASKS
from looped_actor.solvers import BoxobanTeacher
from looped_actor.solvers.advice import planes_of

LOOPS = 16
KINDS = {
    "ours": InitialWeights(),
    "authors' token and convolution": InitialWeights(token_deviation=0.02, uniform_convolution=True),
    "authors'": AUTHORS,
}


def examples(count: int) -> Advised:
    """Boards of the starter bank and what its solver would do."""
    observation = planes_of(starter_bank("boxoban").cells(slice(0, count)), len(Cell))
    optimal = jnp.asarray(BoxobanTeacher().advise(observation).optimal)
    seen = jnp.asarray(observation, jnp.float32)
    scaled = no_statistics((len(Cell),)).update(seen).normalise(seen)  # as in training: it matters much
    return Advised(scaled, optimal, jnp.full(count, LOOPS, jnp.int32))


def norms(initial: InitialWeights, tied: bool, batch: Advised, seed: int) -> np.ndarray:
    """Norms of the gradient by each loop's or core's weights."""
    core = CoreConfig(initial=initial)
    untied = arm_named("iso-flops", PolicyKL(max_loops=LOOPS)).build(TASKS["boxoban"], core, nnx.Rngs(seed))
    if tied:  # every core has the weights of the first
        untied.trunk.cores = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), untied.trunk.cores
        )
    definition, parameters, fixed = nnx.split(untied, nnx.Param, ...)

    def loss(parameters: Any) -> Any:
        net = nnx.merge(definition, parameters, fixed)
        return imitation_loss(lambda seen, **_: net(seen), batch)[0].mean()

    cores = jax.jit(jax.grad(loss))(parameters)["trunk"]["cores"]
    summed = optax.tree.norm(jax.tree.map(lambda leaf: leaf.sum(axis=0), cores))
    each = np.array([optax.tree.norm(jax.tree.map(lambda leaf, i=i: leaf[i], cores)) for i in range(LOOPS)])
    return np.array([float(summed if tied else np.sqrt((each**2).sum())), *each])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--boards", type=int, default=64)
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument(
        "--out", type=pathlib.Path, required=True, help="the record; its figure lies beside it"
    )
    given = options.parse_args()
    batch, facts = examples(given.boards), {}
    for kind, initial in KINDS.items():
        for name, tied in (("shared block", True), ("blocks of their own", False)):
            found = np.stack([norms(initial, tied, batch, seed) for seed in range(given.seeds)])
            facts[f"{name}, {kind}"] = {
                "whole": found[:, 0].tolist(),
                "each": found[:, 1:].mean(axis=0).tolist(),
            }
            print(name, kind, found[:, 0], flush=True)
    draw(facts, given.out)
    write_record(given.out, {"boards": given.boards, "norms": facts})


def draw(facts: dict[str, Any], out: pathlib.Path) -> None:
    """The norm by each loop or core, the last one right."""
    figure, axes = new_axes(2)
    for axis, name in zip(axes[0], ("shared block", "blocks of their own"), strict=True):
        for kind, colour in zip(KINDS, COLOURS, strict=False):
            each, whole = (facts[f"{name}, {kind}"][what] for what in ("each", "whole"))
            label = f"{kind} (whole: {np.mean(whole):,.0f})"
            axis.semilogy(range(1, LOOPS + 1), each, color=colour, marker="o", markersize=3, label=label)
        axis.set(title=name, xlabel="loop, or core")
        axis.legend(frameon=False, fontsize=7)
    axes[0][0].set_ylabel("norm of the gradient")
    figure.suptitle("Gradients of the core before the first update")
    save_figure(figure, out)


if __name__ == "__main__":
    main()
