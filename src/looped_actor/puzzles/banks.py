"""Level banks: all levels of a split in one small file, opened by memory map.

A bank is a safetensors file, so nothing in it executes. `cells` holds two cells in a byte; further columns
hold numbers about each level, such as the length of its optimal solution. The header has the source and the
licence of the levels, and a checksum over itself and all data: a damaged file is refused.
"""

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import Array, Int, Shaped, UInt8

from looped_actor.puzzles.catalogue import game_named
from looped_actor.puzzles.game import Game
from looped_actor.puzzles.grid import Board, LevelError, check_size
from looped_actor.utils.codec import from_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import reading, write_whole

FORMAT = "looped-actor levels 1"
_CHUNK = 50_000
"""Levels that are unpacked together, which bounds memory."""


@dataclass(frozen=True)
class BankInfo:
    """Header of a bank."""

    game: str
    count: int
    """Number of levels."""
    height: int
    width: int
    source: str
    """Origin of the levels. For generated ones, the recipe that makes them again."""
    licence: str
    checksum: str = ""


@functools.partial(jax.tree_util.register_dataclass, data_fields=("packed",), meta_fields=("kinds", "shape"))
@dataclass(frozen=True)
class DeviceLevels:
    """The levels of a bank in device memory, still packed. A pytree: pass it into jitted functions."""

    packed: Any
    """UInt8[Array, "n bytes"]; a `jax.ShapeDtypeStruct` when a run is planned."""
    kinds: tuple[int, ...]
    """Cell sum of each code; see `Game.kinds`."""
    shape: tuple[int, int]
    """Height and width of every board."""

    @property
    def count(self) -> int:
        """Number of levels."""
        return self.packed.shape[0]

    def cells(self, index: Int[Array, ""]) -> UInt8[Array, "h w"]:
        """Return the board of one level, as cell sums."""
        codes = _unpack_codes(self.packed[index], jnp)[: self.shape[0] * self.shape[1]]
        return jnp.asarray(self.kinds, jnp.uint8)[codes].reshape(self.shape)


@dataclass(frozen=True)
class LevelBank:
    """An open bank."""

    info: BankInfo
    packed: UInt8[np.ndarray, "n bytes"]
    """Codes of all cells, two in a byte."""
    columns: Mapping[str, Shaped[np.ndarray, " n"]]
    """Numbers about each level."""
    name: str = "bank"
    """Name in error messages."""

    def __len__(self) -> int:
        return self.info.count

    def __repr__(self) -> str:
        info = self.info
        return f"LevelBank({self.name!r}, {info.count} levels of {info.game}, {info.height}x{info.width})"

    @property
    def game(self) -> Game:
        """The game of its levels."""
        return game_named(self.info.game, source=self.name)

    def cells(self, which: slice | np.ndarray) -> UInt8[np.ndarray, "n h w"]:
        """Return the boards of several levels, as cell sums."""
        codes = _unpack_codes(self.packed[which], np)[:, : self.info.height * self.info.width]
        kinds = np.full(16, 255, np.uint8)  # a code without a kind becomes an invalid cell
        kinds[: len(self.game.kinds)] = self.game.kinds
        return kinds[codes].reshape(-1, self.info.height, self.info.width)

    def board(self, index: int) -> Board:
        """Return one level."""
        if not 0 <= index < len(self):
            raise LevelError(f"no level {index}; there are {len(self)}, counted from 0", source=self.name)
        cells = self.cells(slice(index, index + 1))[0]
        return self.game.board.from_cells(cells, source=f"{self.name}, level {index}")

    def on_device(self, count: int | None = None) -> DeviceLevels:
        """Return the levels, or the first `count` of them, for environments in JAX.

        All levels of the bank are checked.
        """
        if not len(self):
            raise LevelError("there is no level in this bank", source=self.name)
        self.check()
        shape = (self.info.height, self.info.width)
        return DeviceLevels(jnp.asarray(self.packed[:count]), self.game.kinds, shape)

    def check(self) -> None:
        """Raise an error if any level is not a board of the game. In files from `write_bank`, all are."""
        for first in range(0, len(self), _CHUNK):
            ok = self.game.valid(self.cells(slice(first, first + _CHUNK)))
            if not ok.all():
                self.board(first + int(np.argmin(ok)))  # raises, and says what is wrong


def make_bank(
    game: Game,
    cells: UInt8[np.ndarray, "n h w"],
    *,
    source: str,
    licence: str,
    columns: Mapping[str, np.ndarray] | None = None,
    name: str = "bank",
) -> LevelBank:
    """Return a bank in memory, of boards as cell sums, or raise an error if one of them is not a board."""
    columns = dict(columns or {})
    count, height, width = cells.shape
    check_size(height, width, name)
    for column, values in columns.items():
        if len(values) != count:
            raise UserError(f"column {column!r} has {len(values)} values for {count} levels")
    codes = np.full(256, 15, np.uint8)
    codes[list(game.kinds)] = np.arange(len(game.kinds))
    packed = np.empty((count, (height * width + 1) // 2), np.uint8)
    for first in range(0, count, _CHUNK):
        flat = codes[cells[first : first + _CHUNK].reshape(-1, height * width)]
        if flat.shape[1] % 2:
            flat = np.pad(flat, ((0, 0), (0, 1)))
        packed[first : first + _CHUNK] = flat[:, ::2] << 4 | flat[:, 1::2]
    info = BankInfo(game=game.name, count=count, height=height, width=width, source=source, licence=licence)
    info = replace(info, checksum=_checksum(info, {"cells": packed, **columns}))
    bank = LevelBank(info=info, packed=packed, columns=columns, name=name)
    bank.check()
    return bank


def write_bank(bank: LevelBank, path: str | os.PathLike) -> None:
    """Write a bank. The file appears only when it is complete."""
    tensors = {"cells": np.ascontiguousarray(bank.packed), **bank.columns}
    header = asdict(bank.info) | {"format": FORMAT}
    # One entry: safetensors writes several in no fixed order, and equal banks are to be equal files.
    data = safetensors.numpy.save(tensors, metadata={"bank": json.dumps(header, sort_keys=True)})
    write_whole(path, data)


def open_bank(path: str | os.PathLike) -> LevelBank:
    """Open a bank by memory map, and verify its checksum."""
    path, name = pathlib.Path(path), os.fspath(path)
    if not path.exists():
        raise LevelError("there is no such file; `looped-actor levels build` makes one", source=name)
    with reading("level bank", path, functools.partial(LevelError, source=name)):
        with safetensors.safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})["bank"])
            layout = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            shapes = {key: (piece.get_dtype(), piece.get_shape()) for key, piece in layout.items()}
        if header["format"] != FORMAT:
            raise LevelError(f"format {header['format']!r} instead of {FORMAT!r}", source=name)
        tensors = _map_tensors(path, shapes)
        del header["format"]
        info = from_json(BankInfo, header, "its header")
        check_size(info.height, info.width, name)
        whole = info.checksum == _checksum(info, tensors)
        cells = tensors.pop("cells")
        if cells.shape != (info.count, (info.height * info.width + 1) // 2):
            raise LevelError(f"{cells.shape} bytes do not hold the levels it announces", source=name)
    if not whole:
        raise LevelError("the file is damaged: its checksum does not match", source=name)
    return LevelBank(info=info, packed=cells, columns=tensors, name=name)


def starter_bank(game: str) -> LevelBank:
    """Return a thousand generated levels that come with the package: to begin with, not to train on."""
    game_named(game)
    return open_bank(pathlib.Path(__file__).parent / "starter" / f"{game}.levels")


def _map_tensors(path: pathlib.Path, shapes: dict[str, tuple[str, list[int]]]) -> dict[str, np.ndarray]:
    """Return the tensors of a file as memory maps. `safe_open`, which copies, has checked the layout."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    dtypes = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "I32": np.int32, "U64": np.uint64}
    tensors = {}
    for name, (dtype, shape) in shapes.items():
        offset = 8 + size + header[name]["data_offsets"][0]
        if 0 in shape:  # cannot be mapped
            tensors[name] = np.zeros(shape, dtypes[dtype])
        else:
            tensors[name] = np.memmap(path, dtypes[dtype], "r", offset, tuple(shape))
    return tensors


def _checksum(info: BankInfo, tensors: Mapping[str, np.ndarray]) -> str:
    """Return the checksum of a bank's header and data."""
    header = asdict(info) | {"checksum": ""}
    digest = hashlib.sha256(json.dumps([FORMAT, header], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()


def _unpack_codes(packed: Any, xp: Any) -> Any:
    """Return two codes from each byte, along the last axis, with NumPy or JAX."""
    return xp.stack([packed >> 4, packed & 15], axis=-1).reshape(*packed.shape[:-1], -1)
