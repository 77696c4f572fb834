"""What several commands share: options, the progress bar, and where batches of work are done."""

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
    from looped_actor.runs.run import Own
    from looped_actor.utils.processes import Pool

Folder = Annotated[pathlib.Path, tyro.conf.Positional]
Folders = Annotated[tuple[pathlib.Path, ...], tyro.conf.Positional]
Json = Annotated[bool, tyro.conf.arg(name="json")]
Changes = Annotated[tuple[str, ...], tyro.conf.arg(name="set")]


@dataclass(frozen=True)
class DeviceOptions:
    """What to compute on."""

    devices: int | None = None
    """Devices per process. Default: all accelerators, or one per CPU core (at most 8)."""

    def start(self) -> "Mesh":
        """The mesh of the command, before any other use of JAX."""
        from looped_actor.training.sharding import start_devices

        several = ("coordinator", "processes", "process")
        return start_devices(self.devices, *(getattr(self, name, None) for name in several))


@dataclass(frozen=True)
class ClusterOptions(DeviceOptions):
    """What to compute on, over several hosts."""

    coordinator: str | None = None
    """Several processes: host:port of the first, or auto on a cluster that JAX knows."""
    processes: int | None = None
    """How many processes there are."""
    process: int | None = None
    """Which one this is, counted from 0."""


@dataclass(frozen=True)
class CodeOptions:
    """The code of a world of your own."""

    code: pathlib.Path | None = None
    """Your own environment: a Python file with `env`, `build` and, to train, `config`. It is executed."""

    def check(self) -> None:
        """Raise an error if the file is not there, before JAX is imported, which takes seconds."""
        if self.code is not None and not self.code.is_file():
            raise UserError(f"--code {self.code}: there is no such Python file")

    @functools.cached_property
    def module(self) -> Any:
        """The file as a module; None where there is none."""
        from looped_actor.runs.custom import read_code

        return None if self.code is None else read_code(self.code)

    @property
    def own(self) -> "Own | None":
        """What of the world is code."""
        from looped_actor.runs.run import Own

        module = self.module
        return None if module is None else Own(module.build, module.env)


@dataclass(frozen=True)
class CheckpointOptions:
    """Which policy of a folder."""

    checkpoint: str | None = None
    """Runs: best, latest, or an iteration. Default: the finished policy, or else latest."""
    own = None

    def check_policies(self, *folders: pathlib.Path) -> None:
        """Raise an error if one of them names nothing, before JAX is imported, which takes seconds."""
        from looped_actor.policy.pretrained import check_name

        for folder in folders:
            check_name(folder)

    def policy(self, folder: pathlib.Path) -> "Policy":
        """The policy of a run, or one that a run has written."""
        return self.policies([folder])[0]

    def policies(self, folders: Sequence[pathlib.Path]) -> "list[Policy]":
        """The same for several."""
        from looped_actor.runs.load import policy_at

        own = self.own
        return [policy_at(folder, self.checkpoint, own) for folder in folders]


@dataclass(frozen=True)
class PolicyOptions(CodeOptions, CheckpointOptions):
    """Which policy of a folder, which may be of a world of your own."""

    def check_policies(self, *folders: pathlib.Path) -> None:
        """Raise an error if one of them names nothing, or if the code is not there."""
        super().check_policies(*folders)
        self.check()


@dataclass(frozen=True)
class WorkerOptions:
    """Where batches of work are done."""

    workers: int | None = None
    """Processes. Default: one per core."""
    ray: str | None = None
    """Use a Ray cluster instead: its address, auto, or local to start one here."""

    @contextmanager
    def pool(self) -> Iterator["int | Pool"]:
        """A number of local processes, or the workers of a Ray cluster."""
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
    """What `--set FIELD=VALUE` asks for."""
    changes = {}
    for one in options:
        field, equals, text = one.partition("=")
        if not equals:
            raise UserError(f"--set {one}: write FIELD=VALUE, as ppo.learning_rate=3e-4")
        try:
            changes[field] = json.loads(text)
        except (ValueError, RecursionError):
            changes[field] = text
    return changes


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal with rate and time left; told how much is done, and of how much."""
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
