"""Checkpoints by Orbax: written asynchronously and atomically; the newest few and the best are kept.

A state is stored as a flat table of named arrays, so that a checkpoint of another net, another optimizer or
another number of environments is recognised by its names and shapes, and loading executes nothing.
"""

import contextlib
import errno
import logging
import pathlib
import shutil
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from looped_actor.utils.checks import brief, shown
from looped_actor.utils.codec import from_json
from looped_actor.utils.files import FileError, checksum_of
from looped_actor.utils.tensors import named_leaves

FORMAT, FORMER_FORMAT = "looped-actor checkpoint 2", "looped-actor checkpoint 1"
FORMER_NAMES = {
    "players.memory.latent": "env_state.carry.latent",
    "players.memory.fresh": "env_state.carry.reset",
    "players.": "env_state.",
    "learner.optimiser.": "learner.opt_state.",
}
"""Prefixes of array names in the former format, with those of today; the first that fits counts."""
ADDED = "env_state.carry."
"""Arrays that the former format has only if latents are carried."""
KEEP_NEWEST = 3


class CheckpointError(FileError):
    """A checkpoint that cannot be resumed from."""


@dataclass(frozen=True)
class Bookmark:
    """Position of a run when a checkpoint was written."""

    iteration: int
    steps: int
    metrics_position: int
    """Length of the metrics file, in bytes."""
    fingerprint: str
    """Fingerprint of the configuration."""
    format: str = FORMAT


class Checkpoints:
    """The checkpoints of a run, by iteration.

    Args:
      folder: of the checkpoints.
      fingerprint: of the run's configuration; checkpoints of another are refused.
      read_only: do not write; another process may be writing.
      best_by: name of the score by which the best is kept.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        fingerprint: str,
        read_only: bool = False,
        best_by: str = "success",
    ):
        _quiet()
        self.folder, self.fingerprint, self._best_by = folder.absolute(), fingerprint, best_by
        if read_only and not folder.is_dir():
            raise CheckpointError(f"{folder}: there is no checkpoint here yet")
        newest, best = (
            LatestN(KEEP_NEWEST),
            BestN(
                get_metric_fn=lambda metrics: metrics[best_by], n=1, keep_checkpoints_without_metrics=False
            ),
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([newest, best]),
            best_fn=lambda metrics: metrics[best_by],
            cleanup_tmp_directories=not read_only,  # what a killed process left behind
            read_only=read_only,
            create=not read_only,
        )
        handlers = {"state": ocp.StandardCheckpointHandler(), "bookmark": ocp.JsonCheckpointHandler()}
        try:  # it reads what every checkpoint says of itself
            self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            raise CheckpointError(
                f"{folder}: a checkpoint in it is damaged ({brief(error)}); remove the newest, or all but "
                "one that is known to be good, and try again"
            ) from None

    def save(self, state: Any, bookmark: Bookmark, score: float | None = None) -> None:
        """Start to write a checkpoint, while training continues."""
        named = _stored_leaves(state)
        saved = asdict(bookmark) | {"checksum": _checksum(named)}
        with self._writing():
            _check_room(self.folder, sum(leaf.nbytes for leaf in named.values()))
            self._manager.save(
                bookmark.iteration,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(named),
                    bookmark=ocp.args.JsonSave(saved),
                ),
                metrics=None if score is None else {self._best_by: score},
                force=True,
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise one clear error for everything that goes wrong in writing, now or since it was started."""
        try:
            yield
        except Exception as error:
            raise OSError(f"{self.folder}: a checkpoint could not be written: {brief(error)}") from error

    @property
    def iterations(self) -> list[int]:
        """Iterations of the intact checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    @property
    def best(self) -> int | None:
        """The iteration of the checkpoint with the highest score, if any was evaluated."""
        return self._manager.best_step()

    def restore(self, like: Any, iteration: int | None = None) -> tuple[Any, Bookmark]:
        """Return the state of a checkpoint, and the position of the run.

        Args:
          like: the initial state of the same run: names, shapes, types and shardings.
          iteration: of the checkpoint. Default: the newest.
        """
        chosen = self._chosen(iteration)
        wanted, stored = _stored_leaves(like), self._stored(chosen)
        self._compare(chosen, wanted, stored)
        target = {stored[name].name: _abstract(leaf) for name, leaf in wanted.items() if name in stored}
        found, bookmark = self._read(chosen, target)
        restored = {_current_name(name): leaf for name, leaf in found.items()}
        leaves = [restored.get(name, leaf) for name, leaf in named_leaves(like).items()]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), bookmark

    def read(self, iteration: int | None = None) -> tuple[dict[str, Any], Bookmark]:
        """Return all arrays of a checkpoint by name, on this process's first device, and the position of the
        run."""
        chosen = self._chosen(iteration)
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        target = {
            leaf.name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
            for leaf in self._stored(chosen).values()
        }
        found, bookmark = self._read(chosen, target)
        return {_current_name(name): leaf for name, leaf in found.items()}, bookmark

    def _stored(self, chosen: int) -> dict[str, "_StoredArray"]:
        """Return the arrays of a checkpoint by their names of today."""
        with _damage(self.folder / str(chosen), self.iterations):
            there = self._manager.item_metadata(chosen)["state"]
            return {
                _current_name(name): _StoredArray(name, tuple(leaf.shape), leaf.dtype)
                for name, leaf in there.items()
            }

    def _chosen(self, iteration: int | None) -> int:
        there = self.iterations
        if not there:
            raise CheckpointError(f"{self.folder}: there is no checkpoint here yet; start a new run")
        chosen = there[-1] if iteration is None else iteration
        if chosen not in there:
            raise CheckpointError(f"{self.folder}: no checkpoint {chosen}; there are {there}")
        return chosen

    def _read(self, chosen: int, target: dict[str, Any]) -> tuple[dict[str, Any], Bookmark]:
        place, there = self.folder / str(chosen), self.iterations
        bookmark, checksum = self._bookmark(chosen, place)
        with _damage(place, there):
            found = self._manager.restore(
                chosen, args=ocp.args.Composite(state=ocp.args.StandardRestore(target))
            )["state"]
        if checksum is not None and checksum != _checksum(found):
            raise CheckpointError(_damaged(place, there, "its checksum does not match"))
        return found, bookmark

    def _bookmark(self, chosen: int, place: pathlib.Path) -> tuple[Bookmark, str | None]:
        with _damage(place, self.iterations):
            said = self._manager.restore(chosen, args=ocp.args.Composite(bookmark=ocp.args.JsonRestore()))
            said = dict(said["bookmark"])
            checksum = said.pop("checksum")
            unknown = sorted(said.keys() - {field.name for field in fields(Bookmark)})
            if unknown or said.get("format") not in (FORMAT, FORMER_FORMAT):
                what = f"format {shown(said.get('format'))}" + (
                    f", fields {shown(unknown)}" if unknown else ""
                )
                raise CheckpointError(
                    f"{place}: this checkpoint was written by a newer version of looped-actor ({what}); "
                    f"this one reads {FORMAT!r}: install the newer one to continue"
                )
            bookmark = from_json(Bookmark, said, "its bookmark")
        if bookmark.fingerprint != self.fingerprint:
            raise CheckpointError(
                f"{place}: this checkpoint was written by a run with another configuration; "
                "config.json was changed since, or the checkpoint was copied from elsewhere"
            )
        return bookmark, checksum

    def _compare(self, chosen: int, wanted: dict[str, Any], stored: dict[str, "_StoredArray"]) -> None:
        ours = {name: tuple(leaf.shape) for name, leaf in wanted.items()}
        theirs = {name: leaf.shape for name, leaf in stored.items()}
        if not any(name.startswith(ADDED) for name in theirs):
            ours = {name: shape for name, shape in ours.items() if not name.startswith(ADDED)}
        for name in [*ours, *theirs]:
            if ours.get(name) != theirs.get(name):
                raise CheckpointError(
                    f"{self.folder / str(chosen)}: {name} is {theirs.get(name, 'missing')} in the checkpoint "
                    f"and {ours.get(name, 'missing')} in this run: it belongs to another one"
                )

    def wait(self) -> None:
        """Wait until everything is written."""
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait until everything is written, and release resources."""
        with self._writing():
            self._manager.close()


class _StoredArray(NamedTuple):
    name: str
    """Name in the checkpoint."""
    shape: tuple[int, ...]
    dtype: Any


def _stored_leaves(state: Any) -> dict[str, Any]:
    """Return the arrays of a state that a checkpoint holds; Orbax stores no empty ones."""
    return {name: leaf for name, leaf in named_leaves(state).items() if leaf.size}


def _current_name(name: str) -> str:
    for former, current in FORMER_NAMES.items():
        if name.startswith(former):
            return current + name.removeprefix(former)
    return name


def _quiet() -> None:
    """Silence Orbax, which warns of every save without an evaluation and logs errors that it also raises."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(_not_of_orbax)  # a filter is added once, however often it is


def _not_of_orbax(record: logging.LogRecord) -> bool:
    trace = record.exc_info[2] if record.exc_info else None
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]
    return not any("orbax" in place for place in (record.getMessage(), *frames))


def _check_room(folder: pathlib.Path, wanted: int) -> None:
    """Raise an error before Orbax starts: its threads fail noisily once the disk is full."""
    if (free := shutil.disk_usage(folder).free) < wanted:
        raise OSError(errno.ENOSPC, f"it takes {wanted:,} bytes, and {free:,} are free")


@contextlib.contextmanager
def _damage(place: pathlib.Path, there: list[int]):
    """Raise one clear error for whatever a library makes of a damaged file."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(_damaged(place, there, brief(error))) from None


def _damaged(place: pathlib.Path, there: list[int], why: str) -> str:
    earlier = [str(step) for step in there if step < int(place.name)]
    remedy = f"delete this folder to resume from checkpoint {earlier[-1]}" if earlier else "start a new run"
    return f"{place}: this checkpoint is damaged ({why}); {remedy}"


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))


def _checksum(named: dict[str, Any]) -> str | None:
    """Return the checksum of all arrays; None if this process holds only a part of them."""
    for leaf in named.values():
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            return None
    return checksum_of(named)
