"""What a carried latent holds: future pushes of Boxoban, read after one loop, by the step of an episode.

python benchmarks/carried_probes.py runs/boxoban-carried --out results/carried_probes.json

A policy plays levels with carried thoughts. In every state on its way three latents are looked at: the one
that it carries, before it has seen the state; the one after loop 1 from there; and the one after loop 1 from
a fresh start. Probes are trained to read the next pushes of an optimal solution of that state from each
(the push's box and direction); those of any solution as short are right. They are scored on levels that
they have not seen, by the step of the episode.
In step 0 nothing is carried yet. States from which no way leads out are left out.
"""

import argparse
import pathlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from record import write_record

import looped_actor
from looped_actor.algorithms import deciding
from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.analysis.probes import Probe, ProbeConfig, Split, names_right, split_levels, train_probes
from looped_actor.evaluation.intervals import wilson
from looped_actor.evaluation.levels import play_levels
from looped_actor.games.catalogue import BOXOBAN
from looped_actor.levels import make_bank, solve_bank
from looped_actor.levels.plans import push_targets, right_pushes
from looped_actor.loop import Carried
from looped_actor.processes import default_workers
from looped_actor.solvers import SolveStatus

PLACES = ("carried, before the state is seen", "loop 1, carried start", "loop 1, fresh start")
PUSHES = (1, 2, 3, 4)
STEPS = ((0, 0), (1, 2), (3, 5), (6, 10), (11, 10_000))
"""Steps of an episode that are counted together."""
BATCH = 250
"""Levels that are played together."""


class States(NamedTuple):
    """States that a policy came to."""

    level: np.ndarray
    step: np.ndarray
    cells: np.ndarray
    latents: np.ndarray
    """For each place, `[3, states, tokens, width]`."""


def visited(policy: Any, levels: int) -> States:
    """All states of the policy's episodes."""
    run = policy.run.puzzle
    bank = run.bank_to_play()
    levels = min(levels, len(bank))
    env = run.environment(bank, levels)
    base: Any = deciding(run.definition, policy.weights)

    def decide(observation: Any, memory: Any, **options: Any) -> Any:
        carried = base(observation, memory=memory, record=True, **options)
        fresh = base(observation, record=True)
        looked = jnp.stack([memory.latent, carried.loop.latents[0], fresh.loop.latents[0]], axis=1)
        return SimpleNamespace(loop=carried.loop, distribution=carried.distribution, looked=looked)

    def always_known(observation: Any, memory: Any = None, **options: Any) -> Any:
        # Asked for shapes before any episode has begun, it has no memory yet.
        memory = memory or Carried().begin(lambda: base(observation).loop.latent)
        return decide(observation, memory, **options)

    def look(state: Any, decision: Any) -> tuple[Any, Any]:
        return state.cells, decision.looked.astype(jnp.float16)

    @jax.jit
    def play(chosen: Any) -> Any:
        return play_levels(env, always_known, chosen, run.net.max_loops, look, Carried()).trace

    parts = []
    for first in range(0, levels, BATCH):
        chosen = np.arange(first, first + BATCH, dtype=np.int32)
        trace = jax.device_get(play(jnp.asarray(np.where(chosen < levels, chosen, -1))))
        step, row = np.nonzero(trace.taken)
        cells, looked = (leaf[step, row] for leaf in trace.seen)
        parts.append(States(chosen[row], step, cells, np.moveaxis(looked, 1, 0)))
        print(f"played {min(first + BATCH, levels)} of {levels} levels", flush=True)
    level, step, cells = (np.concatenate([part[i] for part in parts]) for i in range(3))
    shape = bank.info.height, bank.info.width
    return States(level, step, cells.reshape(-1, *shape), np.concatenate([p.latents for p in parts], axis=1))


def solved(states: States) -> tuple[States, np.ndarray, np.ndarray]:
    """Those from which a way leads out, the pushes of that way, and which are those of any as short."""
    bank = make_bank(BOXOBAN, states.cells, source="states of episodes", licence="none")
    solutions = solve_bank(bank, node_limit=300_000, workers=default_workers())
    good = solutions.status == SolveStatus.SOLVED.value
    chosen = States(*(leaf[good] for leaf in states[:3]), states.latents[:, good])
    targets = push_targets(solutions, PUSHES)[good]
    return chosen, targets, right_pushes(chosen.cells, targets, PUSHES, workers=default_workers())


def told(probes: Probe, latents: np.ndarray, right: np.ndarray) -> list[dict[str, Any] | None]:
    """For each push, in which share of some states it is read right: the mean over seeds of probes."""
    named = np.asarray(names_right(probes, jnp.asarray(latents, jnp.float32), jnp.asarray(right)))
    facts, there = [], right.any(axis=2).sum(axis=0)
    for correct, states in zip(named.sum(axis=2).mean(axis=1), there, strict=True):
        interval = wilson(round(correct), int(states)) if states else None
        facts.append(
            {"accuracy": correct / states, "interval_95": interval, "states": int(states)} if states else None
        )
    return facts


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("run", type=pathlib.Path, help="folder of a run of Boxoban by PPO")
    options.add_argument("--levels", type=int, default=1000)
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument(
        "--out", type=pathlib.Path, required=True, help="the record; its figure lies beside it"
    )
    given = options.parse_args()
    states = visited(looped_actor.load_policy(given.run), given.levels)
    states, targets, right = solved(states)
    by_level = split_levels(int(states.level.max()) + 1)
    split = Split(*(np.flatnonzero(np.isin(states.level, some)) for some in by_level))
    facts: dict[str, Any] = {"states": len(states.level), "tested": len(split.test), "accuracy": {}}
    for place, latents in zip(PLACES, states.latents, strict=True):
        config = ProbeConfig(epochs=given.epochs)
        probed = train_probes(latents, targets, right, split, config)
        facts["accuracy"][place] = {}
        for low, high in STEPS:
            rows = split.test[(states.step[split.test] >= low) & (states.step[split.test] <= high)]
            name = str(low) if low == high else f"{low} on" if high == STEPS[-1][1] else f"{low}-{high}"
            facts["accuracy"][place][name] = told(probed.probes, latents[rows], right[rows])
        print(place, facts["accuracy"][place], flush=True)
    draw(facts["accuracy"], given.out)
    write_record(given.out, facts)


def draw(accuracy: dict[str, Any], out: pathlib.Path) -> None:
    """Accuracy of each push against the step of the episode."""
    figure, axes = new_axes(len(PUSHES), width=3.2, height=3.2)
    for column, axis in enumerate(axes[0]):
        for place, colour in zip(PLACES, COLOURS, strict=False):
            known = {steps: some[column] for steps, some in accuracy[place].items() if some[column]}
            value = np.array([some["accuracy"] for some in known.values()])
            low, high = np.array([some["interval_95"] for some in known.values()]).T
            error = np.maximum([value - low, high - value], 0)
            style = {"color": colour, "marker": "o", "markersize": 3, "linewidth": 1}
            axis.errorbar(list(known), value, error, label=place, **style)
        axis.set(title=f"push {PUSHES[column]} ahead", xlabel="step of the episode", ylim=(0, 1))
    axes[0][0].set_ylabel("read right (95% interval)")
    axes[0][0].legend(frameon=False, fontsize=7, loc="lower left")
    save_figure(figure, out)


if __name__ == "__main__":
    main()
