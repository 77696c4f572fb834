"""Options that several commands share, and the progress bar."""

import functools
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from looped_actor.names import CONFIG_FILE
from looped_actor.utils.errors import UserError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from looped_actor.policy.policy import Policy
    from looped_actor.runs.run import CustomCode
    from looped_actor.utils.processes import Pool

Folder = Annotated[pathlib.Path, tyro.conf.Positional]
Folders = Annotated[tuple[pathlib.Path, ...], tyro.conf.Positional]
Json = Annotated[bool, tyro.conf.arg(name="json")]
Changes = Annotated[tuple[str, ...], tyro.conf.arg(name="set")]


@dataclass(frozen=True)
class DeviceOptions:
    """Devices."""

    devices: int | None = None
    """Number of devices per process. Default: all accelerators, or one per CPU core (at most 8)."""

    def start(self) -> "Mesh":
        """Return the mesh of the command. Must come before any other use of JAX."""
        from looped_actor.training.sharding import start_devices

        several = ("coordinator", "processes", "process")
        return start_devices(self.devices, *(getattr(self, name, None) for name in several))


@dataclass(frozen=True)
class ClusterOptions(DeviceOptions):
    """Devices of one or several hosts."""

    coordinator: str | None = None
    """Several processes: host:port of the first, or auto on a cluster that JAX knows."""
    processes: int | None = None
    """Several processes: their number."""
    process: int | None = None
    """Several processes: the index of this one, counted from 0."""


@dataclass(frozen=True)
class CodeOptions:
    """Code of a custom environment."""

    code: pathlib.Path | None = None
    """Custom environment: a Python file with `env`, `build` and, to train, `config`. It is executed."""

    def check(self) -> None:
        """Raise an error if the file is not there, before JAX is imported, which takes seconds."""
        if self.code is not None and not self.code.is_file():
            raise UserError(f"--code {self.code}: there is no such Python file")

    @functools.cached_property
    def module(self) -> Any:
        """The file as a module, or None."""
        from looped_actor.runs.custom import read_code

        return None if self.code is None else read_code(self.code)

    @property
    def custom(self) -> "CustomCode | None":
        """Build function and environment of the file, or None."""
        from looped_actor.runs.run import CustomCode

        module = self.module
        return None if module is None else CustomCode(module.build, module.env)


@dataclass(frozen=True)
class CheckpointOptions:
    """Checkpoint of a run."""

    checkpoint: str | None = None
    """Runs: best, latest, or an iteration. Default: the finished policy, or else latest."""
    custom = None

    def check_policies(self, *folders: pathlib.Path) -> None:
        """Raise an error if one does not exist, before JAX is imported, which takes seconds."""
        from looped_actor.policy.pretrained import check_name

        for folder in folders:
            check_name(folder)

    def policy(self, folder: pathlib.Path) -> "Policy":
        """Load the policy of a run, or one that a run has written."""
        return self.policies([folder])[0]

    def policies(self, folders: Sequence[pathlib.Path]) -> "list[Policy]":
        """Load several policies."""
        from looped_actor.runs.load import policy_at

        return [policy_at(folder, self.checkpoint, self.custom) for folder in folders]


@dataclass(frozen=True)
class PolicyOptions(CodeOptions, CheckpointOptions):
    """Checkpoint of a run, and code of a custom environment."""

    def check_policies(self, *folders: pathlib.Path) -> None:
        """Raise an error if one does not exist, or if the code does not."""
        super().check_policies(*folders)
        self.check()


@dataclass(frozen=True)
class WorkerOptions:
    """Worker processes."""

    workers: int | None = None
    """Number of processes. Default: one per core."""
    ray: str | None = None
    """Use a Ray cluster instead: its address, auto, or local to start one here."""

    @contextmanager
    def pool(self) -> Iterator["int | Pool"]:
        """Yield a number of local processes, or the workers of a Ray cluster."""
        from looped_actor.utils.processes import RayTasks, default_workers

        if self.ray is None:
            yield self.workers or default_workers()
            return
        with RayTasks(self.ray, self.workers, reuse=True) as pool:
            yield pool


def check_runs(*folders: pathlib.Path) -> None:
    """Raise an error if one is not the folder of a run, before JAX is imported, which takes seconds."""
    for folder in folders:
        if not (folder / CONFIG_FILE).is_file():
            raise UserError(f"{folder} is not the folder of a run: there is no {CONFIG_FILE} in it")


def check_files(*files: pathlib.Path | None, hint: str = "") -> None:
    """Raise an error if one of these files is not there, before JAX is imported, which takes seconds."""
    for file in files:
        if file is not None and not file.exists():
            raise UserError(f"{file}: there is no such file{hint}")


def changes_of(options: tuple[str, ...]) -> dict[str, Any]:
    """Return the changes of `--set FIELD=VALUE` options."""
    changes = {}
    for one in options:
        field, equals, text = one.partition("=")
        if not equals:
            raise UserError(f"--set {one}: write FIELD=VALUE, as algorithm.learning_rate=3e-4")
        try:
            changes[field] = json.loads(text)
        except (ValueError, RecursionError):
            changes[field] = text
    return changes


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar with rate and time left; yield a function that takes the done and total counts."""
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    from looped_actor.utils.progress import Bar

    class Rate(ProgressColumn):
        def render(self, task) -> Text:
            return Text(f"{task.completed / task.elapsed:,.0f}/s" if task.elapsed else "")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    with Bar(*columns) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
