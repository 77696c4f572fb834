"""What sharing one block buys: the runs of results/depth_study/plan.md, and the table of what they show.

python benchmarks/depth_study.py run runs/depth --keep results/depth_study/runs [--parts A B] [--seeds 0]
python benchmarks/depth_study.py table results/depth_study/runs --out results/depth_study/table.json
python benchmarks/depth_study.py deeper runs/depth --out results/depth_study/deeper.json

`run` finishes whatever is not finished, two runs side by side, one device each; it may be ended and called
again at any time. Of a finished run the files that a report needs are copied to `--keep`. `deeper` plays the
test of part D's runs again with more loops than they learned with.
"""

import argparse
import csv
import itertools
import os
import pathlib
import shutil
from functools import partial
from typing import Any, NamedTuple

from record import write_record

from looped_actor.analysis.compare import evaluation_rows
from looped_actor.codec import replaced, to_json
from looped_actor.configs.presets import preset
from looped_actor.configs.runs import OnlineConfig
from looped_actor.models import AUTHORS
from looped_actor.policies.evaluate import evaluate
from looped_actor.policies.load import load_policy
from looped_actor.processes import Job, Processes, Status, fan_out
from looped_actor.reproduction.grid import complete_run, is_finished, standing_of

KEPT = ("config.json", "metrics.csv", "timings.csv", "provenance.json", "test.json", "evaluations", "policy")


class Planned(NamedTuple):
    """A run of the study."""

    name: str
    part: str
    seed: int
    config: OnlineConfig


def depth_and_weights(arm: str, weights: str, seed: int) -> Planned:
    """Part A."""
    changes = {"core.layers": 2, "halting.max_loops": 16, "imitation.measure_gradients": True}
    changes |= {"core.initial": to_json(AUTHORS)} if weights == "authors" else {}
    config = replaced(preset("boxoban", "micro", arm, "imitation"), {**changes, "seed": seed})
    return Planned(f"a-{arm}-{weights}-{seed}", "A", seed, config)


def to_the_end(arm: str, seed: int, levels: int | None = None) -> Planned:
    """Part B; with few levels to learn from, part C."""
    changes = {"ppo.measure_gradients": True, "seed": seed}
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
    hard = itertools.product(((looped, None), (looped, 2), (untied, None)), (0, 1, 2))
    runs += [easy_to_hard(*arm, seed) for arm, seed in hard]
    return sorted(runs, key=lambda run: (run.seed, run.part))


def run(folder: pathlib.Path, keep: pathlib.Path, parts: list[str], seeds: list[int]) -> None:
    """Finish what is not finished."""
    wanted = [one for one in planned() if one.part in parts and one.seed in seeds]
    jobs = []
    for one in [one for one in wanted if not is_finished(keep / one.name)]:
        arguments = (to_json(one.config), str(folder / one.name), str(folder / "stock"), str(keep / one.name))
        jobs.append(Job(one.name, finish, arguments, partial(standing_of, folder / one.name)))

    def show(statuses: Any) -> None:
        running: list[Status] = [status for status in statuses if status.state == "running"]
        told = [f"{one.name} {one.standing.done:.0%} {one.standing.note}" for one in running]
        print(f"\r{' | '.join(told):150.150}", end="", flush=True)

    with Processes(2) as pool:
        fan_out(jobs, pool, show, seconds=5)


def finish(config: Any, folder: str, stock: str, keep: str) -> str:
    """In a process of its own: finish a run, and keep what a report needs."""
    os.nice(3)
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
        rows.append(
            {
                "run": one.name,
                "part": one.part,
                **{name: test[name] for name in ("success", "low", "high", "optimal_actions", "loops")},
                "train_success": last["train_success"],
                "first_core_gradient": float(metrics[0].get("core_gradient", "nan")),
                "clipped_in_first_tenth": sum(float(row.get("clipped_updates", "nan")) for row in tenth)
                / len(tenth),
            }
        )
    return rows


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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = options.add_subparsers(dest="command", required=True)
    running, *showing = (commands.add_parser(name) for name in ("run", "table", "deeper"))
    running.add_argument("folder", type=pathlib.Path)
    running.add_argument("--keep", type=pathlib.Path, required=True)
    running.add_argument("--parts", nargs="+", default=["A", "B", "C", "D"])
    running.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    for one in showing:
        one.add_argument("folder", type=pathlib.Path)
        one.add_argument("--out", required=True)
    given = options.parse_args()
    if given.command == "run":
        run(given.folder, given.keep, given.parts, given.seeds)
    else:
        write_record(given.out, {"runs": {"table": table, "deeper": deeper}[given.command](given.folder)})


if __name__ == "__main__":
    main()
