"""The paper's figures and tables by their names: the runs that each needs, and how it is made from them."""

import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple

from jax.sharding import Mesh

from looped_actor.analysis.caps import analyse_caps
from looped_actor.analysis.compare import evaluation_rows, evaluations_of
from looped_actor.analysis.difficulty import analyse_difficulty
from looped_actor.analysis.histogram import analyse_histogram
from looped_actor.analysis.plan_probes import analyse_probes
from looped_actor.analysis.requests import CapsRequest, DifficultyRequest, HistogramRequest, ProbeRequest
from looped_actor.analysis.study import Stage, quietly
from looped_actor.analysis.tables import Row, write_table
from looped_actor.names import PUZZLES
from looped_actor.policy.policy import WEIGHTS_FILE, Policy, finished_policy
from looped_actor.puzzles.banks import write_bank
from looped_actor.puzzles.build import generate
from looped_actor.reproduction import paper_numbers
from looped_actor.reproduction.figures import draw_folder
from looped_actor.reproduction.grid import STOCK_FOLDER, RunKey, Study
from looped_actor.reproduction.seeds import difference_rows, ends_table, over_seeds
from looped_actor.robots.ogbench import TASKS, ENVIRONMENTS
from looped_actor.runs.folder import read_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.registry import run_of
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole
from looped_actor.utils.processes import default_workers
from looped_actor.version import __version__

ARTIFACTS_FOLDER = "artifacts"
MADE_FILE = "made.json"
DIFFERENCES_FILE = "differences.csv"
"""Of the looped arm and each other one, at the end."""
PROBED_LEVELS = {"micro": 4_000, "small": 20_000}
"""Levels that probes are trained and tested on; at `paper`, the first 25,000 of each of two banks."""
PLAYED_LEVELS = {"micro": 250, "small": 1_000}
"""Levels that are played for an analysis; at `paper`, the whole bank."""


class Making(NamedTuple):
    """What an artifact is made of and where it goes."""

    study: Study
    keys: Sequence[RunKey]
    out: pathlib.Path
    mesh: Any
    """None where nothing is played."""
    stage: Stage

    @property
    def folders(self) -> list[pathlib.Path]:
        """Those of the runs."""
        return [self.study.folder_of(key) for key in self.keys]

    @property
    def looped(self) -> list[pathlib.Path]:
        """Those of the looped arm's runs."""
        return [self.study.folder_of(key) for key in self.keys if key.arm == "looped"]

    @property
    def policies(self) -> list[Policy]:
        """Those of the looped arm's runs."""
        return [policy_at(folder) for folder in self.looped]

    @property
    def request(self) -> dict[str, Any]:
        """What analyses that play are asked for: some levels."""
        return {"out": self.out, "count": PLAYED_LEVELS.get(self.study.scale)}


@dataclass(frozen=True)
class Artifact:
    """A figure or table of the paper."""

    id: str
    title: str
    claim: str
    """What the paper reads from it."""
    tasks: tuple[str, ...]
    arms: tuple[str, ...]
    tables: tuple[str, ...]
    """Those that it writes, each with a figure."""
    assemble: Callable[[Making], None] | None = None
    """Makes tables of what runs keep of their evaluations: at once, whenever they are shown."""
    analyse: Callable[[Making], None] | None = None
    """Makes tables by playing with the policies."""
    also: tuple[str, ...] = ()
    """Tasks that the paper does not show here, and that may be asked for."""

    @property
    def seeds(self) -> int:
        """As many as in the paper."""
        return 5 if set(self.tasks) <= set(ENVIRONMENTS) else 3

    def keys(
        self,
        learner: str = "ppo",
        seeds: int | None = None,
        tasks: Sequence[str] = (),
        arms: Sequence[str] = (),
        most_loops: int = 16,
    ) -> list[RunKey]:
        """The runs that it needs.

        Args:
          learner: of puzzles.
          seeds: how many of each kind. Default: the paper's.
          tasks: which of its tasks. Default: the paper's.
          arms: which of its arms. Default: all.
          most_loops: arms that always loop more often than this are left out.
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
        if arms and self.analyse is not None and "looped" not in arms:
            raise UserError(f"{self.id} looks at loops: looped must be among its arms")
        chosen = [arm for arm in arms or self.arms if not _more_loops(arm, most_loops)]
        return [
            RunKey(task, learner if task in PUZZLES else "gciql", arm, seed)
            for task, arm, seed in itertools.product(tasks or self.tasks, chosen, range(seeds or self.seeds))
        ]


def _more_loops(arm: str, most: int) -> bool:
    return arm.startswith("fixed-") and int(arm.removeprefix("fixed-")) > most


def folder_of(study: Study, artifact: Artifact, learner: str) -> pathlib.Path:
    """Where an artifact lies."""
    by = f"-{learner}" if set(artifact.tasks) & set(PUZZLES) else ""
    return study.folder / ARTIFACTS_FOLDER / (artifact.id + by)


def make_artifact(
    artifact: Artifact, study: Study, keys: Sequence[RunKey], learner: str, mesh: Mesh, stage: Stage
) -> pathlib.Path:
    """Analyse finished runs, unless it was done with these very ones; the report assembles the rest."""
    out = folder_of(study, artifact, learner)
    made = _made_of(artifact, study, keys, learner)
    if made_of(out).get("policies") != made["policies"]:
        if artifact.analyse is not None:
            artifact.analyse(Making(study, keys, out, mesh, stage))
        write_whole(out / MADE_FILE, (json.dumps(made, indent=1) + "\n").encode())
    return out


def assemble_again(artifact: Artifact, folder: pathlib.Path, out: pathlib.Path) -> None:
    """Make the tables that need no playing once more, if the evaluations are still there; draw all tables."""
    keys, study = [RunKey(*key) for key in made_of(out)["runs"]], Study(folder)
    there = all((study.folder_of(key) / "evaluations").is_dir() for key in keys)
    if artifact.assemble is not None and there:
        artifact.assemble(Making(study, keys, out, None, quietly))
    for table, sentence in draw_folder(out).items():
        write_whole(out / f"{table}.txt", (sentence + "\n").encode())


def made_of(out: pathlib.Path) -> dict[str, Any]:
    """What an artifact was made of; empty where there is none."""
    try:
        return json.loads((out / MADE_FILE).read_text())
    except (OSError, ValueError):
        return {}


def _made_of(artifact: Artifact, study: Study, keys: Sequence[RunKey], learner: str) -> dict[str, Any]:
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
    policy = finished_policy(folder)
    if policy is None:
        raise UserError(f"{folder}: this run is not finished")
    return hashlib.sha256((policy / WEIGHTS_FILE).read_bytes()).hexdigest()[:24]


def _curves(making: Making) -> None:
    rows = []
    for row in evaluation_rows(making.folders):
        told = None
        if row["learner"] != "imitation":
            puzzle, world = (row["task"], row["arm"]), (row["task"], 0, row["arm"])
            told = paper_numbers.PUZZLES.get(puzzle) or paper_numbers.ENVIRONMENTS.get(world)
        rows.append({**row, "paper": told and told.mean, "paper_deviation": told and told.deviation})
    write_table(making.out / "ends.csv", ends_table(rows))
    if differences := difference_rows(rows, "looped"):
        write_table(making.out / DIFFERENCES_FILE, differences)
    write_table(making.out / "curves.csv", rows)


def _caps(making: Making) -> None:
    cap = run_of(read_run(making.looped[0])).net.max_loops
    caps, fixed = (tuple(n for n in some if n <= 2 * cap) for some in ((1, 2, 4, 8, 16, 32), (4, 8, 16)))
    request = CapsRequest(**making.request, caps=caps, fixed=fixed)
    analyse_caps(making.policies, request, making.mesh, making.stage)


def _worlds(making: Making) -> None:
    rows: list[Row] = []
    lasts = {
        key: json.loads(evaluations_of(making.study.folder_of(key))[-1].read_text()) for key in making.keys
    }
    for task, arm in dict.fromkeys((key.task, key.arm) for key in making.keys):
        own = [facts for key, facts in lasts.items() if (key.task, key.arm) == (task, arm)]
        for number in (0, *TASKS):
            parts = [facts["by_task"][str(number)] if number else facts for facts in own]
            solved, played = ([part[name] for part in parts] for name in ("solved", "episodes"))
            success = over_seeds(solved, played, [part.get("outcomes") for part in parts])
            told = paper_numbers.ENVIRONMENTS.get((task, number, arm))
            rows.append(
                {
                    "task": task,
                    "learner": "GCIQL",
                    "arm": arm,
                    "number": number,
                    "name": paper_numbers.WORLD_TASKS[task][number - 1] if number else "all",
                    "runs": len(own),
                    "episodes": parts[0]["episodes"],
                    **success.columns("episodes"),
                    "paper": told and told.mean,
                    "paper_deviation": told and told.deviation,
                }
            )
    write_table(making.out / "worlds.csv", rows)


def _probes(making: Making) -> None:
    count = None
    if making.study.scale == "paper":
        names = ("levels/boxoban-unfiltered-valid.levels", "levels/boxoban-medium-valid.levels")
        banks, count = tuple(pathlib.Path(name) for name in names), 25_000
    else:
        banks = (_probed_bank(making),)
    request = ProbeRequest(out=making.out, levels=banks, count=count)
    analyse_probes(making.policies, request, making.mesh, making.stage)


def _probed_bank(making: Making) -> pathlib.Path:
    """Levels of the kind that was held out, and none that was learned from."""
    folder = making.looped[0]
    run = run_of(read_run(folder), folder).puzzle
    config = run.config
    count = PROBED_LEVELS[making.study.scale]
    if config.levels.train:
        return pathlib.Path(config.levels.held_out)
    recipe = config.levels.held_out_recipe or config.levels.recipe
    assert recipe is not None
    path = making.study.folder / STOCK_FOLDER / f"probed-{config.learner}-{count}.levels"
    if not path.is_file():
        learned = run.bank("train")
        other = replace(recipe, seed=recipe.seed + 1_000)
        with making.stage("levels to probe on") as progress:
            options: Any = {"without": [learned], "workers": default_workers(), "progress": progress}
            write_bank(generate(other, {"probed": count}, **options)["probed"], path)
    return path


def _difficulty(making: Making) -> None:
    analyse_difficulty(making.policies, DifficultyRequest(**making.request), making.mesh, making.stage)


def _histogram(making: Making) -> None:
    policies, asked = making.policies, making.request
    if not any(policy.config.task in PUZZLES for policy in policies):
        del asked["count"]  # of levels
    analyse_histogram(policies, HistogramRequest(**asked), making.mesh, making.stage)


COMPARED = ("looped", "iso-flops", "iso-params", "drc")
ARTIFACTS = {
    artifact.id: artifact
    for artifact in (
        Artifact(
            "boxoban-curves",
            "Figure: Boxoban success rate during training",
            "Looped solves 81.5 +- 5.7% of unfiltered test levels, Iso-FLOPs 42.8 +- 6.2%, Iso-Params "
            "0.2 +- 0.3%; DRC(3,3) is below Looped.",
            ("boxoban",),
            COMPARED,
            ("curves",),
            assemble=_curves,
        ),
        Artifact(
            "rush-hour-curves",
            "Figure: Rush Hour success rate during training",
            "Looped solves 87.5 +- 1.0% of test levels, Iso-FLOPs 75.2 +- 9.4%, Iso-Params 41.1 +- 1.3%; "
            "DRC(3,3) is below Looped.",
            ("rush-hour",),
            COMPARED,
            ("curves",),
            assemble=_curves,
        ),
        Artifact(
            "ogbench-table",
            "Table: success rates on 20 OGBench tasks",
            "On average over four worlds Looped solves 69.7 +- 2.4%, Iso-FLOPs 68.5 +- 4.7%, Iso-Params "
            "33.0 +- 3.4%.",
            ENVIRONMENTS,
            paper_numbers.WORLD_ARMS,
            ("worlds",),
            assemble=_worlds,
        ),
        Artifact(
            "ogbench-curves",
            "Figure: OGBench success rates during training",
            "Looped is level with Iso-FLOPs or slightly ahead in all four worlds; Iso-Params is far behind "
            "in three of them.",
            ENVIRONMENTS,
            paper_numbers.WORLD_ARMS,
            ("curves",),
            assemble=_curves,
        ),
        Artifact(
            "plan-probes",
            "Figure: decoding the optimal plan from latents",
            "The next push is read with accuracy 0.50 after loop 1 and 0.75 after loop 16, from the input "
            "embedding with 0.27; the sixteenth push with 0.27 and 0.30. A guess among possible pushes "
            "scores 0.42.",
            ("boxoban",),
            ("looped",),
            ("probes",),
            analyse=_probes,
        ),
        Artifact(
            "loops-against-pushes",
            "Figure: loops against remaining pushes",
            "In solved episodes loops rise from 6 at one remaining push to over 10 at nineteen; in failed "
            "ones they do not depend on it.",
            ("boxoban",),
            ("looped",),
            ("difficulty",),
            analyse=_difficulty,
            also=("rush-hour",),
        ),
        Artifact(
            "loop-histograms",
            "Figure: histograms of loops in six environments",
            "Decisions take 9.8 loops on average in Boxoban and 15.1 in Rush Hour, of at most 16; some "
            "states need far more than others.",
            (*PUZZLES, *ENVIRONMENTS),
            ("looped",),
            ("histogram",),
            analyse=_histogram,
        ),
        Artifact(
            "adaptive-against-fixed",
            "Figure: adaptive against fixed runtime",
            "With 4 or 8 fixed loops success is substantially lower; 16 fixed loops match the adaptive "
            "policy, which halts before in more than 95% of trajectories.",
            ("boxoban",),
            ("looped", "fixed-4", "fixed-8", "fixed-16"),
            ("curves", "caps"),
            assemble=_curves,
            analyse=_caps,
            also=("rush-hour",),
        ),
    )
}


def artifact_named(name: str) -> Artifact:
    """An artifact, or an error that names all of them."""
    if name not in ARTIFACTS:
        raise UserError(f"there is no {name!r} in the paper; there are {', '.join(ARTIFACTS)}")
    return ARTIFACTS[name]
