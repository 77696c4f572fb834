"""The loop that every training run goes through: iterate, write down, evaluate, save, stop cleanly."""

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

from looped_actor.errors import UserError
from looped_actor.files import write_whole
from looped_actor.training.checkpoint import Bookmark, Checkpoints
from looped_actor.training.metrics import RATE, CSVLogger, Logger, TensorBoardLogger, TimingsLogger
from looped_actor.training.trainer import Trainer

CHECKPOINTS_FOLDER = "checkpoints"


@dataclass(frozen=True)
class Schedule:
    """What is done when, in iterations."""

    iterations: int
    evaluate_every: int
    checkpoint_every: int
    keep_checkpoints: int = 3
    """How many of the newest; the best one is kept besides."""
    max_skipped_in_a_row: int = 20
    """Updates in a row with a loss or gradient that is not finite, after which the run gives up."""
    best_by: str = "success"
    """Which fact of an evaluation tells the best checkpoint."""


class Report(NamedTuple):
    """What a progress callback is told after every iteration."""

    steps: int
    all_steps: int
    numbers: Mapping[str, float]
    """Those of metrics.csv, and `steps_per_second`. NaN where there is none: no episode ended, say."""
    evaluated: Mapping[str, Any] | None
    """Facts of the last evaluation; None before the first."""


class Ending(Enum):
    """Why a run stopped."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"


class BrokenTrainingError(UserError):
    """Too many updates in a row were not finite."""


Evaluate = Callable[[Any], Mapping[str, Any]]
"""A state to facts about it that JSON can hold; `success` and `loops` among them."""


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
    """Train from the newest checkpoint in `folder`, or from the start where there is none.

    Returns the last state. On SIGTERM or Ctrl-C the iteration under way is finished and saved. Raises
    `BrokenTrainingError` where learning does not recover from numbers that are not finite; the last good
    checkpoint is kept.
    """
    checkpoints = Checkpoints(
        folder / CHECKPOINTS_FOLDER, fingerprint, schedule.keep_checkpoints, best_by=schedule.best_by
    )
    records, per_iteration = _Records(folder, loggers), trainer.steps_per_iteration
    with ExitStack() as ending, _stop_request() as asked_to_stop:
        ending.callback(records.close)
        ending.callback(checkpoints.close)
        state, bookmark = trainer.begin(seed), Bookmark(0, 0, 0, fingerprint)
        if checkpoints.iterations:
            state, bookmark = checkpoints.restore(state)
            state = trainer.collector.resume(state, seed)
        records.open(bookmark, per_iteration)
        clock, evaluated = _Clock(), None
        for iteration in range(bookmark.iteration + 1, schedule.iterations + 1):
            steps = iteration * per_iteration
            state, metrics = trainer.iterate(state)
            numbers = as_numbers(jax.device_get(metrics))
            numbers |= {RATE: clock.rate(per_iteration)}
            records.log("training", numbers, steps)
            _check(numbers, schedule, checkpoints)

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


def as_numbers(metrics: Any) -> dict[str, float | int]:
    """The numbers of a named tuple, those of tuples within it among them, by name; of a row, also counted."""
    numbers = {}
    for name, value in metrics._asdict().items():
        if hasattr(value, "_asdict"):
            numbers |= as_numbers(value)
        elif value is not None and value.ndim:
            numbers |= {f"{name}_{number}": each.item() for number, each in enumerate(value, start=1)}
        elif value is not None:
            numbers[name] = value.item()
    return numbers


class _Clock:
    """Steps per second of training alone: evaluating and saving do not count."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._start = time.perf_counter()

    def rate(self, steps: int) -> float:
        return steps / (time.perf_counter() - self._start)


class _Records:
    """All files of a run but its checkpoints, and the user's loggers; the first process has them."""

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
        """Bytes of the metrics file."""
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


def _check(numbers: Mapping[str, float], schedule: Schedule, checkpoints: Checkpoints) -> None:
    in_a_row = numbers.get("skipped_in_a_row", 0)
    if in_a_row < schedule.max_skipped_in_a_row:
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
    """Whether the run was asked to stop, by SIGTERM or Ctrl-C; a second Ctrl-C stops at once.

    Of several processes, JAX itself catches SIGTERM and lets all agree on the iteration to stop after.
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
