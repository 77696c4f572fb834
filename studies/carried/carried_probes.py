"""What a carried latent holds: future pushes of Boxoban, read after one loop, by the step of an episode.

python benchmarks/carried_probes.py runs/boxoban-carried --out results/carried_probes.json

A policy plays levels with carried latents. Three latents of every state are probed: the one that is carried
into it, before the state is observed; the one after loop 1 from there; and the one after loop 1 from a fresh
start. Probes learn to read the next pushes of an optimal solution of that state (the push's box and
direction); those of any solution as short are right. They are scored on levels that they have not learned
from. In step 0 nothing is carried yet. States from which no solution exists are left out.

Most states of failed episodes repeat an earlier one, often because the last action changed nothing: then the
carried latent comes from the very board that it is read for. So states are scored in groups: those that are
new in their episode, by step and by whether the last action was a push, and repeats.
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
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.analysis.probes import Probe, ProbeConfig, Split, names_right, split_levels, train_probes
from looped_actor.evaluation.intervals import clustered_mean
from looped_actor.evaluation.levels import play_levels
from looped_actor.loop import Carried
from looped_actor.puzzles.banks import make_bank
from looped_actor.puzzles.boxoban.plans import push_targets, right_pushes
from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.catalogue import BOXOBAN
from looped_actor.puzzles.solutions import solve_bank
from looped_actor.puzzles.solve_status import SolveStatus
from looped_actor.puzzles.teachers import distinct_boards
from looped_actor.utils.processes import default_workers

PLACES = ("carried, before the state is seen", "loop 1, carried start", "loop 1, fresh start")
PUSHES = (1, 2, 3, 4)
STEPS = ((0, 0), (1, 2), (3, 5), (6, 10_000))
"""Steps of an episode that are counted together."""
FEWEST_LEVELS = 10
"""Groups of fewer levels are in the record and not in the figure."""
BATCH = 250
"""Levels that are played together."""


class States(NamedTuple):
    """States that a policy came to."""

    level: np.ndarray
    step: np.ndarray
    cells: np.ndarray
    new: np.ndarray
    """Whether the board had not occurred before in the episode."""
    changed: np.ndarray
    """Whether the last action changed the board."""
    pushed: np.ndarray
    """Whether the last action moved a box."""
    latents: np.ndarray
    """For each place, `[3, states, tokens, width]`."""


def visited(policy: Any, levels: int) -> States:
    """Return all states of the policy's episodes."""
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
        return play_levels(env, always_known, chosen, run.net.max_loops, look, Carried())

    parts = []
    for first in range(0, levels, BATCH):
        chosen = np.arange(first, first + BATCH, dtype=np.int32)
        played = jax.device_get(play(jnp.asarray(np.where(chosen < levels, chosen, -1))))
        step, row = np.nonzero(played.trace.taken)
        all_cells, looked = played.trace.seen
        cells, before = all_cells[step, row], all_cells[np.maximum(step - 1, 0), row]
        changed, pushed = (
            ((cells ^ before) & Cell.PLAYER).any(axis=1),
            ((cells ^ before) & Cell.BOX).any(axis=1),
        )
        new = played.new_states()[row, step]
        latents = np.moveaxis(looked[step, row], 1, 0)
        parts.append(States(chosen[row], step, cells, new, changed, pushed, latents))
        print(f"played {min(first + BATCH, levels)} of {levels} levels", flush=True)
    *about, latents = zip(*parts, strict=True)
    whole = States(*[*map(np.concatenate, about), np.concatenate(latents, axis=1)])
    return whole._replace(cells=whole.cells.reshape(-1, bank.info.height, bank.info.width))


def solved(states: States) -> tuple[States, np.ndarray, np.ndarray]:
    """Return the states that can be solved, the pushes of a solution, and which are those of any as short."""
    boards, place = distinct_boards(states.cells)
    bank = make_bank(BOXOBAN, boards, source="states of episodes", licence="none")
    solutions = solve_bank(bank, node_limit=300_000, workers=default_workers())
    targets = push_targets(solutions, PUSHES)
    good = np.flatnonzero(solutions.status == SolveStatus.SOLVED.value)
    right = right_pushes(boards[good], targets[good], PUSHES, workers=default_workers())
    found = np.full(len(boards), -1)
    found[good] = np.arange(len(good))
    chosen = found[place] >= 0
    kept = States(*[*(leaf[chosen] for leaf in states[:-1]), states.latents[:, chosen]])
    return kept, targets[place[chosen]], right[found[place[chosen]]]


def score(
    probes: Probe, states: States, latents: np.ndarray, right: np.ndarray, rows: np.ndarray
) -> list[dict[str, Any] | None]:
    """Return for each push the share of states where it is read right: the mean over seeds of probes.

    States of one level are alike, so intervals are those of levels drawn anew.
    """
    facts: list[dict[str, Any] | None] = []
    if not len(rows):
        return [None] * len(PUSHES)
    named = np.asarray(names_right(probes, jnp.asarray(latents[rows], jnp.float32), jnp.asarray(right[rows])))
    for push in range(len(PUSHES)):
        there = right[rows, push].any(axis=1)
        level = states.level[rows][there]
        if not len(level):
            facts.append(None)
            continue
        accuracy, interval = clustered_mean(named[push].mean(axis=0)[there], level)
        interval = np.clip(interval, 0, 1).tolist()
        counts = {"states": len(level), "levels": len(np.unique(level))}
        facts.append({"accuracy": accuracy, "interval_95": interval, **counts})
    return facts


def groups_of(states: States) -> dict[str, np.ndarray]:
    """Return the groups of states that are scored."""
    groups = {}
    for low, high in STEPS:
        name = str(low) if low == high else f"{low} on" if high == STEPS[-1][1] else f"{low}-{high}"
        groups[f"new, step {name}"] = states.new & (states.step >= low) & (states.step <= high)
    later = states.new & (states.step > 0)
    groups["new, after step 0"] = later
    groups["new, after a step without a push"] = later & ~states.pushed
    groups["new, after a push"] = later & states.pushed
    groups["repeat, the board changed"] = ~states.new & states.changed
    groups["repeat, the board did not change"] = ~states.new & ~states.changed
    groups["all after step 0"] = states.step > 0
    return groups


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("run", type=pathlib.Path, help="folder of a run of Boxoban by PPO")
    options.add_argument("--levels", type=int, default=1000)
    options.add_argument(
        "--epochs", type=int, default=20, help="over all states; new ones get as many updates"
    )
    options.add_argument(
        "--out", type=pathlib.Path, required=True, help="the record; its figure lies beside it"
    )
    given = options.parse_args()
    states = visited(looped_actor.load_policy(given.run), given.levels)
    decisions, new = len(states.level), int(states.new.sum())
    states, targets, right = solved(states)
    by_level = split_levels(int(states.level.max()) + 1)
    split = Split(*(np.flatnonzero(np.isin(states.level, some)) for some in by_level))
    groups = groups_of(states)
    facts: dict[str, Any] = {"decisions": decisions, "decisions_on_new_states": new}
    facts |= {"states": len(states.level), "new_states": int(states.new.sum()), "tested": len(split.test)}
    learned = Split(*(rows[states.new[rows]] for rows in split)) if given.train_on_new else split
    epochs = round(given.epochs * len(split.train) / len(learned.train))
    facts |= {"trained_on": "new states" if given.train_on_new else "all states", "accuracy": {}}
    for place, latents in zip(PLACES, states.latents, strict=True):
        probes = train_probes(latents, targets, right, learned, ProbeConfig(epochs=epochs)).probes
        facts["accuracy"][place] = {
            name: score(probes, states, latents, right, split.test[group[split.test]])
            for name, group in groups.items()
        }
        print(place, facts["accuracy"][place], flush=True)
    draw(facts["accuracy"], given.out)
    write_record(given.out, facts)


def draw(accuracy: dict[str, Any], out: pathlib.Path) -> None:
    """Draw the accuracy of the first pushes on new states, by step and by what the last action did."""
    names = [name for name in accuracy[PLACES[0]] if name.startswith("new") and name != "new, after step 0"]
    figure, axes = new_axes(2, width=5.2, height=3.8)
    for push, axis in enumerate(axes[0]):
        for number, (place, colour) in enumerate(zip(PLACES, COLOURS, strict=False)):
            known = [(x, accuracy[place][name][push]) for x, name in enumerate(names)]
            known = [(x, row) for x, row in known if row and row["levels"] >= FEWEST_LEVELS]
            value = np.array([row["accuracy"] for _, row in known])
            low, high = np.array([row["interval_95"] for _, row in known]).T
            error = np.maximum([value - low, high - value], 0)
            style = {"color": colour, "marker": "o", "markersize": 4, "linestyle": "none", "capsize": 2}
            x = np.array([x for x, _ in known]) + 0.15 * (number - 1)
            axis.errorbar(x, value, error, label=place, **style)
        labels = [name.removeprefix("new, ").replace("step without a push", "walk") for name in names]
        axis.set_xticks(range(len(names)), labels, rotation=30, ha="right", fontsize=8)
        axis.set(title=f"push {PUSHES[push]} ahead", ylim=(0, 1))
    axes[0][0].set_ylabel("read right (95% interval over levels)")
    axes[0][0].legend(frameon=False, fontsize=7, loc="lower right")
    figure.suptitle("States that are new in their episode")
    save_figure(figure, out)


if __name__ == "__main__":
    main()
