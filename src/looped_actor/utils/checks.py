"""Checks of configuration fields, and how errors show values."""

import reprlib
from typing import Any

from looped_actor.utils.errors import UserError


def at_least_one(config: Any, *names: str) -> None:
    """Raise an error that names the first of these fields which is below 1; None is not a number."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"{name} is {value}; it must be at least 1")


def within(config: Any, low: float, high: float, *names: str) -> None:
    """Raise an error that names the first of these fields which is outside of its bounds."""
    for name in names:
        value = getattr(config, name)
        if not low <= value <= high:
            raise UserError(f"{name} is {value}; it must be from {low:g} to {high:g}")


def above_zero(config: Any, *names: str) -> None:
    """Raise an error that names the first of these fields which is not positive."""
    for name in names:
        value = getattr(config, name)
        if not value > 0:
            raise UserError(f"{name} is {value}; it must be above 0")


def sizes_above_zero(config: Any, *names: str) -> None:
    """Raise an error unless these fields are lists with at least one size, each at least 1."""
    for name in names:
        sizes = getattr(config, name)
        if not sizes or min(sizes) < 1:
            raise UserError(f"{name} is {list(sizes)}; it must name at least one layer, of at least 1")


_MOST_SHOWN = 200


def shown(value: Any) -> str:
    """Return a value from a file as errors show it: short, and without control characters."""
    return _cut(_REPR.repr(value))


def brief(error: BaseException) -> str:
    """Return the message of a library's error in one short line."""
    lines = [line for line in printable(str(error)).splitlines() if line.strip()]
    return _cut(": ".join([type(error).__name__, *lines[:1]]))


def printable(text: str) -> str:
    """Escape the control characters of a text, which a terminal would obey. Line breaks stay."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 10
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _MOST_SHOWN
