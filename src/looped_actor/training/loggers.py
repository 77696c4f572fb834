"""Loggers of training metrics: CSV, TensorBoard, Weights & Biases."""

import json
import math
import os
import pathlib
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from looped_actor.utils.errors import UserError


@runtime_checkable
class Logger(Protocol):
    """A destination of metrics, as in `looped_actor.train(..., loggers=[...])`."""

    def log(self, group: str, numbers: Mapping[str, float | int], steps: int) -> None:
        """Log numbers by name; `group` is "training" or "evaluation", `steps` the steps trained so far."""
        ...

    def close(self) -> None:
        """Release resources; called when the run ends or is interrupted."""
        ...


RATE = "steps_per_second"
"""The only metric of an iteration that differs between repetitions of a run."""


class TableFile:
    """A CSV file that can be truncated to an earlier position.

    Rows contain no time and no rate: a run that was interrupted and resumed writes the same bytes as one that
    was not. Numbers are written to the last digit.
    """

    def __init__(self, path: pathlib.Path, columns: Sequence[str], position: int = 0):
        """Open a file, and truncate it to `position`.

        Args:
          path: the file.
          columns: the header. A file that an older version began keeps its own columns.
          position: bytes to keep. 0: start a new file.
        """
        self.path, self.columns = path, tuple(columns)
        if position:
            size = path.stat().st_size if path.exists() else 0
            if size < position:
                raise UserError(
                    f"{path} has {size} bytes, and the checkpoint was written when it had {position}: "
                    "it was changed or cut since; put it back, or begin a new run"
                )
            os.truncate(path, position)
            with path.open() as file:
                self.columns = tuple(file.readline().rstrip("\n").split(","))
            if not set(self.columns) <= set(columns):
                raise UserError(f"{path}: its columns are not those of this run; begin a new one")
        else:
            path.write_text(",".join(self.columns) + "\n")
        self._file = path.open("a")
        self.position = path.stat().st_size

    def append(self, row: Mapping[str, float | int]) -> None:
        """Add a row; NaN becomes an empty cell."""
        line = ",".join(_exact(row[column]) for column in self.columns) + "\n"
        self._file.write(line)
        self._file.flush()
        self.position += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _exact(value: float | int) -> str:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return repr(value)


class CSVLogger:
    """Write the metrics of every iteration to one CSV file, exactly and without times.

    Args:
      path: the file.
      steps_per_iteration: environment or gradient steps of an iteration.
      position: bytes of the file to keep.
    """

    def __init__(self, path: pathlib.Path, steps_per_iteration: int, position: int = 0):
        self._path, self._per_iteration, self._position = path, steps_per_iteration, position
        self._table: TableFile | None = None

    @property
    def position(self) -> int:
        """Bytes written."""
        return self._position if self._table is None else self._table.position

    def log(self, group: str, numbers: Mapping[str, float | int], steps: int) -> None:
        """Add a row, if the group is "training"."""
        if group != "training":
            return
        exact = {name: value for name, value in numbers.items() if name != RATE}
        row = {"iteration": steps // self._per_iteration, "steps": steps, **exact}
        if self._table is None:
            self._table = TableFile(self._path, list(row), self._position)
        self._table.append(row)

    def close(self) -> None:
        """Close the file."""
        if self._table is not None:
            self._table.close()


class TimingsLogger:
    """Append the time at which each iteration ended. Rows of interrupted attempts stay in the file."""

    HEADER = "process_start,unix_time,steps,steps_per_second\n"

    def __init__(self, path: pathlib.Path):
        if not path.exists():
            path.write_text(self.HEADER)
        self._file = path.open("a")
        self._start = time.time()

    def log(self, group: str, numbers: Mapping[str, float | int], steps: int) -> None:
        """Add a row, if the group is "training"."""
        if group == "training":
            self._file.write(f"{self._start:.3f},{time.time():.3f},{steps},{numbers[RATE]:.3f}\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardLogger:
    """Write TensorBoard events, synchronously.

    `SummaryWriter` writes in a thread, which a full disk kills; training would then block on its queue.
    """

    SECONDS_BETWEEN_FLUSHES = 10

    def __init__(self, folder: pathlib.Path, first_step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog  # type: ignore  # made by protoc

        folder.mkdir(parents=True, exist_ok=True)
        self._writer, self._flushed = EventsWriter(str(folder / "events")), 0.0
        # Hide the events that an interrupted run wrote after its last checkpoint.
        self._write(first_step + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, group: str, numbers: Mapping[str, float | int], steps: int) -> None:
        """Log the finite numbers."""
        from tensorboardX.proto.summary_pb2 import Summary  # type: ignore

        values = [
            Summary.Value(tag=f"{group}/{name}", simple_value=value)
            for name, value in numbers.items()
            if math.isfinite(value)
        ]
        self._write(steps, summary=Summary(value=values))

    def _write(self, step: int, **what: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # type: ignore

        self._writer.write_event(Event(wall_time=time.time(), step=step, **what))
        if time.monotonic() - self._flushed > self.SECONDS_BETWEEN_FLUSHES:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbLogger:
    """Log to Weights & Biases. A resumed run continues the same W&B run.

    Set WANDB_MODE=offline to keep everything on this machine.

    Args:
      project: W&B project.
      folder: folder of the run.
      options: other arguments of `wandb.init`.
    """

    def __init__(self, project: str, folder: str | os.PathLike, **options: Any):
        import wandb

        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        id_file, config = folder / "wandb.txt", folder / "config.json"
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex + "\n")
        given = {"config": json.loads(config.read_text())} if config.exists() else {}
        about: dict[str, Any] = {"name": folder.resolve().name, "id": id_file.read_text().strip()}
        about |= {"resume": "allow", **given, **options}
        self._run = wandb.init(project=project, dir=str(folder), **about)
        self._run.define_metric("*", step_metric="steps")

    def log(self, group: str, numbers: Mapping[str, float | int], steps: int) -> None:
        """Log the finite numbers."""
        finite = {f"{group}/{name}": value for name, value in numbers.items() if math.isfinite(value)}
        self._run.log({"steps": steps, **finite})

    def close(self) -> None:
        """Send buffered metrics and end the W&B run."""
        self._run.finish()
