"""Levels from public collections: the Boxoban levels of DeepMind, and the Rush Hour database."""

import functools
import os
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from looped_actor.puzzles.banks import LevelBank, make_bank
from looped_actor.puzzles.boxoban.rules import SYMBOLS, BoxobanBoard
from looped_actor.puzzles.boxoban.rules import valid as boxoban_boards
from looped_actor.puzzles.catalogue import BOXOBAN, RUSH_HOUR
from looped_actor.puzzles.grid import LevelError
from looped_actor.puzzles.rush_hour.rules import (
    EMPTY_SYMBOLS,
    RED_SYMBOL,
    VEHICLE_SYMBOLS,
    WALL_SYMBOL,
    Cell,
    RushHourBoard,
)
from looped_actor.puzzles.rush_hour.rules import valid as rush_hour_boards
from looped_actor.utils.files import reading
from looped_actor.utils.processes import Progress, no_progress

BOXOBAN_SOURCE = "DeepMind boxoban-levels"
BOXOBAN_LICENCE = "Apache-2.0"
MAX_FILE_BYTES = 1 << 30


class _Block(NamedTuple):
    """Text of one level."""

    line: int
    """Line of its first row, counted from 1."""
    rows: list[str]


def read_boxoban_file(path: str | os.PathLike) -> np.ndarray:
    """Return all levels of one file of the collection, as cell sums, shape [n, h, w].

    Each level is a line `; number` followed by its rows. All levels of a file have the same size.
    """
    name, text = os.fspath(path), _read_text(path)
    blocks = list(_split_levels(text, name))
    rows = [row for block in blocks for row in block.rows]
    height, width = len(blocks[0].rows), len(blocks[0].rows[0])
    if all(len(block.rows) == height for block in blocks) and all(len(row) == width for row in rows):
        codes = np.frombuffer("".join(rows).encode("utf-32-le"), np.uint32)
        known = codes < 128
        cells = _CELL_OF_CHARACTER[np.where(known, codes, 0)].reshape(-1, height, width)
        if height * width > 1 and boxoban_boards(cells).all():
            return cells
    # Something is wrong. The plain reader finds out what, and where.
    boards = [BoxobanBoard.parse("\n".join(b.rows), source=name, line=b.line).to_cells() for b in blocks]
    for block, board in zip(blocks, boards, strict=True):
        if board.shape != boards[0].shape:
            sizes = "{}x{}".format(*board.shape), "{}x{}".format(*boards[0].shape)
            problem = f"a level of {sizes[0]} in a file that began with {sizes[1]}"
            raise LevelError(problem, source=name, line=block.line)
    return np.stack(boards)


def _split_levels(text: str, name: str) -> Iterator[_Block]:
    line, rows, levels = 0, [], 0
    for number, row in enumerate(text.split("\n"), 1):
        row = row.removesuffix("\r")
        if row and row[0] != ";":
            if not rows:
                line = number
            rows.append(row)
        elif rows:
            yield _Block(line, rows)
            rows, levels = [], levels + 1
    if rows:
        yield _Block(line, rows)
    elif not levels:
        raise LevelError("there is no level in this file", source=name, line=1)


def read_boxoban(root: str | os.PathLike, split: str, progress: Progress = no_progress) -> LevelBank:
    """Return a split of the Boxoban collection, such as `unfiltered/train`, from a copy of its repository."""
    folder = pathlib.Path(root) / split
    files = sorted(folder.glob("*.txt")) if folder.is_dir() else []
    if not files:
        here = sorted({str(p.parent.relative_to(root)) for p in pathlib.Path(root).glob("*/**/*.txt")})
        known = f"; splits found there: {', '.join(here)}" if here else ""
        raise LevelError(f"no level files (*.txt) in this folder{known}", source=str(folder))
    parts = []
    for done, path in enumerate(files):
        progress(done, len(files))
        cells = read_boxoban_file(path)
        if parts and cells.shape[1:] != parts[0].shape[1:]:
            problem = "levels of another size than those of the files before"
            raise LevelError(problem, source=str(path), line=1)
        parts.append(cells)
    progress(len(files), len(files))
    return make_bank(
        BOXOBAN,
        np.concatenate(parts),
        source=f"{BOXOBAN_SOURCE}, {split}",
        licence=BOXOBAN_LICENCE,
        name=str(folder),
    )


_DATABASE_ROW = re.compile(r"(\d{1,5})\s+(\S+)\s+(\d{1,12})")


def read_rush_hour_database(
    path: str | os.PathLike,
    *,
    max_moves: int | None = 15,
    source: str | None = None,
    licence: str = "not stated: see the source",
    progress: Progress = no_progress,
) -> LevelBank:
    """Return the levels of the public Rush Hour database of at most `max_moves` moves.

    Rows of the file are `moves board clustersize`. The bank has the columns `moves` and `cluster_size`.
    """
    name = os.fspath(path)
    lines = _read_text(path).split("\n")
    texts, numbers, moves, sizes = [], [], [], []
    for number, row in enumerate(lines, 1):
        if number % 65_536 == 0:
            progress(number, len(lines))
        if not row.strip():
            continue
        match = _DATABASE_ROW.fullmatch(row.strip())
        if match is None:
            raise LevelError("expected `moves board clustersize`", source=name, line=number)
        if max_moves is not None and int(match[1]) > max_moves:
            continue
        if int(match[1]) > 65_535 or int(match[3]) >= 2**32:
            raise LevelError("a length or size beyond all reason", source=name, line=number)
        texts.append(match[2])
        numbers.append(number)
        moves.append(int(match[1]))
        sizes.append(int(match[3]))
    if not texts:
        raise LevelError(f"no level of at most {max_moves} moves in this file", source=name, line=1)
    cells = _parse_boards(texts, numbers, name)
    progress(len(lines), len(lines))
    columns = {"moves": np.array(moves, np.uint16), "cluster_size": np.array(sizes, np.uint32)}
    source = source or f"Rush Hour database text, {pathlib.Path(path).name}"
    return make_bank(RUSH_HOUR, cells, source=source, licence=licence, columns=columns, name=name)


def _parse_boards(texts: list[str], numbers: list[int], name: str) -> np.ndarray:
    """Return square boards, one in each text, as cell sums."""

    def parse_plainly(i: int) -> np.ndarray:
        return RushHourBoard.parse(texts[i], source=name, line=numbers[i]).to_cells()

    side = len(parse_plainly(0))
    for text, number in zip(texts, numbers, strict=True):
        if len(text) != side * side:
            problem = f"a board of {len(text)} cells in a file that began with {side}x{side}"
            raise LevelError(problem, source=name, line=number)
    cells = np.empty((len(texts), side, side), np.uint8)
    for first in range(0, len(texts), 100_000):
        some = texts[first : first + 100_000]
        codes = np.frombuffer("".join(some).encode("utf-32-le"), np.uint32).reshape(-1, side, side)
        cells[first : first + len(some)], ok = _link_letters(codes)
        if not ok.all():
            wrong = first + int(np.argmin(ok))
            parse_plainly(wrong)  # raises an error that says what is wrong
            raise LevelError("the readers disagree", source=name, line=numbers[wrong])
    return cells


def _link_letters(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cell sums of boards of letters, and whether each is a board.

    Equal neighbours are linked. It is a board if its cells are valid, and no letter stands for two vehicles.
    """
    codes = np.where(codes < 128, codes, 0).astype(np.uint8)
    known = np.isin(codes, np.frombuffer(_RUSH_HOUR_SYMBOLS, np.uint8)).all(axis=(1, 2))
    wall = codes == ord(WALL_SYMBOL)
    vehicle = ~wall & ~np.isin(codes, np.frombuffer(EMPTY_SYMBOLS.encode(), np.uint8))
    right, down = np.zeros_like(vehicle), np.zeros_like(vehicle)
    right[:, :, :-1] = vehicle[:, :, :-1] & (codes[:, :, :-1] == codes[:, :, 1:])
    down[:, :-1] = vehicle[:, :-1] & (codes[:, :-1] == codes[:, 1:])
    from_left, from_above = np.roll(right, 1, axis=2), np.roll(down, 1, axis=1)  # the last one links nowhere
    cells = np.zeros_like(codes)
    for where, kind in (
        (vehicle | wall, Cell.OCCUPIED),
        (codes == ord(RED_SYMBOL), Cell.RED),
        (wall, Cell.WALL),
        (right | from_left, Cell.HORIZONTAL),
        (down | from_above, Cell.VERTICAL),
        (right, Cell.LINK_RIGHT),
        (down, Cell.LINK_DOWN),
    ):
        cells |= np.where(where, np.uint8(kind), np.uint8(0))
    vehicles = (vehicle & ~from_left & ~from_above).sum(axis=(1, 2))
    ordered = np.sort(np.where(vehicle, codes, 0).reshape(len(codes), -1), axis=1)
    letters = ((ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] > 0)).sum(axis=1) + (ordered[:, 0] > 0)
    return cells, known & (vehicles == letters) & rush_hour_boards(cells)


def _read_text(path: str | os.PathLike) -> str:
    name = os.fspath(path)
    with reading("level file", path, functools.partial(LevelError, source=name), MAX_FILE_BYTES):
        data = pathlib.Path(path).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise LevelError("this is not a text file", source=name, line=line) from None


_CELL_OF_CHARACTER = np.full(128, 255, np.uint8)
for _symbol, _cell in SYMBOLS.items():
    _CELL_OF_CHARACTER[ord(_symbol)] = _cell

_RUSH_HOUR_SYMBOLS = (EMPTY_SYMBOLS + WALL_SYMBOL + RED_SYMBOL + "".join(VEHICLE_SYMBOLS)).encode()
