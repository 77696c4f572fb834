"""Loops from fixed and from carried starts, on states that are new in their episode and on repeats.

python benchmarks/carried_repeats.py boxoban-fixed-0 boxoban-carried-0 --levels b.levels --out repeats.json

Each policy plays the levels from both starts, with one threshold. Ratios (carried over fixed) are paired by
level: their 95% intervals are percentiles of a bootstrap over levels.
"""

import argparse
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
from record import write_record

from looped_actor import load_policy
from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.evaluation.intervals import wilson
from looped_actor.evaluation.levels import Played
from looped_actor.models.arms import STARTS
from looped_actor.puzzles.banks import open_bank
from looped_actor.training.sharding import start_devices

RESAMPLES = 2000
MEASURES = {
    "loops": "all decisions",
    "loops_new_states": "new states",
    "loops_of_an_episode": "whole episodes",
}
"""Means, and what they are over."""


def sums_of(played: Played) -> dict[str, np.ndarray]:
    """Return what is summed up in each episode, one number for each level."""
    assert played.decisions is not None
    new = played.new_states()
    return {
        "episodes": np.ones(len(new)),
        "decisions": np.asarray(played.episodes.length, float),
        "new_states": new.sum(axis=1).astype(float),
        "all_loops": np.asarray(played.episodes.loops, float),
        "new_loops": (np.asarray(played.decisions.loops) * new).sum(axis=1).astype(float),
    }


def means_of(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return mean loops from sums over levels, for one or many samples of them."""
    return {
        "loops": sums["all_loops"] / sums["decisions"],
        "loops_new_states": sums["new_loops"] / sums["new_states"],
        "loops_of_an_episode": sums["all_loops"] / sums["episodes"],
    }


def totals(sums: dict[str, np.ndarray], weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return sums over levels that count as often as `weights` says, of shape [samples, levels]."""
    return {name: weights @ values for name, values in sums.items()}


def ratios(fixed: dict[str, np.ndarray], carried: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return means of carried starts over those of fixed ones, with intervals."""
    levels = len(fixed["episodes"])
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(levels, np.full(levels, 1 / levels), RESAMPLES).astype(float)
    weights = np.concatenate([np.ones((1, levels)), drawn])
    over, under = means_of(totals(carried, weights)), means_of(totals(fixed, weights))
    facts = {}
    for name in MEASURES:
        found, *resampled = over[name] / under[name]
        facts[name] = {"ratio": found, "interval_95": np.percentile(resampled, (2.5, 97.5)).tolist()}
    return facts


def facts_of(sums: dict[str, np.ndarray]) -> dict[str, float]:
    """Return means over the episodes of some levels."""
    all_of = totals(sums, np.ones((1, len(sums["episodes"]))))
    counts = {name: int(all_of[name][0]) for name in ("episodes", "decisions", "new_states")}
    share = 1 - counts["new_states"] / counts["decisions"]
    return counts | {"repeated_share": share} | {k: float(v[0]) for k, v in means_of(all_of).items()}


def play(folder: pathlib.Path, levels: pathlib.Path, threshold: float, mesh: Any) -> dict[str, Any]:
    """Return what one policy does from both starts."""
    policy = load_policy(folder)
    run = policy.run.puzzle
    rule: Any = policy.halting
    halting = replace(rule, threshold=threshold)
    bank, sums, success = open_bank(levels), {}, {}
    facts: dict[str, Any] = {"trained_start": str(policy.starting)}
    for start in ("fixed", "carried"):
        player = replace(run, mesh=mesh).player(bank, halting=halting, starting=STARTS[start])
        played = player.play(policy.weights)
        sums[start], success[start] = sums_of(played), np.asarray(played.episodes.success)
        solved = int(success[start].sum())
        won = {
            "solved": solved,
            "success": solved / len(bank),
            "interval_95": list(wilson(solved, len(bank))),
        }
        facts[start] = won | facts_of(sums[start])
    both = success["fixed"] & success["carried"]
    neither = ~success["fixed"] & ~success["carried"]
    facts["ratio"] = ratios(sums["fixed"], sums["carried"])
    for name, chosen in (("solved_by_both", both), ("failed_by_both", neither)):
        some = {start: {k: v[chosen] for k, v in sums[start].items()} for start in sums}
        facts[name] = {start: facts_of(some[start]) for start in some}
        facts[name]["ratio"] = ratios(some["fixed"], some["carried"])
    return facts


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument(
        "runs", type=pathlib.Path, nargs="+", help="folders of looped policies of one puzzle"
    )
    options.add_argument("--levels", type=pathlib.Path, required=True)
    options.add_argument("--threshold", type=float, default=1e-3)
    options.add_argument("--devices", type=int, default=1)
    options.add_argument(
        "--out", type=pathlib.Path, required=True, help="the record; its figure lies beside it"
    )
    given = options.parse_args()
    policies, mesh = {}, start_devices(given.devices)
    for folder in given.runs:
        policies[folder.name] = play(folder, given.levels, given.threshold, mesh)
        print(folder.name, policies[folder.name], flush=True)
    draw(policies, given.out)
    checksum = open_bank(given.levels).info.checksum
    write_record(given.out, {"threshold": given.threshold, "levels": checksum, "policies": policies})


def draw(policies: dict[str, Any], out: pathlib.Path) -> None:
    """Draw the ratios of each policy."""
    figure, axes = new_axes(1, width=7.2, height=0.55 * len(policies) + 1.8)
    axis = axes[0, 0]
    shown = [
        ("all decisions", ("ratio",), "loops", "o", COLOURS[0]),
        ("new states", ("ratio",), "loops_new_states", "o", COLOURS[1]),
        (
            "new states, levels solved from both starts",
            ("solved_by_both", "ratio"),
            "loops_new_states",
            "s",
            COLOURS[2],
        ),
    ]
    for number, (label, path, measure, marker, colour) in enumerate(shown):
        for row, facts in enumerate(policies.values()):
            for name in path:
                facts = facts[name]
            value, (low, high) = facts[measure]["ratio"], facts[measure]["interval_95"]
            error = [[max(value - low, 0)], [max(high - value, 0)]]
            place = -row + 0.22 * (1 - number)
            style = {"color": colour, "marker": marker, "markersize": 4, "capsize": 2}
            axis.errorbar(value, place, xerr=error, **style, linestyle="none", label=None if row else label)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks([-row for row in range(len(policies))], list(policies))
    axis.set(
        xlabel="loops from carried starts / loops from fixed starts (95% interval over levels)",
        xlim=(0, 1.08),
    )
    axis.grid(axis="y", visible=False)
    axis.legend(frameon=False, fontsize=8, loc="lower left")
    save_figure(figure, out)


if __name__ == "__main__":
    main()
