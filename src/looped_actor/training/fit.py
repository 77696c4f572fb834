"""The training loop: iterate, log, evaluate, save checkpoints, stop cleanly on a signal."""

import json
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from looped_actor.training.checkpoints import Bookmark, Checkpoints
from looped_actor.training.loggers import RATE, CSVLogger, Logger, TensorBoardLogger, TimingsLogger
from looped_actor.training.trainer import Trainer
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole

CHECKPOINTS_FOLDER = "checkpoints"


MAX_SKIPPED_IN_A_ROW = 20
"""Updates in a row with a loss or gradient that is not finite, after which a run fails."""


@dataclass(frozen=True)
class Schedule:
    """Length of a run, and when to evaluate and save, in iterations."""

    iterations: int
    evaluate_every: int
    checkpoint_every: int
    best_by: str = "success"
    """Evaluation result by which the best checkpoint is chosen."""


class Report(NamedTuple):
    """Progress after an iteration, for callbacks."""

    steps: int
    total_steps: int
    metrics: Mapping[str, float]
    """Columns of metrics.csv, and `steps_per_second`. NaN if there is no value, such as when no episode
    ended."""
    evaluation: Mapping[str, Any] | None
    """Results of the last evaluation; None before the first."""


class Ending(Enum):
    """Reason for which a run stopped."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"


class BrokenTrainingError(UserError):
    """Too many updates in a row were not finite."""


Evaluate = Callable[[Any], Mapping[str, Any]]
"""A state to evaluation results as JSON, with `loops` and the score that `Schedule.best_by` names."""


def fit(
    trainer: Trainer,
    folder: pathlib.Path,
    *,
    seed: int,
    fingerprint: str,
    schedule: Schedule,
    evaluate: Evaluate,
    report: Callable[[Report], None] = lambda report: None,
    loggers: Sequence[Logger] = (),
) -> tuple[Any, Ending]:
    """Train from the newest checkpoint in `folder`, or from the start if there is none.

    Returns the last state. On SIGTERM or Ctrl-C the current iteration is finished and saved. Raises
    `BrokenTrainingError` if learning does not recover from values that are not finite; the last good
    checkpoint is kept.
    """
    checkpoints = Checkpoints(folder / CHECKPOINTS_FOLDER, fingerprint, best_by=schedule.best_by)
    records, per_iteration = _Records(folder, loggers), trainer.steps_per_iteration
    with ExitStack() as ending, _stop_request() as asked_to_stop:
        ending.callback(records.close)
        ending.callback(checkpoints.close)
        state, bookmark = trainer.init(seed), Bookmark(0, 0, 0, fingerprint)
        if checkpoints.iterations:
            state, bookmark = checkpoints.restore(state)
            state = trainer.restore(state, seed)
        records.open(bookmark, per_iteration)
        clock, evaluated = _Clock(), None
        for iteration in range(bookmark.iteration + 1, schedule.iterations + 1):
            steps = iteration * per_iteration
            state, metrics = trainer.iterate(state)
            numbers = to_numbers(trainer, metrics) | {RATE: clock.rate(per_iteration)}
            records.log("training", numbers, steps)
            _check_broken(numbers, checkpoints)

            last, stop, facts = iteration == schedule.iterations, asked_to_stop(iteration), None
            if last or iteration % schedule.evaluate_every == 0:
                facts = evaluated = evaluate(state)
                records.evaluation(steps, facts)
            report(Report(steps, schedule.iterations * per_iteration, numbers, evaluated))
            if last or stop or facts or iteration % schedule.checkpoint_every == 0:
                bookmark = Bookmark(iteration, steps, records.position, fingerprint)
                score = None if facts is None else float(facts[schedule.best_by])
                checkpoints.save(state, bookmark, score)
            if stop and not last:
                return state, Ending.INTERRUPTED
            clock.start()
        return state, Ending.FINISHED


def to_numbers(trainer: Trainer, metrics: Mapping[str, Array]) -> dict[str, float | int]:
    """Return metrics as Python numbers, in the order of the trainer's columns."""
    found = jax.device_get(dict(metrics))
    return {name: found[name].item() for name in trainer.metric_names if name in found}


class _Clock:
    """Steps per second of training alone, without evaluating and saving."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._start = time.perf_counter()

    def rate(self, steps: int) -> float:
        return steps / (time.perf_counter() - self._start)


class _Records:
    """Files of a run except its checkpoints, and the user's loggers. Only the first process writes them."""

    def __init__(self, folder: pathlib.Path, loggers: Sequence[Logger]):
        self._folder, self._loggers = folder, list(loggers)
        self._table: CSVLogger | None = None

    def open(self, bookmark: Bookmark, steps_per_iteration: int) -> None:
        if jax.process_index() > 0:
            self._loggers = []
            return
        (self._folder / "evaluations").mkdir(exist_ok=True)
        path, kept = self._folder / "metrics.csv", bookmark.metrics_position
        self._table = CSVLogger(path, steps_per_iteration, kept)
        timings = TimingsLogger(self._folder / "timings.csv")
        board = TensorBoardLogger(self._folder / "tensorboard", bookmark.steps)
        self._loggers = [self._table, timings, board, *self._loggers]

    @property
    def position(self) -> int:
        """Length of the metrics file, in bytes."""
        return 0 if self._table is None else self._table.position

    def log(self, group: str, numbers: Mapping[str, float], steps: int) -> None:
        for logger in self._loggers:
            logger.log(group, numbers, steps)

    def evaluation(self, steps: int, facts: Mapping[str, Any]) -> None:
        if self._table is None:
            return
        text = json.dumps(facts, indent=1)
        write_whole(self._folder / "evaluations" / f"{steps:012d}.json", text.encode())
        shown = ("success", "loops", "returns", "prefers")
        numbers = {name: facts[name] for name in shown if name in facts}
        if "train" in facts:
            numbers["train_success"] = facts["train"]["success"]
        self.log("evaluation", numbers, steps)

    def close(self) -> None:
        with ExitStack() as all_of_them:
            for logger in self._loggers:
                all_of_them.callback(logger.close)


def _check_broken(numbers: Mapping[str, float], checkpoints: Checkpoints) -> None:
    in_a_row = numbers.get("skipped_in_a_row", 0)
    if in_a_row < MAX_SKIPPED_IN_A_ROW:
        return
    checkpoints.wait()
    there = checkpoints.iterations
    good = (
        f"the last good checkpoint is that of iteration {there[-1]}"
        if there
        else "there is no checkpoint yet"
    )
    raise BrokenTrainingError(
        f"the loss or its gradient was not finite in the last {in_a_row:.0f} updates, and none was taken: "
        f"training has broken down; {good}. Lower the learning rate, or look at rewards and observations"
    )


@contextmanager
def _stop_request() -> Iterator[Callable[[int], bool]]:
    """Yield a function that tells whether SIGTERM or Ctrl-C came; a second Ctrl-C stops immediately.

    With several processes, JAX itself catches SIGTERM and lets all agree on the iteration to stop after.
    """
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        yield multihost_utils.reached_preemption_sync_point
        return

    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda iteration: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
