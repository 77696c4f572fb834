"""Files that are there whole, or not at all."""

import os
import pathlib


def write_whole(path: str | os.PathLike, data: bytes) -> None:
    """Write a file, and its folder if need be. It appears under its name only when it is whole."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)
