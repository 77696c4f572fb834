"""Steps that all analyses share: naming policies, cached evaluation, and writing the table and its figure.

Results are kept in a folder of parts until the table is written, so that an interrupted analysis continues.
"""

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from jax.sharding import Mesh

from looped_actor.analysis.drawing import FigureKind, draw_table
from looped_actor.analysis.tables import Row, write_table
from looped_actor.evaluation.options import EvaluationOptions
from looped_actor.loop import HaltingRule
from looped_actor.policy.policy import Policy
from looped_actor.runs.config import RunConfig
from looped_actor.runs.evaluate import evaluate_policy
from looped_actor.utils.codec import key_of
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import read_json, write_whole
from looped_actor.utils.processes import Progress, no_progress, remove_parts

ProgressFactory = Callable[[str], AbstractContextManager[Progress]]
"""Makes a context manager that shows the progress of a step, given its name."""


@contextmanager
def silent(step: str) -> Iterator[Progress]:
    """Show nothing."""
    yield no_progress


def name_policies(policies: Sequence[Policy]) -> dict[str, Policy]:
    """Return the policies by names that tell them apart."""
    if not policies:
        raise UserError("give at least one policy")
    folders = [policy.folder for policy in policies]
    share_folders = len({folder.resolve() for folder in folders}) < len(folders)
    names = [policy.name for policy in policies] if share_folders else name_folders(folders)
    if len(set(names)) < len(names):
        raise UserError("the same policy is given twice")
    return dict(zip(names, policies, strict=True))


def name_folders(folders: Sequence[pathlib.Path]) -> list[str]:
    """Return short names of folders: the ends of their paths, as long as needed to tell them apart."""
    if not folders:
        raise UserError("give the folder of at least one run")
    paths = [folder.resolve().parts for folder in folders]
    if len(set(paths)) < len(paths):
        raise UserError("the same folder is given twice")
    for depth in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("different folders have different names")


def run_columns(name: str, config: RunConfig) -> dict[str, Any]:
    """Return the columns that describe a run; see `RUN_COLUMNS`."""
    return {"run": name, "task": config.task, "arm": config.trained, "learner": config.learner}


def require_loops(policy: Policy) -> HaltingRule:
    """Return the halting rule of a policy, or raise an error if it does not loop."""
    if policy.halting is None:
        raise UserError(f"{policy.folder}: {policy.spec.arm} does not loop: there are no loops to analyze")
    return policy.halting


def success_columns(results: dict[str, Any]) -> dict[str, Any]:
    """Return the number of levels or episodes, success and its interval; None if success was not reported."""
    low, high = results["interval_95"] if "success" in results else (None, None)
    return {
        "played": results["levels"] if "levels" in results else results["episodes"],
        "solved": results.get("solved"),
        "success": results.get("success"),
        "low": low,
        "high": high,
    }


def repeat_columns(results: dict[str, Any]) -> dict[str, Any]:
    """Return mean loops in new states, and the share of repeats; None in results of older versions."""
    return {name: results.get(name) for name in ("loops_new_states", "repeated_share")}


@dataclass(frozen=True)
class Analysis:
    """An analysis under way, which finds again what it has computed before an interruption."""

    kind: FigureKind
    """Kind of its table and figure."""
    out: pathlib.Path
    """Folder of its table and figure."""
    mesh: Mesh
    progress: ProgressFactory

    @property
    def parts(self) -> pathlib.Path:
        """Folder of what is computed, until the table is written."""
        return self.out / f"{self.kind.name}.parts"

    def evaluate(
        self, name: str, policy: Policy, options: EvaluationOptions, step: str = "playing"
    ) -> dict[str, Any]:
        """Return the results of `evaluate_policy`."""
        given = {option: str(value) for option, value in asdict(options).items()}
        path = self.parts / f"{key_of(given | {'weights': policy.weights.checksum})}.json"
        if not path.is_file():
            with self.progress(f"{name}: {step}") as report:
                results = evaluate_policy(policy, options, self.mesh, report)
            write_whole(path, json.dumps(results).encode())
        return read_json(path)

    def finish(self, rows: Sequence[Row]) -> str:
        """Write the table and the figure, remove the parts, and return the caption."""
        caption = write_result(self.kind, self.out, rows)
        remove_parts(self.parts)
        return caption


def write_result(kind: FigureKind, out: pathlib.Path, rows: Sequence[Row]) -> str:
    """Write a table, its figure and its caption into a folder, and return the caption."""
    path = out / f"{kind.name}.csv"
    write_table(path, rows)
    caption = draw_table(path, kind)
    write_whole(path.with_suffix(".txt"), (caption + "\n").encode())
    return caption
