"""Files that are there whole, or not at all."""

import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

import filelock


def write_whole(path: str | os.PathLike, data: bytes) -> None:
    """Write a file, and its folder if need be. It appears under its name only when it is whole."""
    path = pathlib.Path(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(
            f"{path} is there, and is no regular file: it is not written over; give another name"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)


@contextmanager
def held(path: str | os.PathLike, *, taken: str | None = None) -> Iterator[None]:
    """Hold a lock file while something is done that only one process may do; it is released at death.

    Args:
      path: the file.
      taken: what to say if another process holds it. Default: wait until it is released.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(path, blocking=taken is None):
            yield
    except filelock.Timeout:
        raise ValueError(f"{taken}; wait for it, or end it") from None
