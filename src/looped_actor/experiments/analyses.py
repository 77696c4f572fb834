"""What the loops of trained policies do: from run folders to tables and figures.

Each function writes a table and its figures into a folder and returns the sentence. What was computed is
kept in parts until the table is written, so that an interrupted analysis goes on where it stopped.
"""

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from jax.sharding import Mesh

from looped_actor.algorithms import Weights
from looped_actor.analysis.difficulty import MEASURES, difficulty_table, visited_states
from looped_actor.analysis.figures import draw_table
from looped_actor.analysis.tables import Row, write_table
from looped_actor.analysis.traces import TraceRecorder
from looped_actor.batches import Progress, default_workers, forget, no_progress
from looped_actor.experiments.arms import Looped
from looped_actor.experiments.codec import key_of
from looped_actor.experiments.config import OnlineConfig, RunConfig
from looped_actor.experiments.evaluate import (
    EvaluationRequest,
    bank_of,
    evaluate_policy,
    levels_wanted,
    policy_at,
)
from looped_actor.experiments.online import environment
from looped_actor.experiments.policies import abstract_net, definition_of
from looped_actor.experiments.runs import read_run
from looped_actor.files import write_whole
from looped_actor.games.catalogue import GAMES

Stage = Callable[[str], AbstractContextManager[Progress]]
"""Announces a piece of work, and takes its progress."""


@contextmanager
def quietly(what: str) -> Iterator[Progress]:
    """A stage that nobody watches."""
    yield no_progress


@dataclass(frozen=True)
class Subject:
    """A policy to be looked at."""

    name: str
    folder: pathlib.Path
    config: RunConfig
    weights: Weights

    @property
    def about(self) -> dict[str, Any]:
        """What every row of a table says of it."""
        return about_run(self.name, self.config)

    @property
    def puzzle(self) -> OnlineConfig:
        """Its configuration, if it plays a puzzle."""
        if not isinstance(self.config, OnlineConfig):
            raise ValueError(f"{self.folder} is of {self.config.task}: this looks at puzzles")
        return self.config

    @property
    def looped(self) -> Looped:
        """How it loops, if it does."""
        arm = self.config.chosen_arm
        if not isinstance(arm, Looped):
            raise ValueError(f"{self.folder}: {self.config.arm} does not loop; there is nothing to look at")
        return arm


def about_run(name: str, config: RunConfig) -> dict[str, Any]:
    """What every row of a table says of a run."""
    return {"run": name, "task": config.task, "arm": config.arm, "learner": config.algorithm}


def subjects(folders: Sequence[pathlib.Path], mesh: Mesh, checkpoint: str | None = None) -> list[Subject]:
    """The policies of some folders, each with a name of its own."""
    names = names_of(folders)
    return [
        Subject(name, folder, *policy_at(folder, mesh, checkpoint)[:2])
        for name, folder in zip(names, folders, strict=True)
    ]


def names_of(folders: Sequence[pathlib.Path]) -> list[str]:
    """Short names of folders: their own, with as many of those above as tell them apart."""
    if not folders:
        raise ValueError("give the folder of at least one run")
    whole = [folder.resolve().parts for folder in folders]
    if len(set(whole)) < len(whole):
        raise ValueError("the same folder is given twice")
    for depth in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-depth:]) for parts in whole]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("different folders have different names")


def analyse_histogram(
    folders: Sequence[pathlib.Path],
    mesh: Mesh,
    out: pathlib.Path,
    *,
    levels: pathlib.Path | None = None,
    count: int | None = None,
    episodes: int | None = None,
    checkpoint: str | None = None,
    stage: Stage = quietly,
) -> str:
    """How many loops the decisions of some runs take, on levels of puzzles and in episodes of worlds."""
    rows: list[Row] = []
    for subject in subjects(folders, mesh, checkpoint):
        puzzle = isinstance(subject.config, OnlineConfig)
        what: Any = {"levels": levels, "count": count} if puzzle else {"count": episodes}
        request = EvaluationRequest(subject.folder, checkpoint=checkpoint, **what)
        facts = _evaluated(subject, request, mesh, parts_of(out, "histogram"), stage)
        rows += [
            {**subject.about, "loops": int(loops), "decisions": decisions}
            for loops, decisions in facts["loop_histogram"].items()
        ]
    return finished(out, "histogram", rows)


def analyse_caps(
    folders: Sequence[pathlib.Path],
    mesh: Mesh,
    out: pathlib.Path,
    *,
    caps: Sequence[int] = (1, 2, 4, 8, 16),
    thresholds: Sequence[float] = (1e-3,),
    fixed: Sequence[int] = (4, 8, 16),
    levels: pathlib.Path | None = None,
    count: int | None = None,
    checkpoint: str | None = None,
    stage: Stage = quietly,
) -> str:
    """Success when a policy is made to think less or more than in training, and what that costs."""
    parts = parts_of(out, "caps")
    rows: list[Row] = []
    for subject in subjects(folders, mesh, checkpoint):
        _ = subject.looped
        net, shape = abstract_net(subject.config), subject.config.shape
        request = EvaluationRequest(subject.folder, levels, checkpoint=checkpoint, count=count)
        settings = [("adaptive", cap, threshold, 2) for threshold in thresholds for cap in caps]
        settings += [("fixed", loops, None, loops) for loops in fixed]
        for rule, cap, threshold, least in settings:
            changed = replace(request, max_loops=cap, min_loops=min(least, cap), threshold=threshold)
            facts = _evaluated(subject, changed, mesh, parts, stage, f"{rule}, {cap} loops")
            rows.append(
                {
                    **subject.about,
                    "rule": rule,
                    "max_loops": cap,
                    "threshold": threshold,
                    **_shares(facts),
                    "loops": facts["loops"],
                    "flops": net.flops(shape.observation(1), facts["loops"]),
                }
            )
    return finished(out, "caps", rows)


def analyse_difficulty(
    folders: Sequence[pathlib.Path],
    mesh: Mesh,
    out: pathlib.Path,
    *,
    levels: pathlib.Path | None = None,
    count: int | None = None,
    checkpoint: str | None = None,
    node_limit: int = 300_000,
    workers: int | None = None,
    stage: Stage = quietly,
) -> str:
    """Loops of every state that policies visit, against its distance from solved."""
    rows: list[Row] = []
    for subject in subjects(folders, mesh, checkpoint):
        config = subject.puzzle
        bank = bank_of(subject.folder, config, levels)
        wanted = levels_wanted(count, bank)
        recorder = TraceRecorder(environment(config, bank, wanted), wanted, definition_of(config), mesh)
        with stage(f"{subject.name}: playing") as progress:
            trace = recorder.record(subject.weights, progress)
        with stage(f"{subject.name}: solving every state") as progress:
            states = visited_states(
                GAMES[config.task],
                (bank.info.height, bank.info.width),
                trace,
                workers=workers or default_workers(),
                node_limit=node_limit,
                parts=parts_of(out, "difficulty"),
                progress=progress,
            )
        rows += difficulty_table(states, {**subject.about, "measure": MEASURES[config.task]})
    return finished(out, "difficulty", rows)


def compare_runs(folders: Sequence[pathlib.Path], out: pathlib.Path) -> str:
    """Evaluations of some runs during training, side by side. Nothing is played."""
    return finished(out, "compare", evaluation_rows(folders))


def evaluation_rows(folders: Sequence[pathlib.Path]) -> list[dict[str, Any]]:
    """A row for each evaluation of some runs during training."""
    rows = []
    for name, folder in zip(names_of(folders), folders, strict=True):
        config = read_run(folder)
        for path in evaluations_of(folder):
            facts = json.loads(path.read_text())
            rows.append(
                {
                    **about_run(name, config),
                    "seed": config.seed,
                    "steps": int(path.stem),
                    **_shares(facts),
                    "loops": facts["loops"],
                    "optimal_actions": facts.get("optimal_actions"),
                }
            )
    return rows


def evaluations_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of a run's evaluations, in order."""
    paths = sorted((folder / "evaluations").glob("*.json"))
    if not paths:
        raise ValueError(f"{folder}: nothing was evaluated yet")
    return paths


def parts_of(out: pathlib.Path, name: str) -> pathlib.Path:
    """Where an analysis keeps what it has computed, until its table is written."""
    return out / f"{name}.parts"


def _shares(facts: dict[str, Any]) -> dict[str, Any]:
    """Success and its interval, of levels or of episodes."""
    low, high = facts["interval_95"]
    played = facts["levels"] if "levels" in facts else facts["episodes"]
    return {
        "played": played,
        "solved": facts["solved"],
        "success": facts["success"],
        "low": low,
        "high": high,
    }


def _evaluated(
    subject: Subject,
    request: EvaluationRequest,
    mesh: Mesh,
    parts: pathlib.Path,
    stage: Stage,
    what: str = "playing",
) -> dict[str, Any]:
    """`evaluate_policy`, remembered until the analysis is finished."""
    asked = {name: str(value) for name, value in asdict(request).items()}
    path = parts / f"{key_of(asked | {'weights': subject.weights.checksum})}.json"
    if path.is_file():
        return json.loads(path.read_text())
    with stage(f"{subject.name}: {what}") as progress:
        facts = evaluate_policy(request, mesh, progress)
    write_whole(path, json.dumps(facts).encode())
    return facts


def finished(out: pathlib.Path, name: str, rows: Sequence[Row]) -> str:
    """Write the table, draw it, write down what it shows, and forget the parts."""
    path = out / f"{name}.csv"
    write_table(path, rows)
    sentence = draw_table(path)
    write_whole(path.with_suffix(".txt"), (sentence + "\n").encode())
    forget(parts_of(out, name))
    return sentence
