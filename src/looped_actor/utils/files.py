"""Files: written whole or not at all, and read as what strangers may have sent."""

import hashlib
import json
import os
import pathlib
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import filelock
import numpy as np
import safetensors

from looped_actor.utils.checks import brief
from looped_actor.utils.errors import FileError, UserError

UNFINISHED = ".unfinished"
"""How the names of files end that are being written."""
MOST_JSON_BYTES = 16 * 2**20
MOST_TENSOR_BYTES = 64 * 2**30
_IRREGULAR = "{} is there, and is no regular file: it is not written over; give another name"


def cache_folder() -> pathlib.Path:
    """The user's, for what can be made again."""
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home, "looped-actor")


def check_writable(name: str | os.PathLike) -> None:
    """Raise an error if nothing can be written there, as a file or as a folder. URLs are refused."""
    text, path = os.fspath(name), pathlib.Path(name)
    if not text:
        raise UserError("the path to write to is empty: name a folder or a file")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):  # a path has lost one of the two slashes
        raise UserError(f"{text} is a URL, and only local files can be written: name a folder or a file")
    if (path.is_symlink() and not path.is_dir()) or (
        path.exists() and not path.is_file() and not path.is_dir()
    ):
        raise UserError(_IRREGULAR.format(path))
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if there != path and not there.is_dir():
        raise UserError(f"{path}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK):
        raise UserError(f"{path}: nothing may be written to {there}")


def write_whole(path: str | os.PathLike, data: bytes) -> None:
    """Write a file, and its folder if need be. It has its name only when it is whole, and on disk."""
    with writing(path) as unfinished:
        unfinished.write_bytes(data)


@contextmanager
def writing(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """A place to write a file at; it gets its name at the end, if there was no error.

    By then its bytes are on disk, so that a power cut leaves the old file or the new one.
    """
    path = pathlib.Path(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(_IRREGULAR.format(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        yield unfinished
        _sync(unfinished)
        os.replace(unfinished, path)
        _sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync(path: pathlib.Path) -> None:
    there = os.open(path, os.O_RDONLY)
    try:
        os.fsync(there)
    finally:
        os.close(there)


def sweep(folder: pathlib.Path) -> None:
    """Remove what killed processes were writing. No other process may be at work in the folder."""
    for left in folder.rglob(f"*{UNFINISHED}"):
        if left.is_file() and not left.is_symlink():
            left.unlink(missing_ok=True)


@contextmanager
def reading(
    what: str, path: str | os.PathLike, fail: Callable[[str], FileError], most: int = MOST_TENSOR_BYTES
) -> Iterator[None]:
    """Read a file that may come from a stranger: whatever is wrong becomes one error, in one sentence.

    Pipes, devices and endless files are refused before they are opened, and so is what is too large.

    Args:
      what: the file should be.
      path: of it.
      fail: makes the error of what is wrong.
      most: bytes that are read of such a file.
    """
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise fail("this is no regular file")
        if about.st_size > most:
            raise fail(f"{about.st_size:,} bytes; at most {most:,} are read of such a file")
        yield
    except FileError:
        raise
    except FileNotFoundError:
        raise fail("there is no such file") from None
    except OSError as error:
        raise fail(f"cannot be read ({error.strerror or brief(error)})") from None
    except Exception as error:  # libraries raise what they like
        raise fail(f"this is no {what}, or it is damaged ({brief(error)})") from None


def read_json(path: str | os.PathLike) -> Any:
    """The data of a JSON file, or an error that says what is wrong with it."""
    with reading("JSON", path, lambda problem: FileError(f"{path}: {problem}"), MOST_JSON_BYTES):
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def read_tensors(path: str | os.PathLike) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """What a safetensors file says of itself, and its arrays. Call it within `reading`.

    Nothing in such a file executes, and no array is larger than the file.
    """
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def file_checksum(path: pathlib.Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of(arrays: Mapping[str, Any]) -> str:
    """Over arrays and their names, whatever their order."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        host = np.asarray(arrays[name])
        digest.update(json.dumps([name, str(host.dtype), host.shape]).encode())
        digest.update(np.ascontiguousarray(host).view(np.uint8).data)  # some types are no buffers: bfloat16
    return digest.hexdigest()


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
        raise UserError(f"{taken}; wait for it, or end it") from None
