"""How long work shows that it goes on: by a bar on a terminal, in the log of a job by a line a minute."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID

SECONDS = 60
"""Between two lines, where there is no terminal."""


class Bar(Progress):
    """A bar of Rich's, on the error stream.

    Args:
      columns: what it shows. A line of a log has all of them but the bar itself.
      options: as of Rich's `Progress`.
    """

    def __init__(self, *columns: ProgressColumn, **options: Any):
        options = {"console": Console(stderr=True)} | options
        super().__init__(*columns, **options)
        self._told = self.get_time()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Say how far it is."""
        super().update(task_id, **changes)
        now = self.get_time()
        if self.disable or self.console.is_terminal or now < self._told + SECONDS:
            return
        self._told = now
        (task,) = [one for one in self.tasks if one.id == task_id]
        shown = [
            one for one in self.columns if isinstance(one, ProgressColumn) and type(one) is not BarColumn
        ]
        line = "  ".join(str(column(task)) for column in shown)
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
