"""Progress bars: on a terminal a bar, in a log file a line per minute."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID

SECONDS = 60
"""Between two lines of a log."""


class Bar(Progress):
    """A progress bar of Rich on the error stream.

    Args:
      columns: columns of the bar. A line of a log has all of them except the bar itself.
      options: options of Rich's `Progress`.
    """

    def __init__(self, *columns: ProgressColumn, **options: Any):
        options = {"console": Console(stderr=True)} | options
        super().__init__(*columns, **options)
        self._last_line = self.get_time()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Update a task, and print a line if there is no terminal."""
        super().update(task_id, **changes)
        now = self.get_time()
        if self.disable or self.console.is_terminal or now < self._last_line + SECONDS:
            return
        self._last_line = now
        (task,) = [one for one in self.tasks if one.id == task_id]
        shown = [
            one for one in self.columns if isinstance(one, ProgressColumn) and type(one) is not BarColumn
        ]
        line = "  ".join(str(column(task)) for column in shown)
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
