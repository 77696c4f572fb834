"""The paper's figures and tables by name: the runs that each needs, and how it is made from them."""

import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from jax.sharding import Mesh

from looped_actor.analysis.caps import analyze_caps
from looped_actor.analysis.compare import evaluation_files, evaluation_rows
from looped_actor.analysis.difficulty import analyze_difficulty
from looped_actor.analysis.histogram import analyze_histogram
from looped_actor.analysis.options import CapsOptions, DifficultyOptions, HistogramOptions, ProbeOptions
from looped_actor.analysis.probes import analyze_probes
from looped_actor.analysis.study import ProgressFactory, silent
from looped_actor.analysis.tables import Row, write_table
from looped_actor.names import PUZZLES, WEIGHTS_FILE
from looped_actor.policy.policy import Policy, find_policy
from looped_actor.puzzles.banks import write_bank
from looped_actor.puzzles.generate import generate
from looped_actor.reproduction import paper_numbers
from looped_actor.reproduction.figures import draw_folder
from looped_actor.reproduction.grid import SHARED_FOLDER, RunKey, Study
from looped_actor.reproduction.seeds import difference_rows, ends_table, success_over_seeds
from looped_actor.robots.ogbench import ENVIRONMENTS, TASKS
from looped_actor.runs.folder import read_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.puzzle import PuzzleRun
from looped_actor.runs.registry import run_of
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole
from looped_actor.utils.processes import default_workers
from looped_actor.version import __version__

ARTIFACTS_FOLDER = "artifacts"
RECORD_FILE = "made.json"
"""Runs and policies that an artifact was made from."""
DIFFERENCES_FILE = "differences.csv"
"""Differences between the looped arm and each other arm at the end."""
PROBED_LEVELS = {"micro": 4_000, "small": 20_000}
"""Levels on which probes are trained and tested; at `paper`, the first 25,000 of each of two banks."""
PROBED_SEED_OFFSET = 1_000
"""Added to the seed of a recipe for these levels."""
PLAYED_LEVELS = {"micro": 250, "small": 1_000}
"""Levels that an analysis plays; at `paper`, the whole bank."""


@dataclass(frozen=True)
class Context:
    """Runs that an artifact is made from, and its folder."""

    study: Study
    keys: Sequence[RunKey]
    out: pathlib.Path
    mesh: Mesh | None = None
    """None if nothing is played."""
    progress: ProgressFactory = silent

    @property
    def folders(self) -> list[pathlib.Path]:
        """Folders of the runs."""
        return [self.study.folder_of(key) for key in self.keys]

    @property
    def looped(self) -> list[pathlib.Path]:
        """Folders of the looped arm's runs."""
        return [self.study.folder_of(key) for key in self.keys if key.arm == "looped"]

    def analyze(self, analyze: Callable[..., str], options: Any) -> None:
        """Make a table of an analysis of the looped arm's policies."""
        policies: list[Policy] = [policy_at(folder) for folder in self.looped]
        analyze(policies, options, self.mesh, self.progress)

    @property
    def count(self) -> int | None:
        """Levels to play; None for all."""
        return PLAYED_LEVELS.get(self.study.scale)


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A figure or table of the paper."""

    id: str
    title: str
    claim: str
    """Claim that the paper reads from it."""
    tasks: tuple[str, ...]
    arms: tuple[str, ...]
    tables: tuple[str, ...]
    """Names of its tables, each with a figure."""
    assemble: Callable[[Context], None] | None = None
    """Makes tables from the evaluations in the folders of runs, each time that they are shown."""
    analyze: Callable[[Context], None] | None = None
    """Makes tables by playing with the policies."""
    also: tuple[str, ...] = ()
    """Further tasks for which it can be made, which the paper does not show."""

    @property
    def seeds(self) -> int:
        """Number of seeds in the paper."""
        return 5 if set(self.tasks) <= set(ENVIRONMENTS) else 3

    def keys(
        self,
        learner: str = "ppo",
        seeds: int | None = None,
        tasks: Sequence[str] = (),
        arms: Sequence[str] = (),
        max_loops: int = 16,
    ) -> list[RunKey]:
        """Return the runs that it needs.

        Args:
          learner: algorithm of puzzles.
          seeds: seeds of each kind of run. Default: as many as in the paper.
          tasks: some of its tasks. Default: those in the paper.
          arms: some of its arms. Default: all.
          max_loops: arms with a higher fixed number of loops are left out.
        """
        if seeds is not None and seeds < 1:
            raise UserError(f"seeds is {seeds}; it must be at least 1")
        for task in tasks:
            if task not in self.tasks + self.also:
                raise UserError(
                    f"{self.id} does not show {task}; it can show {', '.join(self.tasks + self.also)}"
                )
        for arm in arms:
            if arm not in self.arms:
                raise UserError(f"{self.id} does not compare {arm}; it compares {', '.join(self.arms)}")
        if arms and self.analyze is not None and "looped" not in arms:
            raise UserError(f"{self.id} looks at loops: looped must be among its arms")
        chosen = [arm for arm in arms or self.arms if not _loops_more(arm, max_loops)]
        return [
            RunKey(task, learner if task in PUZZLES else "gciql", arm, seed)
            for task, arm, seed in itertools.product(tasks or self.tasks, chosen, range(seeds or self.seeds))
        ]


def _loops_more(arm: str, max_loops: int) -> bool:
    return arm.startswith("fixed-") and int(arm.removeprefix("fixed-")) > max_loops


def folder_of(study: Study, artifact: Artifact, learner: str) -> pathlib.Path:
    """Return the folder of an artifact."""
    suffix = f"-{learner}" if set(artifact.tasks) & set(PUZZLES) else ""
    return study.folder / ARTIFACTS_FOLDER / (artifact.id + suffix)


def make_artifact(
    artifact: Artifact,
    study: Study,
    keys: Sequence[RunKey],
    learner: str,
    mesh: Mesh,
    progress: ProgressFactory = silent,
) -> pathlib.Path:
    """Analyze finished runs, unless their policies were analyzed before, and return the folder.

    Tables that need no playing are made by the report.
    """
    out = folder_of(study, artifact, learner)
    record = _make_record(artifact, study, keys, learner)
    if read_record(out).get("policies") != record["policies"]:
        if artifact.analyze is not None:
            artifact.analyze(Context(study, keys, out, mesh, progress))
        write_whole(out / RECORD_FILE, (json.dumps(record, indent=1) + "\n").encode())
    return out


def assemble_again(artifact: Artifact, folder: pathlib.Path, out: pathlib.Path) -> None:
    """Make the tables that need no playing again, if the evaluations still exist, and draw all tables."""
    study = Study(folder)
    context = Context(study, [RunKey(*key) for key in read_record(out)["runs"]], out)
    if artifact.assemble is not None and all((run / "evaluations").is_dir() for run in context.folders):
        artifact.assemble(context)
    for table, caption in draw_folder(out).items():
        write_whole(out / f"{table}.txt", (caption + "\n").encode())


def read_record(out: pathlib.Path) -> dict[str, Any]:
    """Return the record of an artifact; empty if it was not made."""
    try:
        return json.loads((out / RECORD_FILE).read_text())
    except (OSError, ValueError):
        return {}


def _make_record(artifact: Artifact, study: Study, keys: Sequence[RunKey], learner: str) -> dict[str, Any]:
    return {
        "artifact": artifact.id,
        "learner": learner,
        "scale": study.scale,
        "budget": study.budget,
        "runs": [list(key) for key in keys],
        "policies": {key.name: _checksum(study.folder_of(key)) for key in keys},
        "version": __version__,
        "date": date.today().isoformat(),
    }


def _checksum(folder: pathlib.Path) -> str:
    policy = find_policy(folder)
    if policy is None:
        raise UserError(f"{folder}: this run is not finished")
    return hashlib.sha256((policy / WEIGHTS_FILE).read_bytes()).hexdigest()[:24]


def _make_curves(context: Context) -> None:
    rows = []
    for row in evaluation_rows(context.folders):
        reported = None
        if row["learner"] != "imitation":
            task, arm = row["task"], row["arm"]
            reported = paper_numbers.PUZZLES.get((task, arm)) or paper_numbers.ROBOTS.get((task, 0, arm))
        rows.append({**row, **_reported_columns(reported)})
    write_table(context.out / "ends.csv", ends_table(rows))
    if differences := difference_rows(rows, "looped"):
        write_table(context.out / DIFFERENCES_FILE, differences)
    write_table(context.out / "curves.csv", rows)


def _reported_columns(reported: paper_numbers.Reported | None) -> dict[str, float | None]:
    return {"paper": reported and reported.mean, "paper_deviation": reported and reported.deviation}


def _make_robot_table(context: Context) -> None:
    rows: list[Row] = []
    last = {
        key: json.loads(evaluation_files(context.study.folder_of(key))[-1].read_text())
        for key in context.keys
    }
    for task, arm in dict.fromkeys((key.task, key.arm) for key in context.keys):
        own = [results for key, results in last.items() if (key.task, key.arm) == (task, arm)]
        for number in (0, *TASKS):
            parts = [results["by_task"][str(number)] if number else results for results in own]
            solved, episodes = ([part[name] for part in parts] for name in ("solved", "episodes"))
            success = success_over_seeds(solved, episodes, [part.get("outcomes") for part in parts])
            rows.append(
                {
                    "task": task,
                    "learner": "GCIQL",
                    "arm": arm,
                    "number": number,
                    "name": paper_numbers.ROBOT_TASK_NAMES[task][number - 1] if number else "all",
                    "runs": len(own),
                    "episodes": parts[0]["episodes"],
                    **success.columns("episodes"),
                    **_reported_columns(paper_numbers.ROBOTS.get((task, number, arm))),
                }
            )
    write_table(context.out / "worlds.csv", rows)


def _analyze_caps(context: Context) -> None:
    cap = run_of(read_run(context.looped[0])).spec.max_loops
    caps, fixed = (tuple(n for n in some if n <= 2 * cap) for some in ((1, 2, 4, 8, 16, 32), (4, 8, 16)))
    context.analyze(analyze_caps, CapsOptions(out=context.out, count=context.count, caps=caps, fixed=fixed))


def _analyze_difficulty(context: Context) -> None:
    context.analyze(analyze_difficulty, DifficultyOptions(out=context.out, count=context.count))


def _analyze_histogram(context: Context) -> None:
    has_puzzles = any(key.task in PUZZLES for key in context.keys)
    count = context.count if has_puzzles else None
    context.analyze(analyze_histogram, HistogramOptions(out=context.out, count=count))


def _analyze_probes(context: Context) -> None:
    if context.study.scale == "paper":
        names = ("levels/boxoban-unfiltered-valid.levels", "levels/boxoban-medium-valid.levels")
        banks, count = tuple(pathlib.Path(name) for name in names), 25_000
    else:
        banks, count = (_probed_bank(context),), None
    context.analyze(analyze_probes, ProbeOptions(out=context.out, levels=banks, count=count))


def _probed_bank(context: Context) -> pathlib.Path:
    """Return a bank of levels like the test levels, none of which is a training level."""
    folder = context.looped[0]
    run = run_of(read_run(folder), folder)
    assert isinstance(run, PuzzleRun)
    levels, count = run.config.levels, PROBED_LEVELS[context.study.scale]
    if levels.train:
        return pathlib.Path(levels.held_out)
    recipe = levels.held_out_recipe or levels.recipe
    assert recipe is not None
    name = f"probed-{'imitation' if run.config.by_imitation else 'ppo'}-{count}.levels"
    path = context.study.folder / SHARED_FOLDER / name
    if not path.is_file():
        with context.progress("levels to probe on") as report:
            banks = generate(
                replace(recipe, seed=recipe.seed + PROBED_SEED_OFFSET),
                {"probed": count},
                without=[run.bank("train")],
                workers=default_workers(),
                progress=report,
            )
            write_bank(banks["probed"], path)
    return path


COMPARED = ("looped", "iso-flops", "iso-params", "drc")
ARTIFACTS = {
    artifact.id: artifact
    for artifact in (
        Artifact(
            id="boxoban-curves",
            title="Figure: Boxoban success rate during training",
            claim=(
                "Looped solves 81.5 +- 5.7% of unfiltered test levels, Iso-FLOPs 42.8 +- 6.2%, "
                "Iso-Params 0.2 +- 0.3%; DRC(3,3) is below Looped."
            ),
            tasks=("boxoban",),
            arms=COMPARED,
            tables=("curves",),
            assemble=_make_curves,
        ),
        Artifact(
            id="rush-hour-curves",
            title="Figure: Rush Hour success rate during training",
            claim=(
                "Looped solves 87.5 +- 1.0% of test levels, Iso-FLOPs 75.2 +- 9.4%, Iso-Params 41.1 "
                "+- 1.3%; DRC(3,3) is below Looped."
            ),
            tasks=("rush-hour",),
            arms=COMPARED,
            tables=("curves",),
            assemble=_make_curves,
        ),
        Artifact(
            id="ogbench-table",
            title="Table: success rates on 20 OGBench tasks",
            claim=(
                "On average over four environments Looped solves 69.7 +- 2.4%, Iso-FLOPs 68.5 +- "
                "4.7%, Iso-Params 33.0 +- 3.4%."
            ),
            tasks=ENVIRONMENTS,
            arms=paper_numbers.ROBOT_ARMS,
            tables=("worlds",),
            assemble=_make_robot_table,
        ),
        Artifact(
            id="ogbench-curves",
            title="Figure: OGBench success rates during training",
            claim=(
                "Looped is level with Iso-FLOPs or slightly ahead in all four environments; "
                "Iso-Params is far behind in three of them."
            ),
            tasks=ENVIRONMENTS,
            arms=paper_numbers.ROBOT_ARMS,
            tables=("curves",),
            assemble=_make_curves,
        ),
        Artifact(
            id="plan-probes",
            title="Figure: decoding the optimal plan from latents",
            claim=(
                "The next push is read with accuracy 0.50 after loop 1 and 0.75 after loop 16, from "
                "the input embedding with 0.27; the sixteenth push with 0.27 and 0.30. A guess among "
                "possible pushes scores 0.42."
            ),
            tasks=("boxoban",),
            arms=("looped",),
            tables=("probes",),
            analyze=_analyze_probes,
        ),
        Artifact(
            id="loops-against-pushes",
            title="Figure: loops against remaining pushes",
            claim=(
                "In solved episodes loops rise from 6 at one remaining push to over 10 at nineteen; "
                "in failed ones they do not depend on it."
            ),
            tasks=("boxoban",),
            arms=("looped",),
            tables=("difficulty",),
            analyze=_analyze_difficulty,
            also=("rush-hour",),
        ),
        Artifact(
            id="loop-histograms",
            title="Figure: histograms of loops in six environments",
            claim=(
                "Decisions take 9.8 loops on average in Boxoban and 15.1 in Rush Hour, of at most 16; "
                "some states need far more than others."
            ),
            tasks=(*PUZZLES, *ENVIRONMENTS),
            arms=("looped",),
            tables=("histogram",),
            analyze=_analyze_histogram,
        ),
        Artifact(
            id="adaptive-against-fixed",
            title="Figure: adaptive against fixed runtime",
            claim=(
                "With 4 or 8 fixed loops success is substantially lower; 16 fixed loops match the "
                "adaptive policy, which halts before in more than 95% of trajectories."
            ),
            tasks=("boxoban",),
            arms=("looped", "fixed-4", "fixed-8", "fixed-16"),
            tables=("curves", "caps"),
            assemble=_make_curves,
            analyze=_analyze_caps,
            also=("rush-hour",),
        ),
    )
}


def artifact_named(name: str) -> Artifact:
    """Return an artifact, or raise an error that lists all names."""
    if name not in ARTIFACTS:
        raise UserError(f"there is no {name!r} in the paper; there are {', '.join(ARTIFACTS)}")
    return ARTIFACTS[name]
