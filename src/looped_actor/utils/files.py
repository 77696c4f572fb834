"""Atomic writes, and reads of untrusted files."""

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
"""Suffix of files that are being written."""
MOST_JSON_BYTES = 16 * 2**20
MOST_TENSOR_BYTES = 64 * 2**30
_IRREGULAR = "{} exists and is not a regular file: it is not overwritten; give another name"


def cache_folder() -> pathlib.Path:
    """Return the cache folder of the user."""
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
    """Write a file atomically, and create its folder if needed."""
    with writing(path) as unfinished:
        unfinished.write_bytes(data)


@contextmanager
def writing(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yield a temporary path, which becomes `path` at the end unless there was an error.

    Its bytes are on disk by then: a power cut leaves the old file or the new one.
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
    """Remove the unfinished files of killed processes. No other process may write to the folder."""
    for left in folder.rglob(f"*{UNFINISHED}"):
        if left.is_file() and not left.is_symlink():
            left.unlink(missing_ok=True)


@contextmanager
def reading(
    what: str, path: str | os.PathLike, fail: Callable[[str], FileError], most: int = MOST_TENSOR_BYTES
) -> Iterator[None]:
    """Read an untrusted file: any problem becomes one error of one sentence.

    Pipes, devices and files that are too large are refused before they are opened.

    Args:
      what: name of the format, for the error.
      path: path of the file.
      fail: makes the error from a description of the problem.
      most: maximum size of the file in bytes.
    """
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise fail("this is not a regular file")
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
        raise fail(f"this is not a {what}, or it is damaged ({brief(error)})") from None


def read_json(path: str | os.PathLike) -> Any:
    """Return the data of an untrusted JSON file."""
    with reading("JSON file", path, lambda problem: FileError(f"{path}: {problem}"), MOST_JSON_BYTES):
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def read_tensors(path: str | os.PathLike) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the metadata and the arrays of a safetensors file. Call it within `reading`.

    Such a file contains no code, and no array is larger than the file.
    """
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def file_checksum(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of(arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 of named arrays, in any order."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        host = np.asarray(arrays[name])
        digest.update(json.dumps([name, str(host.dtype), host.shape]).encode())
        digest.update(np.ascontiguousarray(host).view(np.uint8).data)  # bfloat16 has no buffer interface
    return digest.hexdigest()


@contextmanager
def held(path: str | os.PathLike, *, taken: str | None = None) -> Iterator[None]:
    """Hold a lock file. It is released when the process ends, however it ends.

    Args:
      path: path of the lock file.
      taken: error message if another process holds it. None: wait until it is released.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(path, blocking=taken is None):
            yield
    except filelock.Timeout:
        raise UserError(f"{taken}; wait for it, or end it") from None
