"""Future pushes of Boxoban in carried latents, read by probes after one loop, by the step of an episode.

python studies/carried/carried_probes.py runs/boxoban-carried --out results/carried_probes.json

A policy plays levels with carried latents. Three latents of every state are probed: the one that is carried
into it, before the state is observed; the one after loop 1 from there; and the one after loop 1 from the
initial latent. Probes learn to read the next pushes of an optimal solution of that state (the push's box and
direction); those of any solution of that length are right. They are scored on levels on which they were not
trained. In step 0 nothing is carried yet. States without a solution are left out.

Most states of failed episodes repeat an earlier one, often because the last action changed nothing: then the
carried latent comes from the same board. So states are scored in groups: those that are new in their episode,
by step and by whether the last action was a push, and repeats.
"""

import argparse
import pathlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import looped_actor
from looped_actor.algorithms import make_policy
from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.analysis.probes import (
    Probe,
    ProbeConfig,
    Split,
    right_predictions,
    split_levels,
    train_probes,
)
from looped_actor.evaluation.intervals import clustered_mean
from looped_actor.evaluation.levels import play_levels
from looped_actor.loop import Carry
from looped_actor.puzzles.banks import make_bank
from looped_actor.puzzles.boxoban.game import BOXOBAN
from looped_actor.puzzles.boxoban.plans import push_targets, right_pushes
from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.search import SolveStatus
from looped_actor.puzzles.solutions import solve_bank
from looped_actor.puzzles.teachers import distinct_boards
from looped_actor.reproduction.record import write_record
from looped_actor.runs.puzzle import find_test_levels
from looped_actor.utils.processes import default_workers

PLACES = ("carried, before the state is seen", "loop 1, carried start", "loop 1, fresh start")
PUSHES = (1, 2, 3, 4)
STEPS = ((0, 0), (1, 2), (3, 5), (6, 10_000))
"""Steps of an episode that are counted together, as first and last."""
FEWEST_LEVELS = 10
"""Number of levels below which a group is in the record and not in the figure."""
BATCH = 250
"""Levels that are played together."""


class States(NamedTuple):
    """States that a policy visited."""

    level: np.ndarray
    step: np.ndarray
    cells: np.ndarray
    new: np.ndarray
    """Mask of the states that had not occurred before in their episode."""
    changed: np.ndarray
    """Mask of the states whose last action changed the board."""
    pushed: np.ndarray
    """Mask of the states whose last action moved a box."""
    latents: np.ndarray
    """Latents of each place, `[3, states, tokens, width]`."""


def visit_states(policy: looped_actor.Policy, levels: int) -> States:
    """Return all states of the policy's episodes."""
    spec, bank = policy.spec, find_test_levels(policy)
    levels = min(levels, len(bank))
    env: Any = BOXOBAN.environment(bank.on_device(levels), policy.config.time_limit)
    act = make_policy(spec.definition, policy.weights)

    def decide(observation: Any, carry: Carry | None = None, **options: Any) -> Any:
        carried, fresh = act(observation, carry=carry, record=True, **options), act(observation, record=True)
        assert carried.loop is not None
        assert fresh.loop is not None
        assert carried.loop.latents is not None
        assert fresh.loop.latents is not None
        # Without a carry only shapes are computed.
        before = carried.loop.latent if carry is None else carry.latent
        latents = jnp.stack([before, carried.loop.latents[0], fresh.loop.latents[0]], axis=1)
        return SimpleNamespace(loop=carried.loop, distribution=carried.distribution, latents=latents)

    def record(state: Any, output: Any) -> tuple[Any, Any]:
        return state.cells, output.latents.astype(jnp.float16)

    @jax.jit
    def play(chosen: Any) -> Any:
        return play_levels(env, decide, chosen, spec.max_loops, record, carry_latent=True)

    parts = []
    for first in range(0, levels, BATCH):
        chosen = np.arange(first, first + BATCH, dtype=np.int32)
        played = jax.device_get(play(jnp.asarray(np.where(chosen < levels, chosen, -1))))
        step, row = np.nonzero(played.trace.mask)
        all_cells, recorded = played.trace.recorded
        cells, before = all_cells[step, row], all_cells[np.maximum(step - 1, 0), row]
        difference = (cells ^ before).reshape(len(cells), -1)
        parts.append(
            States(
                level=chosen[row],
                step=step,
                cells=cells,
                new=played.new_states()[row, step],
                changed=(difference & Cell.PLAYER).any(axis=1),
                pushed=(difference & Cell.BOX).any(axis=1),
                latents=np.moveaxis(recorded[step, row], 1, 0),
            )
        )
        print(f"played {min(first + BATCH, levels)} of {levels} levels", flush=True)
    *columns, latents = zip(*parts, strict=True)
    states = States(*[*map(np.concatenate, columns), np.concatenate(latents, axis=1)])
    return states._replace(cells=states.cells.reshape(-1, bank.info.height, bank.info.width))


def solve_states(states: States) -> tuple[States, np.ndarray, np.ndarray]:
    """Return the states with a solution, its pushes, and a mask of those of any solution of that length."""
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
    """Return the accuracy of each push: the share of states in which it is read right, over seeds of probes.

    States of one level are alike, so intervals are those of levels drawn anew.
    """
    scores: list[dict[str, Any] | None] = []
    if not len(rows):
        return [None] * len(PUSHES)
    correct = right_predictions(probes, jnp.asarray(latents[rows], jnp.float32), jnp.asarray(right[rows]))
    for push in range(len(PUSHES)):
        there = right[rows, push].any(axis=1)
        level = states.level[rows][there]
        if not len(level):
            scores.append(None)
            continue
        accuracy, interval = clustered_mean(np.asarray(correct)[push].mean(axis=0)[there], level)
        interval = np.clip(interval, 0, 1).tolist()
        counts = {"states": len(level), "levels": len(np.unique(level))}
        scores.append({"accuracy": accuracy, "interval_95": interval, **counts})
    return scores


def group_states(states: States) -> dict[str, np.ndarray]:
    """Return the groups of states that are scored, as masks."""
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


def draw(accuracy: dict[str, Any], out: pathlib.Path) -> None:
    """Draw the accuracy of the first pushes on new states, by step and by the last action."""
    names = [name for name in accuracy[PLACES[0]] if name.startswith("new") and name != "new, after step 0"]
    figure, axes = new_axes(2, width=5.2, height=3.8)
    for push, axis in enumerate(axes[0]):
        for number, (place, colour) in enumerate(zip(PLACES, COLOURS, strict=False)):
            known = [(x, accuracy[place][name][push]) for x, name in enumerate(names)]
            known = [(x, row) for x, row in known if row and row["levels"] >= FEWEST_LEVELS]
            if not known:
                continue
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


def main() -> None:
    """Play, train probes, score them, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="folder of a run of Boxoban by PPO")
    parser.add_argument("--levels", type=int, default=1000)
    parser.add_argument(
        "--epochs", type=int, default=20, help="over all states; new ones get as many updates"
    )
    parser.add_argument("--train-on-new", action="store_true", help="train probes on new states alone")
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="the record; its figure lies next to it"
    )
    options = parser.parse_args()
    states = visit_states(looped_actor.load_policy(options.run), options.levels)
    decisions, new = len(states.level), int(states.new.sum())
    states, targets, right = solve_states(states)
    by_level = split_levels(int(states.level.max()) + 1)
    split = Split(*(np.flatnonzero(np.isin(states.level, some)) for some in by_level))
    groups = group_states(states)
    learned = Split(*(rows[states.new[rows]] for rows in split)) if options.train_on_new else split
    epochs = round(options.epochs * len(split.train) / len(learned.train))
    accuracy = {}
    for place, latents in zip(PLACES, states.latents, strict=True):
        probes = train_probes(latents, targets, right, learned, ProbeConfig(epochs=epochs)).probes
        accuracy[place] = {
            name: score(probes, states, latents, right, split.test[group[split.test]])
            for name, group in groups.items()
        }
        print(place, accuracy[place], flush=True)
    draw(accuracy, options.out)
    write_record(
        options.out,
        {
            "decisions": decisions,
            "decisions_on_new_states": new,
            "states": len(states.level),
            "new_states": int(states.new.sum()),
            "tested": len(split.test),
            "trained_on": "new states" if options.train_on_new else "all states",
            "accuracy": accuracy,
        },
    )


if __name__ == "__main__":
    main()
