"""Loops with and without carried latents, on states that are new in their episode and on repeats.

python studies/carried/carried_repeats.py boxoban-fixed-0 boxoban-carried-0 --levels b.levels --out
repeats.json

Each policy plays the levels in both ways, with one threshold. Ratios (carried over not carried) are paired by
level: their 95% intervals are percentiles of a bootstrap over levels.
"""

import argparse
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np

from looped_actor import load_policy
from looped_actor.analysis.drawing import COLOURS, new_axes, save_figure
from looped_actor.evaluation.intervals import wilson
from looped_actor.evaluation.levels import Played
from looped_actor.puzzles.banks import open_bank
from looped_actor.reproduction.record import write_record
from looped_actor.runs.puzzle import level_player
from looped_actor.training.sharding import start_devices

RESAMPLES = 2000
MEASURES = {
    "loops": "all decisions",
    "loops_new_states": "new states",
    "loops_of_an_episode": "whole episodes",
}
"""Means, and the decisions or episodes that they are over."""


def sum_levels(played: Played) -> dict[str, np.ndarray]:
    """Return sums over the decisions of each episode, one number for each level."""
    assert played.decisions is not None
    new = played.new_states()
    return {
        "episodes": np.ones(len(new)),
        "decisions": np.asarray(played.episodes.length, float),
        "new_states": new.sum(axis=1).astype(float),
        "all_loops": np.asarray(played.episodes.loops, float),
        "new_loops": (np.asarray(played.decisions.loops) * new).sum(axis=1).astype(float),
    }


def mean_loops(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return mean loops from sums over levels, for one or many samples of them."""
    return {
        "loops": sums["all_loops"] / sums["decisions"],
        "loops_new_states": sums["new_loops"] / sums["new_states"],
        "loops_of_an_episode": sums["all_loops"] / sums["episodes"],
    }


def total(sums: dict[str, np.ndarray], weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return sums over levels, which count by `weights`, shape [samples, levels]."""
    return {name: weights @ values for name, values in sums.items()}


def compare(fixed: dict[str, np.ndarray], carried: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return means with carried latents over those without, with intervals."""
    levels = len(fixed["episodes"])
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(levels, np.full(levels, 1 / levels), RESAMPLES).astype(float)
    weights = np.concatenate([np.ones((1, levels)), drawn])
    over, under = mean_loops(total(carried, weights)), mean_loops(total(fixed, weights))
    ratios = {}
    for name in MEASURES:
        found, *resampled = over[name] / under[name]
        ratios[name] = {"ratio": found, "interval_95": np.percentile(resampled, (2.5, 97.5)).tolist()}
    return ratios


def summarize(sums: dict[str, np.ndarray]) -> dict[str, float]:
    """Return means over the episodes of some levels."""
    all_of = total(sums, np.ones((1, len(sums["episodes"]))))
    counts = {name: int(all_of[name][0]) for name in ("episodes", "decisions", "new_states")}
    share = 1 - counts["new_states"] / counts["decisions"]
    return counts | {"repeated_share": share} | {k: float(v[0]) for k, v in mean_loops(all_of).items()}


def play(folder: pathlib.Path, levels: pathlib.Path, threshold: float, mesh: Any) -> dict[str, Any]:
    """Play levels with one policy in both ways, and compare them."""
    policy = load_policy(folder)
    rule: Any = policy.halting
    halting = replace(rule, threshold=threshold)
    bank, sums, success = open_bank(levels), {}, {}
    results: dict[str, Any] = {"trained_start": "carried" if policy.carry_latent else "fixed"}
    for start, carry_latent in (("fixed", False), ("carried", True)):
        player = level_player(policy.spec, bank.on_device(), mesh, halting, carry_latent)
        played = player.play(policy.weights)
        sums[start], success[start] = sum_levels(played), np.asarray(played.episodes.success)
        solved = int(success[start].sum())
        results[start] = {
            "solved": solved,
            "success": solved / len(bank),
            "interval_95": list(wilson(solved, len(bank))),
            **summarize(sums[start]),
        }
    results["ratio"] = compare(sums["fixed"], sums["carried"])
    both = success["fixed"] & success["carried"]
    neither = ~success["fixed"] & ~success["carried"]
    for name, chosen in (("solved_by_both", both), ("failed_by_both", neither)):
        some = {start: {k: v[chosen] for k, v in sums[start].items()} for start in sums}
        results[name] = {start: summarize(some[start]) for start in some}
        results[name]["ratio"] = compare(some["fixed"], some["carried"])
    return results


def draw(policies: dict[str, Any], out: pathlib.Path) -> None:
    """Draw the ratios of each policy."""
    figure, axes = new_axes(1, width=7.2, height=0.55 * len(policies) + 1.8)
    axis = axes[0, 0]
    shown = [
        ("all decisions", ("ratio",), "loops", "o", COLOURS[0]),
        ("new states", ("ratio",), "loops_new_states", "o", COLOURS[1]),
        (
            "new states, levels solved in both ways",
            ("solved_by_both", "ratio"),
            "loops_new_states",
            "s",
            COLOURS[2],
        ),
    ]
    for number, (label, path, measure, marker, colour) in enumerate(shown):
        for row, results in enumerate(policies.values()):
            for name in path:
                results = results[name]
            value, (low, high) = results[measure]["ratio"], results[measure]["interval_95"]
            error = [[max(value - low, 0)], [max(high - value, 0)]]
            place = -row + 0.22 * (1 - number)
            style = {"color": colour, "marker": marker, "markersize": 4, "capsize": 2}
            axis.errorbar(value, place, xerr=error, **style, linestyle="none", label=None if row else label)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks([-row for row in range(len(policies))], list(policies))
    axis.set(
        xlabel="loops with carried latents / loops without (95% interval over levels)",
        xlim=(0, 1.08),
    )
    axis.grid(axis="y", visible=False)
    axis.legend(frameon=False, fontsize=8, loc="lower left")
    save_figure(figure, out)


def main() -> None:
    """Play with all policies, draw the ratios, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path, nargs="+", help="looped policies of one puzzle")
    parser.add_argument("--levels", type=pathlib.Path, required=True)
    parser.add_argument("--threshold", type=float, default=1e-3)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="the record; its figure lies next to it"
    )
    options = parser.parse_args()
    policies, mesh = {}, start_devices(options.devices)
    for folder in options.runs:
        policies[folder.name] = play(folder, options.levels, options.threshold, mesh)
        print(folder.name, policies[folder.name], flush=True)
    draw(policies, options.out)
    checksum = open_bank(options.levels).info.checksum
    write_record(options.out, {"threshold": options.threshold, "levels": checksum, "policies": policies})


if __name__ == "__main__":
    main()
