"""What all analyses share: the policies that are looked at, a memory of what was played, and the end.

An analysis writes a table and its figures into a folder and returns a sentence. What was computed is kept in
parts until the table is written, so that an interrupted analysis resumes where it stopped.
"""

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from jax.sharding import Mesh

from looped_actor.analysis.drawing import FigureKind, draw_table
from looped_actor.analysis.tables import Row, write_table
from looped_actor.evaluation.requests import EvaluationRequest
from looped_actor.loop import HaltingRule
from looped_actor.policy.policy import Policy
from looped_actor.runs.config import RunConfig
from looped_actor.runs.evaluate import evaluate_policy
from looped_actor.runs.run import Run
from looped_actor.utils.codec import key_of
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import read_json, write_whole
from looped_actor.utils.processes import Progress, forget, no_progress

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
    policy: Policy
    run: Run

    @property
    def about(self) -> dict[str, Any]:
        """What every row of a table says of it."""
        return about_run(self.name, self.policy.config)

    @property
    def halting(self) -> HaltingRule:
        """When it stops, if it loops."""
        if self.policy.halting is None:
            arm = self.policy.config.arm
            raise UserError(f"{self.policy.folder}: {arm} does not loop; there is nothing to look at")
        return self.policy.halting


def about_run(name: str, config: RunConfig) -> dict[str, Any]:
    """What every row of a table says of a run."""
    return {"run": name, "task": config.task, "arm": config.arm, "learner": config.algorithm}


def subjects(policies: Sequence[Policy], mesh: Mesh) -> list[Subject]:
    """The policies that are looked at, each with a name of its own."""
    if not policies:
        raise UserError("give at least one policy")
    folders = [policy.folder for policy in policies]
    same = len({folder.resolve() for folder in folders}) < len(folders)
    names = [policy.name for policy in policies] if same else names_of(folders)
    if len(set(names)) < len(names):
        raise UserError("the same policy is given twice")
    return [
        Subject(name, policy, replace(policy.run, mesh=mesh))
        for name, policy in zip(names, policies, strict=True)
    ]


def names_of(folders: Sequence[pathlib.Path]) -> list[str]:
    """Short names of folders: their own, with as many of those above as tell them apart."""
    if not folders:
        raise UserError("give the folder of at least one run")
    whole = [folder.resolve().parts for folder in folders]
    if len(set(whole)) < len(whole):
        raise UserError("the same folder is given twice")
    for depth in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-depth:]) for parts in whole]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("different folders have different names")


def parts_of(out: pathlib.Path, name: str) -> pathlib.Path:
    """Where an analysis keeps what it has computed, until its table is written."""
    return out / f"{name}.parts"


def shares(facts: dict[str, Any]) -> dict[str, Any]:
    """Return success and its interval, of levels or of episodes; None where success was not reported."""
    played = facts["levels"] if "levels" in facts else facts["episodes"]
    low, high = facts["interval_95"] if "success" in facts else (None, None)
    success = {"solved": facts.get("solved"), "success": facts.get("success")}
    return {"played": played, **success, "low": low, "high": high}


def repeats(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the loops on new states and the share of repeats; None in records of older versions."""
    return {name: facts.get(name) for name in ("loops_new_states", "repeated_share")}


def evaluated(
    subject: Subject,
    request: EvaluationRequest,
    mesh: Mesh,
    parts: pathlib.Path,
    stage: Stage,
    what: str = "playing",
) -> dict[str, Any]:
    """`evaluate_policy`, remembered until the analysis is finished."""
    asked = {name: str(value) for name, value in asdict(request).items()}
    path = parts / f"{key_of(asked | {'weights': subject.policy.weights.checksum})}.json"
    if path.is_file():
        return read_json(path)
    with stage(f"{subject.name}: {what}") as progress:
        facts = evaluate_policy(subject.policy, request, mesh, progress)
    write_whole(path, json.dumps(facts).encode())
    return facts


def finish(out: pathlib.Path, name: str, rows: Sequence[Row], kind: FigureKind) -> str:
    """Write the table, draw it, write down what it shows, and forget the parts."""
    path = out / f"{name}.csv"
    write_table(path, rows)
    sentence = draw_table(path, kind)
    write_whole(path.with_suffix(".txt"), (sentence + "\n").encode())
    forget(parts_of(out, name))
    return sentence
