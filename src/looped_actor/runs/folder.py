"""Run folders: begin, train, resume and finish a run."""

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import Mesh

from looped_actor.policy.policy import POLICY_FOLDER, TEST_FILE, find_policy, save_policy
from looped_actor.runs.config import CONFIG_FILE, RunConfig, read_config
from looped_actor.runs.provenance import PROVENANCE_FILE
from looped_actor.runs.registry import run_of
from looped_actor.runs.run import CustomCode, Run
from looped_actor.training import Ending, Logger, Report, fit
from looped_actor.utils.checks import brief
from looped_actor.utils.codec import write_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import held, read_json, sweep, write_whole
from looped_actor.utils.processes import Progress, no_progress

PREPARING_FILE = "preparing"
"""In the folder of a run whose levels or data are not complete: it is beginning, or was killed then."""


def begin_run(
    config: RunConfig,
    folder: pathlib.Path,
    mesh: Mesh | None = None,
    progress: Progress = no_progress,
    code: CustomCode | None = None,
) -> RunConfig:
    """Write the configuration of a new run, make its levels or data, and return the configuration.

    A start that was killed begins again, whatever its configuration was. With several processes, which share
    a file system, the first one does it, and the others wait.
    """
    _in_first_process(folder, lambda: _begin(run_of(config, folder, mesh, code), progress))
    return read_config(folder / CONFIG_FILE)


def complete_start(
    config: RunConfig, folder: pathlib.Path, progress: Progress = no_progress, code: CustomCode | None = None
) -> None:
    """Make the levels or data that a killed start of a run has not made; do nothing if they are complete."""
    _in_first_process(folder, lambda: _prepare(run_of(config, folder, code=code), progress))


def is_begun(folder: pathlib.Path) -> bool:
    """Return whether a folder holds a run whose levels or data are complete."""
    return (folder / CONFIG_FILE).exists() and not (folder / PREPARING_FILE).exists()


def _in_first_process(folder: pathlib.Path, work: Callable[[], None]) -> None:
    if jax.process_index() == 0:
        with _lock(folder):  # or another process might begin a run here at the same moment
            work()
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("the folder of the run exists")


def _begin(run: Run, progress: Progress) -> None:
    folder = run.folder
    if is_begun(folder):
        raise UserError(
            f"{folder} is the folder of a run already: `looped-actor resume {folder}` continues it; "
            "for a new one give another folder with --out"
        )
    config = run.complete_config()
    write_whole(folder / PREPARING_FILE, b"")
    write_json(config, folder / CONFIG_FILE)
    _prepare(run, progress)


def _prepare(run: Run, progress: Progress) -> None:
    if not (run.folder / PREPARING_FILE).exists():
        return
    (run.folder / PROVENANCE_FILE).unlink(missing_ok=True)  # of another start, which was killed
    sums = run.prepare(progress)
    if sums:
        write_whole(run.folder / PROVENANCE_FILE, (json.dumps(sums, indent=2) + "\n").encode())
    (run.folder / PREPARING_FILE).unlink()


def read_run(folder: pathlib.Path) -> RunConfig:
    """Return the configuration of a run that was begun, which this version can continue."""
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder} is not the folder of a run: there is no {CONFIG_FILE} in it")
    return read_config(folder / CONFIG_FILE, resumable=True)


def fingerprint_of(folder: pathlib.Path) -> str:
    """Return a hash of `config.json`, which the run's checkpoints carry."""
    return hashlib.sha256(json.dumps(read_json(folder / CONFIG_FILE), sort_keys=True).encode()).hexdigest()


def train_run(
    config: RunConfig,
    folder: pathlib.Path,
    mesh: Mesh,
    report: Callable[[Report], None] = lambda report: None,
    code: CustomCode | None = None,
    loggers: Sequence[Logger] = (),
) -> Ending:
    """Train a run that was begun, from its newest checkpoint; write the policy when it ends."""
    with _lock(folder):
        if jax.process_index() == 0:
            sweep(folder)
        run = run_of(config, folder, mesh, code)
        try:
            state, ending = fit(
                run.trainer,
                folder,
                seed=config.seed,
                fingerprint=fingerprint_of(folder),
                schedule=config.schedule,
                evaluate=run.evaluate,
                report=report,
                loggers=loggers,
            )
            if ending is Ending.FINISHED:
                _finish(run, state, folder)
        except OSError as error:  # a full disk, mostly
            lost = isinstance(error, ChildProcessError)
            what = "a process was lost" if lost else "a file could not be written"
            raise OSError(
                f"{folder}: training ended: {what} ({brief(error)}). What was saved "
                f"before is whole; fix that, and `looped-actor resume {folder}` continues from there"
            ) from error
        finally:
            run.close()
    return ending


def _finish(run: Run, state: Any, folder: pathlib.Path) -> None:
    """Play the test levels, and write the results and the policy. All processes play, and the first one
    writes.

    A policy is written after its test, so a run that has one is not tested again.
    """
    results = run.test(state) if find_policy(folder) is None else None
    if jax.process_index() > 0:
        return
    if results is not None:
        write_whole(folder / TEST_FILE, json.dumps(results, indent=1).encode())
    run.save_extras(state)
    if run.config.trained != "critics":
        save_policy(run.config, state.weights, folder / POLICY_FOLDER)


@contextmanager
def _lock(folder: pathlib.Path) -> Iterator[None]:
    """Lock the folder of a run: two trainings would spoil each other's files."""
    if jax.process_index() > 0:  # the first one holds the lock for all
        yield
        return
    with held(folder / "train.lock", taken=f"{folder}: another process is training in this folder"):
        yield
