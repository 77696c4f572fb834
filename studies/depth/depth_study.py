"""What sharing one block buys: the runs of results/depth_study/plan.md, and the tables of their results.

python studies/depth/depth_study.py run runs/depth --keep results/depth_study/runs [--parts A B] [--seeds 0]
python studies/depth/depth_study.py outcomes results/depth_study/runs --out results/depth_study/outcomes.json
python studies/depth/depth_study.py table results/depth_study/runs --out results/depth_study/table.json
python studies/depth/depth_study.py deeper runs/depth --out results/depth_study/deeper.json

`run` trains every run that is not kept yet, `--workers` of them at a time, one device each. It can be
interrupted and called again. Of a finished run it copies the files that a report needs to `--keep`.
`outcomes` plays the test levels of kept runs again. `table` also draws the runs, and compares a shared block
with a stack of as many blocks as it may loop. `deeper` plays the test levels of part D's runs with more loops
than in training.

The committed runs were made by version 0.2 (benchmarks/depth_study.py at commit ddb951b). Options that were
fields of its configurations are now those of `study_runs.StudyConfig`. The policies of the committed runs are
not in the tree: `git checkout f6930f2 -- results/depth_study/runs` restores them.
"""

import argparse
import csv
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sharing import BLOCKS
from study_runs import StudyConfig, make_config

from looped_actor import evaluate, load_policy, preset
from looped_actor.analysis.compare import evaluation_rows
from looped_actor.analysis.drawing import ARMS, colour_of, new_axes, save_figure
from looped_actor.evaluation.intervals import paired_difference, unpaired_difference
from looped_actor.evaluation.levels import LevelPlayer
from looped_actor.evaluation.results import outcomes_text
from looped_actor.models import AUTHORS_INITIAL, DEFAULT_INITIAL
from looped_actor.policy.policy import POLICY_FOLDER, TEST_FILE
from looped_actor.puzzles.banks import LevelBank
from looped_actor.puzzles.generate import generate
from looped_actor.reproduction.grid import complete_run, is_finished, progress_of
from looped_actor.reproduction.record import write_record
from looped_actor.reproduction.seeds import outcome_table, success_over_seeds
from looped_actor.runs.config import CONFIG_FILE, read_config
from looped_actor.runs.puzzle import level_player
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import key_of, replace_fields, to_json, write_json
from looped_actor.utils.processes import Job, Processes, Status, fan_out

MARGIN = 0.03
"""A policy matches another one if its success is less than this below."""
PARTS = {
    "A": "A. Boxoban, imitation, 16 loops",
    "B": "B. Rush Hour, PPO",
    "C": "C. The same, few levels",
    "D": "D. Rush Hour, imitation, easy to hard",
}
RATES = (0.00075, 0.0015, 0.003, 0.006)
"""Learning rates of part E."""
RATE, BETTER_RATE = 0.0015, 0.003
"""Learning rates of parts B and F, and of part G."""
SHORT_STEPS = 122_880
"""Steps of parts E and F."""
HARD_SEEDS = 7
"""Seeds of part D, as many as random caps were said to need (plan.md)."""
FURTHER = (("iso-flops", 0.00053), ("looped", 0.0085))
"""Learning rates of one arm alone in E: 0.0015 over and 0.003 times the root of eight loops."""
BEST = {"each arm at the better of two rates": (f"g-looped-{BETTER_RATE}", "b-iso-flops-all")}
"""Better by the validation levels."""
MEASURED = ("solved", "played", "success", "low", "high", "optimal_actions", "loops")
"""Columns of a test, in the table."""
KEPT = (CONFIG_FILE, "metrics.csv", "timings.csv", "provenance.json", "evaluations", POLICY_FOLDER, TEST_FILE)
"""Files and folders of a finished run that are kept; the last one tells that all are there."""
Row = dict[str, Any]
RESTORE = "git checkout f6930f2 -- results/depth_study/runs"


class PlannedRun(NamedTuple):
    """A run of the study."""

    name: str
    part: str
    seed: int
    config: StudyConfig

    def is_kept(self, folder: pathlib.Path) -> bool:
        """Return whether the results of the finished run are in a folder."""
        return (folder / self.name / TEST_FILE).is_file()


def depth_and_weights(arm: str, weights: str, seed: int) -> PlannedRun:
    """Return a run of part A."""
    loops = {"looped": {"arm.halting.max_loops": 16}, "iso-flops": {"arm.copies": 16}}
    config = make_config(
        preset("boxoban", "micro", arm, "imitation"),
        {"arm.core.layers": 2, **loops.get(arm, {}), "seed": seed},
        initial={"ours": DEFAULT_INITIAL, "authors": AUTHORS_INITIAL}[weights],
        measure_gradients=True,
    )
    return PlannedRun(f"a-{arm}-{weights}-{seed}", "A", seed, config)


def to_the_end(arm: str, seed: int, levels: int | None = None) -> PlannedRun:
    """Return a run of part B; with few training levels, of part C."""
    changes = {"algorithm.learning_rate": RATE, "seed": seed}
    changes |= {} if levels is None else {"levels.train_count": levels}
    config = make_config(preset("rush-hour", "micro", arm), changes, measure_gradients=True)
    part = "B" if levels is None else "C"
    return PlannedRun(f"{part.lower()}-{arm}-{levels or 'all'}-{seed}", part, seed, config)


def easy_to_hard(arm: str, min_cap: int | None, seed: int) -> PlannedRun:
    """Return a run of part D."""
    config = preset("rush-hour", "micro", arm, "imitation")
    changes = {
        "levels.recipe.max_moves": 5,
        "levels.held_out_recipe": {**to_json(config.levels.recipe), "min_moves": 7},
        "total_steps": 100_000,
        "seed": seed,
    }
    name = f"d-{arm}{'-random-caps' if min_cap else ''}-{seed}"
    return PlannedRun(name, "D", seed, make_config(config, changes, min_cap=min_cap))


def at_a_rate(arm: str, rate: float, seed: int, part: str = "E") -> PlannedRun:
    """Return a run of part E, which is short, or of part G."""
    changes = {"algorithm.learning_rate": rate} | ({"total_steps": SHORT_STEPS} if part == "E" else {})
    config = replace_fields(to_the_end(arm, seed).config, changes)
    return PlannedRun(f"{part.lower()}-{arm}-{rate}-{seed}", part, seed, config)


def between(blocks: str, seed: int) -> PlannedRun:
    """Return a run of part F: a stack whose blocks begin alike; see `sharing`."""
    config = replace_fields(at_a_rate("iso-flops", RATE, seed).config, {"blocks": blocks})
    return PlannedRun(f"f-iso-flops-{blocks}-{seed}", "F", seed, config)


def without_halting(seed: int) -> PlannedRun:
    """Return a run of part F: a shared block that always runs 8 loops."""
    return PlannedRun(f"f-fixed-8-{seed}", "F", seed, at_a_rate("fixed-8", RATE, seed).config)


def plan_runs() -> list[PlannedRun]:
    """Return all runs, first seeds first: an unfinished study then has results of every part."""
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
    runs += [between(blocks, seed) for blocks, seed in itertools.product(BLOCKS, (0, 1))]
    runs += [without_halting(seed) for seed in (0, 1)]
    runs += [at_a_rate(*run, "G") for run in itertools.product((looped, untied), (BETTER_RATE,), (0, 1, 2))]
    return sorted(runs, key=lambda run: (run.seed, run.part))


def train_runs(
    folder: pathlib.Path, keep: pathlib.Path, parts: list[str], seeds: list[int], workers: int
) -> None:
    """Train all runs of some parts and seeds that are not kept yet."""
    jobs = []
    for run in plan_runs():
        if run.part in parts and run.seed in seeds and not run.is_kept(keep):
            places = str(folder / run.name), str(folder / "stock"), str(keep / run.name)
            arguments = (to_json(run.config), *places)
            jobs.append(Job(run.name, finish_run, arguments, partial(progress_of, folder / run.name)))

    def show(statuses: Sequence[Status]) -> None:
        running = [status for status in statuses if status.state == "running"]
        texts = [f"{one.name} {one.progress.done:.0%} {one.progress.note}" for one in running]
        print(f"\r{' | '.join(texts):150.150}", end="", flush=True)

    with Processes(workers) as pool:
        fan_out(jobs, pool, show, seconds=5)


def finish_run(config: dict[str, Any], folder: str, shared: str, keep: str) -> str:
    """Train a run to its end, and keep the files that a report needs. Call it in a new process."""
    os.nice(3)
    ending, target = complete_run(config, folder, shared), pathlib.Path(keep)
    target.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        source = pathlib.Path(folder, name)
        if source.is_dir():
            shutil.copytree(source, target / name, dirs_exist_ok=True)
        else:
            shutil.copy(source, target / name)
    # A policy without options of the study loads wherever the package is.
    config = read_config(target / CONFIG_FILE)
    assert isinstance(config, StudyConfig)
    write_json(config.plain, target / POLICY_FOLDER / CONFIG_FILE)
    return ending


def make_table(folder: pathlib.Path) -> list[Row]:
    """Return a row for each kept run."""
    rows = []
    for run in [run for run in plan_runs() if run.is_kept(folder)]:
        *_, last, test = evaluation_rows([folder / run.name])
        with (folder / run.name / "metrics.csv").open() as file:
            metrics = list(csv.DictReader(file))
        tenth = metrics[: max(1, len(metrics) // 10)]
        clipped = [float(row["clipped_updates"]) for row in tenth if "clipped_updates" in row]
        rows.append(
            {
                "run": run.name,
                "part": run.part,
                **{name: test[name] for name in MEASURED},
                "train_success": last["train_success"],
                # None in part D, which does not measure gradients.
                "first_core_gradient": float(metrics[0]["core_gradient"]) if clipped else None,
                "clipped_in_first_tenth": sum(clipped) / len(clipped) if clipped else None,
            }
        )
    return rows


def group_by_setting(rows: list[Row]) -> dict[str, list[Row]]:
    """Group runs that differ in their seed only."""
    settings: dict[str, list[Row]] = {}
    for row in rows:
        settings.setdefault(row["run"].rpartition("-")[0], []).append(row)
    return settings


def summarize_settings(settings: dict[str, list[Row]], outcomes: dict[str, str]) -> dict[str, Row]:
    """Return the mean success of each setting's runs and its intervals."""
    summaries = {}
    for setting, own in settings.items():
        solved, played = ([row[name] for row in own] for name in ("solved", "played"))
        success = success_over_seeds(solved, played, [outcomes.get(row["run"]) for row in own])
        train_success = sum(row["train_success"] for row in own) / len(own)
        summaries[setting] = {"runs": len(own), **success.columns("levels"), "train_success": train_success}
    return summaries


def compare_with_untied(settings: dict[str, list[Row]], outcomes: dict[str, str]) -> dict[str, Row]:
    """Return, for each pair of settings and `BEST`, whether Looped matches Iso-FLOPs.

    It matches if the whole interval of the difference is below the margin, and does not if the whole interval
    is above zero. Runs are paired by seed and by test level. The interval is the wider one of Student's over
    the differences of seeds and the one over levels: seeds that happen to agree do not make a test of a
    thousand levels more exact.
    """
    others = {one: one.replace("-looped", "-iso-flops").removesuffix("-random-caps") for one in settings}
    pairs = {one: (one, other) for one, other in others.items() if one != other}
    answers = {}
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
        answers[title] = {
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
    return answers


def _seeds_to_decide(differences: np.ndarray) -> int:
    """Return the seeds of each arm that detect a difference of the margin: power 80%, two-sided level 5%.

    At least two, since one seed does not show how much seeds differ.
    """
    return max(2, int(np.ceil(float(differences.var(ddof=1)) * ((1.96 + 0.84) / MARGIN) ** 2)))


def draw_parts(rows: list[Row], path: pathlib.Path) -> None:
    """Draw every run of parts A to D."""
    figure, panels = new_axes(2, width=5.6, height=2.9, rows=2)
    for (part, title), axes in zip(PARTS.items(), panels.flat, strict=True):
        settings = group_by_setting([row for row in rows if row["part"] == part])
        draw_runs(axes, _with_titles(settings), title)
        axes.set_xlim(0, 1.03)
    save_figure(figure, path)


def draw_runs(axes: Any, settings: dict[str, list[Row]], heading: str) -> None:
    """Draw the test of each run as a disc with an interval over levels, and training levels as a ring."""
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


def draw_reasons(rows: list[Row], path: pathlib.Path) -> None:
    """Draw parts E to G: success on test levels by learning rate, by what is shared, and at the end."""
    figure, ((by_rate, by_sharing, at_the_end),) = new_axes(3, width=4.6, height=2.9)
    settings = group_by_setting(rows)
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
    by_rate.set_title(f"E. Test levels solved after {SHORT_STEPS:,} steps", loc="left", fontsize=9.5)
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
    draw_runs(by_sharing, _with_titles(shown), "F. From one block to a stack, at the same rate")
    by_sharing.set_xlim(0, 1.03)
    ends = itertools.product(("looped", "iso-flops"), (("b", "all", RATE), ("g", BETTER_RATE, BETTER_RATE)))
    titles = {f"{part}-{arm}-{last}": f"{ARMS[arm]}, at {rate:g}" for arm, (part, last, rate) in ends}
    both = {title: settings[name] for name, title in titles.items() if name in settings}
    draw_runs(at_the_end, both, "B and G. To the end, at two rates")
    at_the_end.set_xlim(0.85, 1.005)
    save_figure(figure, path)


def _arm_of(setting: str) -> str:
    return next(arm for arm in ARMS if f"-{arm}" in setting)


def _with_titles(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings by their titles in figures."""
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


def evaluate_deeper(folder: pathlib.Path) -> list[Row]:
    """Evaluate finished runs of part D at 8, 16 and 32 loops; a stack at its own depth."""
    rows = []
    for run in [run for run in plan_runs() if run.part == "D" and is_finished(folder / run.name)]:
        policy = load_policy(folder / run.name)
        for loops in (8, 16, 32) if policy.halting else (None,):
            results = evaluate(policy, max_loops=loops)
            columns = ("max_loops", "success", "interval_95", "loops", "by_optimal_moves")
            rows.append({"run": run.name, **{name: results[name] for name in columns}})
    return rows


def play_tests(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Write the outcome of every test level of each kept run, by playing the test levels once more.

    Evaluations of version 0.2 recorded only the number of solved levels, which is printed next to the number
    now. Runs that are in the file already are left out. Runs of one net share a compiled program.
    """
    outcomes = read_outcomes(out)
    parts = "BGCDEFA"  # the slowest come last
    runs = sorted(plan_runs(), key=lambda run: parts.index(run.part))
    runs = [run for run in runs if run.is_kept(folder) and run.name not in outcomes]
    missing = [run.name for run in runs if not is_finished(folder / run.name)]
    if missing:
        raise SystemExit(
            f"{folder}: the policies of {len(missing)} runs, such as {missing[0]}, are missing; `{RESTORE}` "
            "restores those of the committed runs"
        )
    banks: dict[str, LevelBank] = {}
    players: dict[str, LevelPlayer] = {}
    for run in runs:
        policy = load_policy(folder / run.name)
        recorded = json.loads((folder / run.name / TEST_FILE).read_text())
        checksum = json.loads((folder / run.name / "provenance.json").read_text())["held_out"]
        if checksum not in banks:
            levels = run.config.levels
            recipe = levels.held_out_recipe or levels.recipe
            assert recipe is not None
            banks[checksum] = generate(recipe, {"held_out": levels.held_out_count})["held_out"]
            assert banks[checksum].info.checksum == checksum, f"{run.name}: other levels than in its test"
        net = key_of({"levels": checksum, "arm": to_json(policy.config.arm)})
        if net not in players:
            players[net] = level_player(policy.spec, banks[checksum].on_device(), all_devices(1))
        success = players[net].play(policy.weights).episodes.success
        assert success is not None
        print(run.name, int(success.sum()), recorded["solved"], flush=True)
        outcomes[run.name] = outcomes_text(success)
        write_record(out, {"outcomes": outcomes})


def read_outcomes(path: pathlib.Path) -> dict[str, str]:
    """Return the outcomes of each run that `play_tests` wrote; empty if there is no such file."""
    return json.loads(path.read_text())["outcomes"] if path.is_file() else {}


def write_table(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Write the table of the kept runs, and draw them."""
    rows = make_table(folder)
    settings, outcomes = group_by_setting(rows), read_outcomes(out.with_name("outcomes.json"))
    draw_parts(rows, out.with_suffix(".png"))
    if any(row["part"] == "E" for row in rows):
        draw_reasons(rows, out.with_name("reasons.png"))
    summaries = summarize_settings(settings, outcomes)
    answers = compare_with_untied(settings, outcomes)
    write_record(out, {"runs": rows, "settings": summaries, "answers": answers})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running, *showing = (commands.add_parser(name) for name in ("run", "outcomes", "table", "deeper"))
    running.add_argument("folder", type=pathlib.Path)
    running.add_argument("--keep", type=pathlib.Path, required=True)
    running.add_argument("--parts", nargs="+", default=[*PARTS, "E", "F", "G"])
    running.add_argument("--seeds", nargs="+", type=int, default=[*range(HARD_SEEDS)])
    running.add_argument("--workers", type=int, default=2)
    for one in showing:
        one.add_argument("folder", type=pathlib.Path)
        one.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if options.command == "run":
        train_runs(options.folder, options.keep, options.parts, options.seeds, options.workers)
    elif options.command == "outcomes":
        play_tests(options.folder, options.out)
    elif options.command == "table":
        write_table(options.folder, options.out)
    else:
        write_record(options.out, {"runs": evaluate_deeper(options.folder)})


if __name__ == "__main__":
    main()
