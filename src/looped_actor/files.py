"""Files that are there whole, or not at all."""

import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager


def write_whole(path: str | os.PathLike, data: bytes) -> None:
    """Write a file, and its folder if need be. It appears under its name only when it is whole."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)


@contextmanager
def held(path: str | os.PathLike, wait: bool = False) -> Iterator[None]:
    """Hold a lock file while something is done that only one process may do; it is let go of at death.

    Args:
      path: the file, which stays.
      wait: until another one has let go, instead of raising `BlockingIOError`.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            import fcntl
        except ImportError:  # not a Unix: nothing is held
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
