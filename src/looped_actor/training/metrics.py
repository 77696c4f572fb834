"""What a run writes down as it goes: exact rows for people and programs, and TensorBoard events."""

import math
import os
import pathlib
import time
from collections.abc import Mapping, Sequence


class TableFile:
    """A CSV file that can be cut back to an earlier moment.

    Rows hold no clock and no rate, so that a run which was interrupted and resumed leaves the same bytes
    as one that was not. Numbers are written in full: reading them gives back the very same.
    """

    def __init__(self, path: pathlib.Path, columns: Sequence[str], position: int = 0):
        """Open, cutting off what was written after `position`.

        Args:
          path: the file.
          columns: its header. A file that an older version began keeps the columns that it has.
          position: bytes to keep, as `position` told them; 0 begins anew.
        """
        self.path, self.columns = path, tuple(columns)
        if position:
            size = path.stat().st_size if path.exists() else 0
            if size < position:
                raise ValueError(
                    f"{path} has {size} bytes, and the checkpoint was written when it had {position}: "
                    "it was changed or cut since; put it back, or begin a new run"
                )
            os.truncate(path, position)
            with path.open() as file:
                self.columns = tuple(file.readline().rstrip("\n").split(","))
            if not set(self.columns) <= set(columns):
                raise ValueError(f"{path}: its columns are not those of this run; begin a new one")
        else:
            path.write_text(",".join(self.columns) + "\n")
        self._file = path.open("a")
        self.position = path.stat().st_size

    def append(self, row: Mapping[str, float | int]) -> None:
        """Add a row; what is not a number is left empty."""
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


class TimingsFile:
    """When each row of the metrics was written. Only added to: it tells of interruptions too."""

    HEADER = "process_start,unix_time,steps,steps_per_second\n"

    def __init__(self, path: pathlib.Path):
        if not path.exists():
            path.write_text(self.HEADER)
        self._file = path.open("a")
        self._start = time.time()

    def append(self, steps: int, rate: float) -> None:
        """Add a row."""
        self._file.write(f"{self._start:.3f},{time.time():.3f},{steps},{rate:.3f}\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Dashboard:
    """TensorBoard events."""

    def __init__(self, folder: pathlib.Path, first_step: int):
        from tensorboardX import SummaryWriter

        # What an interrupted run wrote beyond its checkpoint is hidden, not drawn twice.
        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1)

    def show(self, group: str, numbers: Mapping[str, float | int], steps: int) -> None:
        """Draw what is finite."""
        for name, value in numbers.items():
            if math.isfinite(value):
                self._writer.add_scalar(f"{group}/{name}", value, steps)

    def close(self) -> None:
        """Write what is still held back."""
        self._writer.close()
