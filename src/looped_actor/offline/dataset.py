"""Datasets in OGBench's format: episodes of states and actions, one after the other, in an npz file.

A file holds every state of an episode, including the last one, which `terminals` marks. `Dataset` has the
same layout, which OGBench calls compact: the state after row t is row t + 1, and nothing is stored twice.
"""

import math
import os
import pathlib
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int, Shaped
from numpy.lib import format as npy

from looped_actor.utils.checks import shown
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import MOST_TENSOR_BYTES, FileError, file_checksum, reading, writing

_CHECKED_ROWS = 100_000
"""Rows checked at a time: datasets on disk may be larger than memory."""


class DatasetError(FileError):
    """Invalid dataset, with the reason."""


class EpisodeIndex(NamedTuple):
    """Rows of a dataset's transitions."""

    transition_rows: Int[Array | np.ndarray, " m"]
    """Rows at which a transition starts: all but the last of every episode."""
    last_rows: Int[Array | np.ndarray, " n"]
    """For each row, the row at which the last transition of its episode starts."""


@dataclass(frozen=True)
class Dataset:
    """Episodes, one after the other. States and actions may be mapped from a file."""

    states: Shaped[np.ndarray, "n s"]
    actions: Shaped[np.ndarray, "n a"]
    index: EpisodeIndex

    @property
    def transitions(self) -> int:
        """Number of transitions."""
        return len(self.index.transition_rows)

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.states) - self.transitions


def open_dataset(path: str | os.PathLike, on_disk: bool = False) -> Dataset:
    """Open a dataset in OGBench's format, regular or compressed.

    Args:
      path: an npz file with observations, actions and terminals.
      on_disk: leave states and actions on disk. The file is unpacked once, into a folder next to it.
    """
    path = pathlib.Path(path)
    with reading("dataset as OGBench writes it", path, lambda problem: DatasetError(f"{path}: {problem}")):
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            for key in ("observations", "actions", "terminals"):
                if key not in names:
                    raise DatasetError(f"{path}: there is no {key!r} in it; it has {shown(sorted(names))}")
                _check_size(archive, archive.getinfo(f"{key}.npy"))
            if on_disk:
                states, actions = _map_arrays(path, archive, "observations", "actions")
            else:
                states, actions = file["observations"], file["actions"]
            terminals = file["terminals"]
        return _make_dataset(states, actions, terminals, str(path))


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
    """Convert what `ogbench.load_dataset` returns.

    Args:
      dataset: its arrays, regular (with next_observations) or compact (with valids).
      name: of the dataset, for error messages.
    """
    wanted = {"observations", "actions", "terminals" if "next_observations" in dataset else "valids"}
    if not wanted <= set(dataset):
        raise DatasetError(f"{name}: there is no {sorted(wanted - set(dataset))[0]} in it")
    states, actions = dataset["observations"], dataset["actions"]
    if "next_observations" not in dataset:
        # Compact datasets mark the last two rows of an episode as terminal; only the last one is not valid.
        return _make_dataset(states, actions, np.asarray(dataset["valids"]) == 0, name)
    ends = np.flatnonzero(dataset["terminals"]) + 1
    states = np.insert(states, ends, dataset["next_observations"][ends - 1], axis=0)
    actions = np.insert(actions, ends, actions[ends - 1], axis=0)
    terminals = np.zeros(len(states), bool)
    terminals[ends + np.arange(len(ends))] = True
    return _make_dataset(states, actions, terminals, name)


def _make_dataset(states: np.ndarray, actions: np.ndarray, terminals: np.ndarray, name: str) -> Dataset:
    """Check the arrays of a dataset, and index its episodes."""
    rows = len(states)
    for key, array in (("observations", states), ("actions", actions)):
        if array.ndim != 2 or array.dtype.kind != "f":
            raise DatasetError(
                f"{name}: {key} are {array.dtype}{list(array.shape)}; they must be rows of real numbers"
            )
        for first in range(0, rows, _CHECKED_ROWS):
            finite = np.isfinite(array[first : first + _CHECKED_ROWS]).all(axis=1)
            if not finite.all():
                raise DatasetError(
                    f"{name}: {key} of row {first + int(np.argmin(finite))} are not all finite"
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
    terminal = terminals.astype(bool)
    if rows == 0 or not terminal[-1]:
        raise DatasetError(f"{name}: the last row does not end its episode: the file was cut short")
    ends = np.flatnonzero(terminal)
    lengths = np.diff(ends, prepend=-1)
    if (lengths < 2).any():
        raise DatasetError(
            f"{name}: the episode that ends in row {ends[np.argmin(lengths)]} has no transition"
        )
    index = EpisodeIndex(
        transition_rows=np.flatnonzero(~terminal).astype(np.int32),
        last_rows=np.repeat(ends - 1, lengths).astype(np.int32),
    )
    return Dataset(states, actions, index)


def _map_arrays(path: pathlib.Path, archive: zipfile.ZipFile, *names: str) -> list[np.ndarray]:
    """Map arrays of an npz file into memory.

    NumPy can map files, but not members of an archive. They are unpacked next to it, under the archive's
    checksum, so that another file of the same name is unpacked again.
    """
    key = file_checksum(path)[:16]
    files = [_unpack(path, archive, archive.getinfo(f"{name}.npy"), key) for name in names]
    return [np.load(file, mmap_mode="r", allow_pickle=False) for file in files]


def _unpack(path: pathlib.Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, key: str) -> pathlib.Path:
    unpacked = path.with_name(path.stem + ".unpacked") / f"{key}-{member.filename}"
    if not unpacked.exists() or unpacked.stat().st_size != member.file_size:
        with archive.open(member) as packed, writing(unpacked) as unfinished, unfinished.open("wb") as file:
            shutil.copyfileobj(packed, file, 2**20)
    return unpacked
