"""Checkpoints by Orbax: written beside the training, whole or not at all, the newest few and the best kept.

A state is stored as a flat table of named arrays, so that a checkpoint of another net, another optimiser
or another number of environments is recognised by its names and shapes, and nothing in it executes.
"""

import contextlib
import errno
import logging
import pathlib
import shutil
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from looped_actor.checks import brief, shown
from looped_actor.codec import from_json
from looped_actor.files import FileError, checksum_of
from looped_actor.weights import named_leaves

FORMAT = "looped-actor checkpoint 1"


class CheckpointError(FileError):
    """A checkpoint that cannot be resumed, and what to do about it."""


@dataclass(frozen=True)
class Bookmark:
    """Where a run was when its checkpoint was written."""

    iteration: int
    steps: int
    metrics_position: int
    """Bytes of the metrics file."""
    fingerprint: str
    """Fingerprint of the configuration."""
    format: str = FORMAT


class Checkpoints:
    """The checkpoints of a run, by iteration.

    Args:
      folder: where they lie.
      fingerprint: of the run's configuration; a checkpoint of another is refused.
      keep: how many of the newest to keep.
      read_only: look at them only; another process may be writing.
      best_by: the name of the score by which the best is kept.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        fingerprint: str,
        keep: int = 3,
        read_only: bool = False,
        best_by: str = "success",
    ):
        _quiet()
        self.folder, self.fingerprint, self._best_by = folder.absolute(), fingerprint, best_by
        if read_only and not folder.is_dir():
            raise CheckpointError(f"{folder}: there is no checkpoint here yet")
        newest, best = (
            LatestN(keep),
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
        """Begin to write a checkpoint; training may go on meanwhile."""
        named = named_leaves(state)
        told = asdict(bookmark) | {"checksum": _checksum(named)}
        with self._writing():
            _check_room(self.folder, sum(leaf.nbytes for leaf in named.values()))
            self._manager.save(
                bookmark.iteration,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(named),
                    bookmark=ocp.args.JsonSave(told),
                ),
                metrics=None if score is None else {self._best_by: score},
                force=True,
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What goes wrong in writing, now or since it was begun, becomes one clear error."""
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
        """A state and where it stood: the newest, or that of an iteration.

        Args:
          like: a state of the same run, real or abstract: names, shapes, types and where arrays lie.
          iteration: which checkpoint. Default: the newest.
        """
        chosen = self._chosen(iteration)
        wanted = named_leaves(like)
        self._compare(chosen, wanted)
        found, bookmark = self._read(chosen, {name: _abstract(leaf) for name, leaf in wanted.items()})
        return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in wanted]), bookmark

    def read(self, iteration: int | None = None) -> tuple[dict[str, Any], Bookmark]:
        """All arrays of a checkpoint by name, on this process's first device, and where the run stood."""
        chosen = self._chosen(iteration)
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        with _damage(self.folder / str(chosen), self.iterations):
            there = self._manager.item_metadata(chosen)["state"]
            target = {
                name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
                for name, leaf in there.items()
            }
        return self._read(chosen, target)

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
            if unknown or said.get("format") != FORMAT:
                what = f"format {shown(said.get('format'))}" + (
                    f", fields {shown(unknown)}" if unknown else ""
                )
                raise CheckpointError(
                    f"{place}: this checkpoint was written by a newer version of looped-actor ({what}); "
                    f"this one reads {FORMAT!r}: install the newer one to go on"
                )
            bookmark = from_json(Bookmark, said, "its bookmark")
        if bookmark.fingerprint != self.fingerprint:
            raise CheckpointError(
                f"{place}: this checkpoint was written by a run with another configuration; "
                "config.json was changed since, or the checkpoint was copied from elsewhere"
            )
        return bookmark, checksum

    def _compare(self, chosen: int, wanted: dict[str, Any]) -> None:
        place = self.folder / str(chosen)
        with _damage(place, self.iterations):
            there = self._manager.item_metadata(chosen)["state"]
            there = {name: tuple(leaf.shape) for name, leaf in there.items()}
        shapes = {name: tuple(leaf.shape) for name, leaf in wanted.items()}
        for name in [*shapes, *there]:
            if shapes.get(name) != there.get(name):
                raise CheckpointError(
                    f"{place}: {name} is {there.get(name, 'missing')} in the checkpoint and "
                    f"{shapes.get(name, 'missing')} in this run: it belongs to another one"
                )

    def wait(self) -> None:
        """Until everything is written."""
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait, then release what is held."""
        with self._writing():
            self._manager.close()


def _quiet() -> None:
    """Orbax warns of every save without an evaluation, and tells of an error before and after raising it."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(_not_of_orbax)  # a filter is added once, however often it is


def _not_of_orbax(record: logging.LogRecord) -> bool:
    trace = record.exc_info[2] if record.exc_info else None
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]
    return not any("orbax" in place for place in (record.getMessage(), *frames))


def _check_room(folder: pathlib.Path, wanted: int) -> None:
    """Before Orbax begins: its threads do not end quietly once the disk is full under them."""
    if (free := shutil.disk_usage(folder).free) < wanted:
        raise OSError(errno.ENOSPC, f"it takes {wanted:,} bytes, and {free:,} are free")


@contextlib.contextmanager
def _damage(place: pathlib.Path, there: list[int]):
    """Whatever a library makes of a damaged file becomes one clear error."""
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
    """Over all arrays; none where a process holds only a part of them."""
    for leaf in named.values():
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            return None
    return checksum_of(named)
