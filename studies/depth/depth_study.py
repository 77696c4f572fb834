"""What sharing one block buys: the runs of results/depth_study/plan.md, and the table of what they show.

python benchmarks/depth_study.py run runs/depth --keep results/depth_study/runs [--parts A B] [--seeds 0]
python benchmarks/depth_study.py outcomes results/depth_study/runs --out results/depth_study/outcomes.json
python benchmarks/depth_study.py table results/depth_study/runs --out results/depth_study/table.json
python benchmarks/depth_study.py deeper runs/depth --out results/depth_study/deeper.json

`run` finishes whatever is not finished, two runs (`--workers`) side by side, one device each; it may be
ended and called again at any time. Of a finished run the files that a report needs are copied to `--keep`.
`table` also draws them, and answers for each setting whether a block that is shared matches as many as
there are loops. `deeper` plays the test of part D's runs again with more loops than they learned with.
"""

import argparse
import csv
import itertools
import json
import os
import pathlib
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from looped_actor.evaluation.facts import outcomes_text
from looped_actor.puzzles.build import generate
from record import write_record
from sharing import LEARNERS, blocks_that_begin_alike

from looped_actor.analysis.compare import evaluation_rows
from looped_actor.analysis.drawing import ARMS, colour_of, new_axes, save_figure
from looped_actor.evaluation.intervals import paired_difference, unpaired_difference
from looped_actor.evaluation.levels import LevelPlayer
from looped_actor.models import AUTHORS
from looped_actor.puzzles.banks import LevelBank
from looped_actor.reproduction.grid import complete_run, is_finished, progress_of
from looped_actor.reproduction.seeds import outcome_table, over_seeds
from looped_actor.runs.config import OnlineConfig
from looped_actor.runs.evaluate import evaluate
from looped_actor.runs.load import load_policy
from looped_actor.runs.presets import preset
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import key_of, replaced, to_json
from looped_actor.utils.processes import Job, Processes, Status, fan_out

MARGIN = 0.03
"""A policy that is behind by less matches the other."""
PARTS = {
    "A": "A. Boxoban, imitation, 16 loops",
    "B": "B. Rush Hour, PPO",
    "C": "C. The same, few levels",
    "D": "D. Rush Hour, imitation, easy to hard",
}
RATES, RATE, BETTER, SHORT = (0.00075, 0.0015, 0.003, 0.006), 0.0015, 0.003, 122_880
"""Of parts E to G: rates at which to learn, that of B, a better one, and for how many steps in E and F."""
HARD_SEEDS = 7
"""Of part D: what random caps were said to need (plan.md)."""
FURTHER = (("iso-flops", 0.00053), ("looped", 0.0085))
"""Rates of one arm alone in E: 0.0015 over and 0.003 times the root of eight loops."""
BEST = {"each arm at the better of two rates": (f"g-looped-{BETTER}", "b-iso-flops-all")}
"""Better by the validation levels."""
MEASURED = ("solved", "played", "success", "low", "high", "optimal_actions", "loops")
"""Of a test, in the table."""
KEPT = ("config.json", "metrics.csv", "timings.csv", "provenance.json", "test.json", "evaluations", "policy")


class Planned(NamedTuple):
    """A run of the study."""

    name: str
    part: str
    seed: int
    config: OnlineConfig
    how: str | None = None
    """Of part F: how its blocks move."""


def depth_and_weights(arm: str, weights: str, seed: int) -> Planned:
    """Part A."""
    changes = {"core.layers": 2, "halting.max_loops": 16, "imitation.measure_gradients": True}
    changes |= {"core.initial": to_json(AUTHORS)} if weights == "authors" else {}
    config = replaced(preset("boxoban", "micro", arm, "imitation"), {**changes, "seed": seed})
    return Planned(f"a-{arm}-{weights}-{seed}", "A", seed, config)


def to_the_end(arm: str, seed: int, levels: int | None = None) -> Planned:
    """Part B; with few levels to learn from, part C."""
    changes = {"ppo.measure_gradients": True, "ppo.learning_rate": RATE, "seed": seed}
    changes |= {} if levels is None else {"levels.train_count": levels}
    config = replaced(preset("rush-hour", "micro", arm), changes)
    part = "B" if levels is None else "C"
    return Planned(f"{part.lower()}-{arm}-{levels or 'all'}-{seed}", part, seed, config)


def easy_to_hard(arm: str, min_cap: int | None, seed: int) -> Planned:
    """Part D."""
    config = preset("rush-hour", "micro", arm, "imitation")
    recipe = to_json(config)["levels"]["recipe"]
    changes = {
        "levels.recipe": {**recipe, "max_moves": 5},
        "levels.held_out_recipe": {**recipe, "min_moves": 7},
        "imitation.min_cap": min_cap,
        "total_steps": 100_000,
        "seed": seed,
    }
    name = f"d-{arm}{'-random-caps' if min_cap else ''}-{seed}"
    return Planned(name, "D", seed, replaced(config, changes))


def at_a_rate(arm: str, rate: float, seed: int, part: str = "E") -> Planned:
    """Part E, which is short; or part G, which goes to the end."""
    changes = {"ppo.learning_rate": rate} | ({"total_steps": SHORT} if part == "E" else {})
    config = replaced(to_the_end(arm, seed).config, changes)
    return Planned(f"{part.lower()}-{arm}-{rate}-{seed}", part, seed, config)


def between(how: str, seed: int) -> Planned:
    """Part F: a stack whose blocks begin alike, and move in a way of `sharing.LEARNERS`."""
    config = at_a_rate("iso-flops", RATE, seed).config
    return Planned(f"f-iso-flops-{how}-{seed}", "F", seed, config, how)


def without_halting(seed: int) -> Planned:
    """Part F: a shared block that always thinks for 8 loops."""
    return Planned(f"f-fixed-8-{seed}", "F", seed, at_a_rate("fixed-8", RATE, seed).config)


def planned() -> list[Planned]:
    """All runs: first seeds first, so that an unfinished study says something of every part."""
    looped, untied, single = "looped", "iso-flops", "iso-params"
    runs = [
        depth_and_weights(arm, weights, seed)
        for arm, weights, seed in itertools.product((looped, untied), ("ours", "authors"), (0, 1))
    ]
    runs += [depth_and_weights(single, weights, 0) for weights in ("ours", "authors")]
    runs += [to_the_end(arm, seed) for arm, seed in itertools.product((looped, untied, single), (0, 1, 2))]
    few = itertools.product((looped, untied), (0, 1), (100, 1_000))
    runs += [to_the_end(*run) for run in few]
    hard = itertools.product(((looped, None), (looped, 2), (untied, None)), range(HARD_SEEDS))
    runs += [easy_to_hard(*arm, seed) for arm, seed in hard]
    runs += [at_a_rate(*run) for run in itertools.product((looped, untied), RATES, (0, 1))]
    runs += [at_a_rate(*run, seed) for run, seed in itertools.product(FURTHER, (0, 1))]
    runs += [between(how, seed) for how, seed in itertools.product(LEARNERS, (0, 1))]
    runs += [without_halting(seed) for seed in (0, 1)]
    runs += [at_a_rate(*run, "G") for run in itertools.product((looped, untied), (BETTER,), (0, 1, 2))]
    return sorted(runs, key=lambda run: (run.seed, run.part))


def run(folder: pathlib.Path, keep: pathlib.Path, parts: list[str], seeds: list[int], workers: int) -> None:
    """Finish what is not finished."""
    wanted = [one for one in planned() if one.part in parts and one.seed in seeds]
    jobs = []
    for one in [one for one in wanted if not is_finished(keep / one.name)]:
        places = str(folder / one.name), str(folder / "stock"), str(keep / one.name)
        arguments = (to_json(one.config), *places, one.how)
        jobs.append(Job(one.name, finish, arguments, partial(progress_of, folder / one.name)))

    def show(statuses: Any) -> None:
        running: list[Status] = [status for status in statuses if status.state == "running"]
        told = [f"{one.name} {one.progress.done:.0%} {one.progress.note}" for one in running]
        print(f"\r{' | '.join(told):150.150}", end="", flush=True)

    with Processes(workers) as pool:
        fan_out(jobs, pool, show, seconds=5)


def finish(config: Any, folder: str, stock: str, keep: str, how: str | None = None) -> str:
    """In a process of its own: finish a run, and keep what a report needs."""
    os.nice(3)
    with blocks_that_begin_alike(how) if how else nullcontext():
        ending, there = complete_run(config, folder, stock), pathlib.Path(keep)
    there.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        source = pathlib.Path(folder, name)
        if source.is_dir():
            shutil.copytree(source, there / name, dirs_exist_ok=True)
        else:
            shutil.copy(source, there / name)
    return ending


def table(folder: pathlib.Path) -> list[dict[str, Any]]:
    """A row for each finished run."""
    rows = []
    for one in planned():
        if not is_finished(folder / one.name):
            continue
        *_, last, test = evaluation_rows([folder / one.name])
        with (folder / one.name / "metrics.csv").open() as file:
            metrics = list(csv.DictReader(file))
        tenth = metrics[: max(1, len(metrics) // 10)]
        clipped = [float(row["clipped_updates"]) for row in tenth if "clipped_updates" in row]
        rows.append(
            {
                "run": one.name,
                "part": one.part,
                **{name: test[name] for name in MEASURED},
                "train_success": last["train_success"],
                # Part D does not measure gradients.
                "first_core_gradient": float(metrics[0]["core_gradient"]) if clipped else None,
                "clipped_in_first_tenth": sum(clipped) / len(clipped) if clipped else None,
            }
        )
    return rows


def by_setting(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Runs that differ in their seed alone, together."""
    together: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        together.setdefault(row["run"].rpartition("-")[0], []).append(row)
    return together


def over_runs(
    settings: dict[str, list[dict[str, Any]]], outcomes: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the mean success of each setting's runs and its intervals."""
    told = {}
    for setting, own in settings.items():
        solved, played = ([row[name] for row in own] for name in ("solved", "played"))
        success = over_seeds(solved, played, [outcomes.get(row["run"]) for row in own])
        learned_from = sum(row["train_success"] for row in own) / len(own)
        told[setting] = {"runs": len(own), **success.columns("levels"), "train_success": learned_from}
    return told


def answers(settings: dict[str, list[dict[str, Any]]], outcomes: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Does a looped policy match an untied one with a block for every loop? For each pair and `BEST`.

    It does where the whole interval of the difference is within the margin, and does not where all of it is
    on the other side of zero. Runs are paired by seed and by test level. The interval is Student's over the
    differences of seeds, or the one over levels where that is wider: seeds that happen to agree do not make
    a test of a thousand levels more exact.
    """
    others = {one: one.replace("-looped", "-iso-flops").removesuffix("-random-caps") for one in settings}
    pairs = {one: (one, other) for one, other in others.items() if one != other}
    told = {}
    for title, (looped, other) in [*pairs.items(), *BEST.items()]:
        if not {looped, other} <= settings.keys():
            continue
        runs = [{row["run"].rpartition("-")[2]: row for row in settings[one]} for one in (other, looped)]
        seeds = sorted(runs[0].keys() & runs[1].keys())
        first, second = ([own[seed] for seed in seeds] for own in runs)
        shares = [np.array([row["success"] for row in own]) for own in (first, second)]
        tables = [outcome_table([outcomes.get(row["run"]) for row in own]) for own in (first, second)]
        paired = all(table is not None for table in tables)
        behind = paired_difference(*tables) if paired else unpaired_difference(*shares, first[0]["played"])
        over = "levels" if behind.widest == behind.levels else "seeds"
        told[title] = {
            "seeds": len(seeds),
            "behind": behind.mean,
            "low": behind.widest.low,
            "high": behind.widest.high,
            "over": over,
            "by_level": paired,
            "levels_low": behind.levels.low,
            "levels_high": behind.levels.high,
            "seeds_low": behind.seeds and behind.seeds.low,
            "seeds_high": behind.seeds and behind.seeds.high,
            "matches": "yes"
            if behind.widest.high < MARGIN
            else "no"
            if behind.widest.low > 0
            else "undecided",
            "seeds_to_decide": _seeds_to_decide(shares[0] - shares[1]) if len(seeds) > 1 else None,
        }
    return told


def _seeds_to_decide(differences: np.ndarray) -> int:
    """Of each arm, to notice in four cases of five that one is behind by the margin (95%, two sides).

    Never fewer than two: one seed says nothing of how far seeds differ.
    """
    return max(2, int(np.ceil(float(differences.var(ddof=1)) * ((1.96 + 0.84) / MARGIN) ** 2)))


def picture(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Every run of parts A to D."""
    figure, panels = new_axes(2, width=5.6, height=2.9, rows=2)
    for (part, title), axes in zip(PARTS.items(), panels.flat, strict=True):
        show_runs(axes, _titled(by_setting([row for row in rows if row["part"] == part])), title)
        axes.set_xlim(0, 1.03)
    save_figure(figure, path)


def show_runs(axes: Any, settings: dict[str, list[dict[str, Any]]], heading: str) -> None:
    """A run's test as a circle with an interval over levels, levels learned from as a ring."""
    places = list(settings)[::-1]
    for title, own in settings.items():
        colour = colour_of(_arm_of(own[0]["run"]))
        for number, row in enumerate(own):
            y = places.index(title) + 0.2 - 0.4 * (number + 0.5) / len(own)
            spread = [[row["success"] - row["low"]], [row["high"] - row["success"]]]
            axes.errorbar(row["success"], y, xerr=spread, marker="o", color=colour, markersize=5, capsize=2)
            axes.plot(row["train_success"], y, marker="o", color=colour, fillstyle="none", markersize=5)
    axes.set_yticks(range(len(places)), places)
    axes.set_ylim(-0.6, len(places) - 0.4)
    axes.set_title(heading, loc="left", fontsize=9.5)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def picture_of_reasons(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Parts E to G: success in the test by the rate of learning, by what is shared, and at the end."""
    figure, ((by_rate, by_sharing, at_the_end),) = new_axes(3, width=4.6, height=2.9)
    settings = by_setting(rows)
    for arm in ("looped", "iso-flops"):
        rates = sorted({*RATES, *(rate for name, rate in FURTHER if name == arm)})
        own = {rate: settings.get(f"e-{arm}-{rate}", []) for rate in rates}
        means = {rate: float(np.mean([row["success"] for row in runs])) for rate, runs in own.items() if runs}
        by_rate.plot(list(means), list(means.values()), color=colour_of(arm), label=ARMS[arm])
        points = [(rate, row["success"]) for rate, runs in own.items() for row in runs]
        by_rate.scatter(*zip(*points, strict=True), color=colour_of(arm), s=22)
    by_rate.set_xscale("log", base=2)
    by_rate.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
    by_rate.set_ylim(0, 1)
    by_rate.set_xlabel("learning rate at the start, falling to zero")
    by_rate.set_title(f"E. Test levels solved after {SHORT:,} steps", loc="left", fontsize=9.5)
    by_rate.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    by_rate.legend()
    names = [
        f"e-looped-{RATE}",
        "f-fixed-8",
        "f-iso-flops-together",
        f"e-iso-flops-{RATE}",
        "f-iso-flops-apart",
    ]
    shown = {name: settings[name] for name in names if name in settings}
    show_runs(by_sharing, _titled(shown), "F. From one block to a stack, at the same rate")
    by_sharing.set_xlim(0, 1.03)
    ends = itertools.product(("looped", "iso-flops"), (("b", "all", RATE), ("g", BETTER, BETTER)))
    titles = {f"{part}-{arm}-{last}": f"{ARMS[arm]}, at {rate:g}" for arm, (part, last, rate) in ends}
    both = {title: settings[name] for name, title in titles.items() if name in settings}
    show_runs(at_the_end, both, "B and G. To the end, at two rates")
    at_the_end.set_xlim(0.85, 1.005)
    save_figure(figure, path)


def _arm_of(setting: str) -> str:
    return next(arm for arm in ARMS if f"-{arm}" in setting)


def _titled(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by what to call them beside their runs."""
    details = {
        "ours": "our weights",
        "authors": "authors' weights",
        "100": "100 levels",
        "1000": "1,000 levels",
        "random-caps": "random caps",
        "apart": "begun alike",
        "together": "kept alike",
    }

    def title(setting: str) -> str:
        arm = _arm_of(setting)
        detail = details.get(setting.partition(f"-{arm}-")[2])
        return ARMS[arm] + (f", {detail}" if detail else "")

    return {title(setting): own for setting, own in settings.items()}


def deeper(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Part D's finished runs at 8, 16 and 32 loops; an untied stack has the depth that it has."""
    rows = []
    for one in [one for one in planned() if one.part == "D" and is_finished(folder / one.name)]:
        policy = load_policy(folder / one.name)
        for loops in (8, 16, 32) if policy.halting else (None,):
            played = evaluate(policy, max_loops=loops)
            told = {name: played[name] for name in ("max_loops", "success", "interval_95", "loops")}
            rows.append({"run": one.name, **told, "by_optimal_moves": played["by_optimal_moves"]})
    return rows


def play_tests(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Write the outcome of every test level of each finished run, by playing the test once more.

    When the runs were made, evaluations recorded only the number of solved levels, which is printed beside
    the number now. Runs that are in the file already are left out. Runs of one net share a compiled program.
    """
    banks: dict[str, LevelBank] = {}
    players: dict[str, LevelPlayer] = {}
    outcomes = json.loads(out.read_text())["outcomes"] if out.is_file() else {}
    parts = "BGCDEFA"  # the slowest come last
    runs = sorted(planned(), key=lambda one: parts.index(one.part))
    for one in [one for one in runs if is_finished(folder / one.name) and one.name not in outcomes]:
        policy = load_policy(folder / one.name)
        recorded = json.loads((folder / one.name / "test.json").read_text())
        checksum = json.loads((folder / one.name / "provenance.json").read_text())["held_out"]
        if checksum not in banks:
            levels = one.config.levels
            recipe = levels.held_out_recipe or levels.recipe
            assert recipe is not None
            banks[checksum] = generate(recipe, {"held_out": levels.held_out_count})["held_out"]
            assert banks[checksum].info.checksum == checksum, f"{one.name}: other levels than in its test"
        config = one.config
        net = key_of(
            {"levels": checksum, "arm": config.arm, "parts": [to_json(config.core), to_json(config.halting)]}
        )
        if net not in players:
            players[net] = replace(policy.run, mesh=all_devices(1)).puzzle.player(banks[checksum])
        success = players[net].play(policy.weights).episodes.success
        print(one.name, int(success.sum()), recorded["solved"], flush=True)
        outcomes[one.name] = outcomes_text(success)
        write_record(str(out), {"outcomes": outcomes})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = options.add_subparsers(dest="command", required=True)
    running, *showing = (commands.add_parser(name) for name in ("run", "outcomes", "table", "deeper"))
    running.add_argument("folder", type=pathlib.Path)
    running.add_argument("--keep", type=pathlib.Path, required=True)
    running.add_argument("--parts", nargs="+", default=[*PARTS, "E", "F", "G"])
    running.add_argument("--seeds", nargs="+", type=int, default=[*range(HARD_SEEDS)])
    running.add_argument("--workers", type=int, default=2)
    for one in showing:
        one.add_argument("folder", type=pathlib.Path)
        one.add_argument("--out", required=True)
    given = options.parse_args()
    if given.command == "run":
        run(given.folder, given.keep, given.parts, given.seeds, given.workers)
    elif given.command == "outcomes":
        play_tests(given.folder, pathlib.Path(given.out))
    else:
        rows = {"table": table, "deeper": deeper}[given.command](given.folder)
        facts: dict[str, Any] = {"runs": rows}
        if given.command == "table":
            settings = by_setting(rows)
            played = pathlib.Path(given.out).with_name("outcomes.json")
            outcomes = json.loads(played.read_text())["outcomes"] if played.is_file() else {}
            facts |= {"settings": over_runs(settings, outcomes), "answers": answers(settings, outcomes)}
            picture(rows, pathlib.Path(given.out).with_suffix(".png"))
            if any(row["part"] == "E" for row in rows):
                picture_of_reasons(rows, pathlib.Path(given.out).with_name("reasons.png"))
        write_record(given.out, facts)


if __name__ == "__main__":
    main()
