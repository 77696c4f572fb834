"""Datasets in OGBench's format: episodes of states and actions, one after the other, in an npz file.

A file holds every state of an episode, the last one too; `terminals` marks the last. What is kept here is
the same (OGBench calls it compact): the state after row t is row t + 1, and nothing is stored twice.
"""

import math
import os
import pathlib
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int, Shaped
from numpy.lib import format as npy

from looped_actor.utils.checks import shown
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import MOST_TENSOR_BYTES, FileError, file_checksum, reading, writing

_ROWS_AT_ONCE = 100_000


class DatasetError(FileError):
    """A dataset that cannot be learned from, and why."""


class EpisodeIndex(NamedTuple):
    """Where the transitions of a dataset are."""

    begins: Int[Array | np.ndarray, " m"]
    """Rows from which a transition begins: all but the last of every episode."""
    last: Int[Array | np.ndarray, " n"]
    """For each row, the last row of its episode from which a transition begins."""


@dataclass(frozen=True)
class Dataset:
    """Episodes, one after the other. `states` and `actions` may be mapped from a file."""

    states: Shaped[np.ndarray, "n s"]
    actions: Shaped[np.ndarray, "n a"]
    index: EpisodeIndex

    @property
    def transitions(self) -> int:
        """How many there are to learn from."""
        return len(self.index.begins)

    @property
    def episodes(self) -> int:
        """How many there are."""
        return len(self.states) - self.transitions


def open_dataset(path: str | os.PathLike, mapped: bool = False) -> Dataset:
    """Open a file as OGBench writes it, regular or compressed.

    Args:
      path: an npz file with observations, actions and terminals.
      mapped: leave states and actions on disk. The file is unpacked beside itself for it, once.
    """
    path = pathlib.Path(path)
    with reading("dataset as OGBench writes it", path, lambda problem: DatasetError(f"{path}: {problem}")):
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:
            there = {name.removesuffix(".npy") for name in archive.namelist()}
            for key in ("observations", "actions", "terminals"):
                if key not in there:
                    raise DatasetError(f"{path}: there is no {key!r} in it; it has {shown(sorted(there))}")
                _check_size(archive, archive.getinfo(f"{key}.npy"))
            names = ("observations", "actions")
            if mapped:
                states, actions = _mapped(path, archive, names)
            else:
                states, actions = (file[name] for name in names)
            terminals = file["terminals"]
        return _checked(states, actions, terminals, str(path))


def _check_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise an error if an array announces more than there is, or unpacks to more than real data does."""
    with archive.open(member) as file:
        version = npy.read_magic(file)
        header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, dtype = header[version](file)
        announced = file.tell() + math.prod(shape) * dtype.itemsize
    if announced != member.file_size:
        raise UserError(f"{member.filename} announces {announced:,} bytes and has {member.file_size:,}")
    if member.file_size > MOST_TENSOR_BYTES or member.file_size > 2**30 + 100 * member.compress_size:
        raise UserError(f"{member.filename} unpacks to {member.file_size:,} bytes: no data is like that")


def from_ogbench(dataset: Mapping[str, np.ndarray], name: str = "dataset") -> Dataset:
    """What `ogbench.load_dataset` returns, regular (with next_observations) or compact (with valids)."""
    wanted = {"observations", "actions", "terminals" if "next_observations" in dataset else "valids"}
    if not wanted <= set(dataset):
        raise DatasetError(f"{name}: there is no {sorted(wanted - set(dataset))[0]} in it")
    states, actions = dataset["observations"], dataset["actions"]
    if "next_observations" not in dataset:
        # Compact marks the last two rows of an episode; the last is the one that is not valid.
        return _checked(states, actions, np.asarray(dataset["valids"]) == 0, name)
    ends = np.flatnonzero(dataset["terminals"]) + 1
    states = np.insert(states, ends, dataset["next_observations"][ends - 1], axis=0)
    actions = np.insert(actions, ends, actions[ends - 1], axis=0)
    terminals = np.zeros(len(states), bool)
    terminals[ends + np.arange(len(ends))] = True
    return _checked(states, actions, terminals, name)


def _checked(states: np.ndarray, actions: np.ndarray, terminals: np.ndarray, name: str) -> Dataset:
    rows = len(states)
    for what, array in (("observations", states), ("actions", actions)):
        if array.ndim != 2 or array.dtype.kind != "f":
            raise DatasetError(
                f"{name}: {what} are {array.dtype}{list(array.shape)}; they must be rows of real numbers"
            )
        for first in range(0, rows, _ROWS_AT_ONCE):
            finite = np.isfinite(array[first : first + _ROWS_AT_ONCE]).all(axis=1)
            if not finite.all():
                raise DatasetError(
                    f"{name}: {what} of row {first + int(np.argmin(finite))} are not all finite"
                )
    if terminals.ndim != 1 or terminals.dtype.kind not in "biuf":
        raise DatasetError(
            f"{name}: terminals are {terminals.dtype}{list(terminals.shape)}; one for each row"
        )
    if not len(states) == len(actions) == len(terminals):
        raise DatasetError(
            f"{name}: {len(states)} observations, {len(actions)} actions and {len(terminals)} terminals "
            "do not fit together"
        )
    if np.abs(actions).max(initial=0) > 1 + 1e-6:
        raise DatasetError(f"{name}: actions go beyond [-1, 1]")
    ends = terminals.astype(bool)
    if rows == 0 or not ends[-1]:
        raise DatasetError(f"{name}: the last row does not end its episode: the file was cut short")
    stops = np.flatnonzero(ends)
    lengths = np.diff(stops, prepend=-1)
    if (lengths < 2).any():
        raise DatasetError(
            f"{name}: the episode that ends in row {stops[np.argmin(lengths)]} has no transition"
        )
    last = np.repeat(stops - 1, lengths).astype(np.int32)
    return Dataset(states, actions, EpisodeIndex(np.flatnonzero(~ends).astype(np.int32), last))


def _mapped(path: pathlib.Path, archive: zipfile.ZipFile, names: Sequence[str]) -> list[np.ndarray]:
    """Arrays of an npz file, left on disk: NumPy maps files, and not what is inside of archives.

    They are unpacked into a folder beside it, under a name that has the file's checksum.
    """
    key = file_checksum(path)[:16]
    files = [_unpacked(path, archive, archive.getinfo(f"{name}.npy"), key) for name in names]
    return [np.load(file, mmap_mode="r", allow_pickle=False) for file in files]


def _unpacked(
    path: pathlib.Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, key: str
) -> pathlib.Path:
    whole = path.with_name(path.stem + ".unpacked") / f"{key}-{member.filename}"
    if not whole.exists() or whole.stat().st_size != member.file_size:
        with archive.open(member) as packed, writing(whole) as unfinished, unfinished.open("wb") as file:
            shutil.copyfileobj(packed, file, 2**20)
    return whole
