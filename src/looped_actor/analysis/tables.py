"""Tables as CSV files."""

import csv
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from looped_actor.utils.files import FileError, write_whole

Row = Mapping[str, Any]


class TableError(FileError):
    """A table that cannot be used, and the reason."""


def write_table(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Write rows with the same columns. None becomes an empty cell."""
    if not rows:
        raise TableError(f"{path}: there are no rows to write")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def read_table(path: pathlib.Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read a table that must have these columns. Numbers become numbers, empty cells None."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = [{name: _parse(text) for name, text in row.items()} for row in reader]
            found = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path}: cannot be read ({error})") from None
    missing = [name for name in columns if name not in found]
    if missing or not rows:
        problem = f"there is no column {missing[0]!r}" if missing else "there is no row"
        raise TableError(f"{path}: {problem} in this table; make it again by the command that wrote it")
    return rows


def _parse(text: str | None) -> Any:
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def rows_where(rows: Sequence[Row], **values: Any) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def distinct(rows: Sequence[Row], *columns: str) -> list[Any]:
    """Return the distinct values of a column, or tuples of several columns, in order of appearance."""
    if len(columns) == 1:
        return list(dict.fromkeys(row[columns[0]] for row in rows))
    return list(dict.fromkeys(tuple(row[name] for name in columns) for row in rows))
