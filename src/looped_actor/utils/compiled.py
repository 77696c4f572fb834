"""Numba, in the one way that this package uses it."""

import inspect
from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the result on disk for the next process.

    It lets go of Python's lock, so that threads can run several at once. Tests wrap every function to check
    its shapes; Numba wants the bare one.
    """
    return numba.njit(cache=True, nogil=True)(inspect.unwrap(function))
