"""Damaged and invented input: a level that says what the text says, or an error with file and line. In full,
more than 100,000 inputs."""

import re

import numpy as np
import pytest

from boards import random_boxoban, random_rush_hour
from looped_actor.puzzles.banks import make_bank, open_bank, write_bank
from looped_actor.puzzles.boxoban.rules import SYMBOLS, BoxobanBoard
from looped_actor.puzzles.catalogue import BOXOBAN, RUSH_HOUR
from looped_actor.puzzles.grid import LevelError
from looped_actor.puzzles.rush_hour.rules import RushHourBoard
from looped_actor.puzzles.solutions import open_solutions
from looped_actor.puzzles.sources import read_boxoban_file, read_rush_hour_database

NOISE = [*SYMBOLS, "A", "B", "o", "x", "\n", "\n\n", ";", "\r", "\t", "\0", "é", "🙂", "-1", "99999999999999"]


def damaged(text: str, rng: np.random.Generator) -> str:
    """A few cuts, repeats and foreign characters."""
    for _ in range(int(rng.integers(1, 4))):
        at, to = sorted(int(n) for n in rng.integers(0, len(text) + 1, 2))
        match int(rng.integers(5)):
            case 0:
                text = text[:at] + text[to:] if to - at < 30 else text[:at]
            case 1:
                text = text[:at] + text[at : at + 12] + text[at:]
            case _:
                text = text[:at] + NOISE[int(rng.integers(len(NOISE)))] + text[at + int(rng.integers(2)) :]
    return text


def boards(make, count, shape):
    rng = np.random.default_rng(0)
    return [make(rng, shape=shape) for _ in range(count)]


@pytest.mark.parametrize("kind", [BoxobanBoard, RushHourBoard])
def test_boards(kind, size):
    rng = np.random.default_rng(1)
    make = random_boxoban if kind is BoxobanBoard else random_rush_hour
    texts = [str(board) for board in boards(make, 50, (5, 6))]
    read = 0
    for i in range(size(3_000, 30_000)):
        text = damaged(texts[i % 50], rng)
        try:
            board = kind.parse(text, source="file.txt", line=7)
        except LevelError as error:
            assert re.match(r"file\.txt:\d+: .", str(error)), (text, str(error))
            continue
        read += 1
        shown, rows = str(board), text.strip("\n")
        if kind is RushHourBoard:
            shown, rows = (
                re.sub("[^.xA]", "B", t.replace("\n", "").replace("o", ".")) for t in (shown, rows)
            )
        assert shown == rows, (shown, rows)
    assert read > 10


def test_level_files(size, tmp_path):
    rng = np.random.default_rng(2)
    texts = [f"; {i}\n{board}\n\n" for i, board in enumerate(boards(random_boxoban, 40, (5, 6)))]
    path, read = tmp_path / "levels.txt", 0
    for i in range(size(2_000, 20_000)):
        text = damaged("".join(texts[i % 37 : i % 37 + 3]), rng)
        path.write_bytes(text.encode())
        try:
            cells = read_boxoban_file(path)
        except LevelError as error:
            assert re.match(rf"{re.escape(str(path))}:\d+: .", str(error)), (text, str(error))
            continue
        read += 1
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        rows = [line for line in lines if line and line[0] != ";"]
        assert "\n".join(str(BoxobanBoard.from_cells(board)) for board in cells) == "\n".join(rows)
    assert read > 10


def test_database_files(size, tmp_path):
    rng = np.random.default_rng(3)
    texts = [
        f"{i % 15} {board.flat_text} 12\n" for i, board in enumerate(boards(random_rush_hour, 40, (6, 6)))
    ]
    path, read = tmp_path / "rush.txt", 0
    for i in range(size(2_000, 20_000)):
        text = damaged("".join(texts[i % 37 : i % 37 + 3]), rng)
        path.write_bytes(text.encode())
        try:
            bank = read_rush_hour_database(path, max_moves=None)
        except LevelError as error:
            assert re.match(rf"{re.escape(str(path))}:\d+: .", str(error)), (text, str(error))
            continue
        read += 1
        rows = [line.split() for line in text.split("\n") if line.strip()]
        assert [int(row[0]) for row in rows] == list(bank.columns["moves"])
        for row, index in zip(rows, range(len(bank)), strict=True):
            assert RushHourBoard.parse(row[1]) == bank.board(index)
    assert read > 10


def test_bytes_that_are_no_text(size, tmp_path):
    rng, path = np.random.default_rng(4), tmp_path / "levels.txt"
    for _ in range(size(200, 2_000)):
        path.write_bytes(rng.bytes(int(rng.integers(1, 300))))
        for read in (read_boxoban_file, read_rush_hour_database):
            with pytest.raises(LevelError, match=r"levels.txt:\d+: "):
                read(path)


@pytest.mark.parametrize("game", [BOXOBAN, RUSH_HOUR], ids=["boxoban", "rush-hour"])
def test_bank_files(game, size, tmp_path):
    rng = np.random.default_rng(5)
    make = random_boxoban if game is BOXOBAN else random_rush_hour
    cells = np.stack([board.to_cells() for board in boards(make, 6, (5, 5))])
    bank = make_bank(game, cells, source="x", licence="y", columns={"moves": np.arange(6, dtype=np.uint16)})
    write_bank(bank, path := tmp_path / "a.levels")
    whole = path.read_bytes()
    for _ in range(size(800, 8_000)):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(data)))
            match int(rng.integers(4)):
                case 0:
                    del data[at:]
                    data += b"\0" * int(rng.integers(1, 3))
                case 1:
                    data[at:at] = rng.bytes(int(rng.integers(1, 9)))
                case _:
                    data[at] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            opened = open_bank(path)
        except LevelError as error:
            assert str(error).startswith(f"{path}: ")
            continue
        # Only damage that left the file as it was can pass.
        assert opened.info == bank.info
        np.testing.assert_array_equal(opened.cells(slice(None)), cells)
    for _ in range(size(50, 500)):
        path.write_bytes(rng.bytes(int(rng.integers(0, 400))))
        for read in (open_bank, open_solutions):
            with pytest.raises(LevelError, match=r"a\.levels: "):
                read(path)
