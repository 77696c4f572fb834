"""Tables as CSV: what every figure is made from."""

import csv
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from looped_actor.utils.files import FileError, write_whole

Row = Mapping[str, Any]


class TableError(FileError):
    """A table that cannot be used, and why."""


def write_table(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Write rows with the same columns. What is None is left empty."""
    if not rows:
        raise TableError(f"{path}: there is nothing to write down")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def read_table(path: pathlib.Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read rows that must have these columns. Numbers become numbers, what is empty becomes None."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = [{name: _value(text) for name, text in row.items()} for row in reader]
            named = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path}: cannot be read ({error})") from None
    missing = [name for name in columns if name not in named]
    if missing or not rows:
        what = f"there is no column {missing[0]!r}" if missing else "there is no row"
        raise TableError(f"{path}: {what} in this table; make it again by the command that wrote it")
    return rows


def _value(text: str | None) -> Any:
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def of(rows: Sequence[Row], **values: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def measure_of(rows: Sequence[Row]) -> str:
    """Return the measure that all rows have: success, or the return if success is missing or always 0."""
    measures = [name for name in ("success", "returns") if all(row.get(name) is not None for row in rows)]
    if not measures:
        raise TableError(
            "some of these runs report success and no return, others a return and no success: compare "
            "them apart"
        )
    return measures[-1] if not any(row["success"] for row in rows) else measures[0]


def distinct(rows: Sequence[Row], *names: str) -> list[Any]:
    """The values of a column, or of several, in the order in which they appear."""
    one = len(names) == 1
    return list(dict.fromkeys(row[names[0]] if one else tuple(row[n] for n in names) for row in rows))
