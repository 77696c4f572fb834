"""Numba with the options of this package."""

import inspect
from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, and cache the result on disk.

    It releases the GIL, so threads can run several in parallel. Tests wrap every function to check shapes;
    Numba needs the unwrapped one.
    """
    return numba.njit(cache=True, nogil=True)(inspect.unwrap(function))
