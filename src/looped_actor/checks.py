"""What several configurations check of their fields."""

from typing import Any


def at_least_one(config: Any, *names: str) -> None:
    """Raise an error that names the first of these fields which is below 1; None is not a number."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


def within(config: Any, low: float, high: float, *names: str) -> None:
    """The same for fields that have bounds, which they may reach."""
    for name in names:
        value = getattr(config, name)
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}; it must be from {low:g} to {high:g}")


def above_zero(config: Any, *names: str) -> None:
    """The same for fields that must be positive."""
    for name in names:
        value = getattr(config, name)
        if not value > 0:
            raise ValueError(f"{name} is {value}; it must be above 0")
