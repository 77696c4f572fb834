"""How many examples to compute at once, by what they are computed on.

Results never depend on it, beyond rounding; time does. What suits a kind of hardware is a number of *numbers*
in latents, so that it holds for nets and boards of other sizes too. `looped-actor tune` times it on the
hardware at hand, and what it finds is remembered in the user's cache folder.
"""

import functools
import json
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax

from looped_actor.files import FileError, cache_folder, read_json, write_whole


class Suited(NamedTuple):
    """What a kind of hardware computes at once, in numbers of latents."""

    chunk: int
    """Of the examples that are learned from together."""
    slots: int
    """Of all states that are thought about together."""
    least_chunk: int = 1
    """Examples, whatever their size."""
    most_slots: int = 2**30


CPU = Suited(chunk=16_000, slots=100_000, least_chunk=2, most_slots=16)
"""Measured on two cores: what a loop makes of so many then stays in a core's cache, and few loops are wasted
on neighbours. For examples of 101 x 128 numbers, chunks of 2 were the fastest in most runs and 4 in others;
for 43 x 32, chunks of 8, and 16 by 7% slower. More slots are no faster, and the more there are, the more of
them stand empty when a stream drains."""
TPU = Suited(chunk=414_000, slots=1_655_000)
"""Chunks of 32 and 128 slots of 101 x 128 numbers, by the compiler's estimates for v5e: larger ones do not
fit the fast memory, and smaller ones do not fill the matrix units. See docs/accelerators.md."""
GPU = Suited(chunk=4_000_000, slots=16_000_000)
"""Enough to be worth starting a kernel for; by the estimates for one H100. See docs/accelerators.md."""
SUITED = {"cpu": CPU, "tpu": TPU, "gpu": GPU, "cuda": GPU, "rocm": GPU}


def device() -> Any:
    """What the program that is traced will run on: a device of its mesh, or else JAX's own."""
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def suited() -> Suited:
    """What suits the devices that are computed on: as they were tuned, or else by their platform."""
    here = device()
    usual, tuned = SUITED.get(here.platform, GPU), _read(tuned_file()).get(here.device_kind)
    return usual if tuned is None else usual._replace(**tuned)


def tuned_file() -> pathlib.Path:
    """Where is remembered what suits each kind of device."""
    return cache_folder() / "tuned.json"


def remember(kind: str, chunk: int, slots: int) -> None:
    """For a kind of device, in numbers of latents."""
    path = tuned_file()
    _read.cache_clear()
    known = _read(path) | {kind: {"chunk": chunk, "slots": slots}}
    write_whole(path, (json.dumps(known, indent=1) + "\n").encode())
    _read.cache_clear()


@functools.cache
def _read(path: pathlib.Path) -> dict[str, dict[str, int]]:
    if not path.exists():
        return {}
    known = read_json(path)
    if not isinstance(known, dict) or not all(map(_is_suited, known.values())):
        raise FileError(f"{path}: not as `looped-actor tune` writes it: remove the file, or tune again")
    return known


def _is_suited(numbers: Any) -> bool:
    if not isinstance(numbers, dict) or numbers.keys() != {"chunk", "slots"}:
        return False
    return all(type(number) is int and 0 < number < 2**40 for number in numbers.values())


_CHUNK: ContextVar[int | None] = ContextVar("chunk", default=None)
_SLOTS: ContextVar[int | None] = ContextVar("slots", default=None)


@contextmanager
def computing(chunk: int | None = None, slots: int | None = None) -> Iterator[None]:
    """Trace with other defaults: examples to learn from and states to think about together."""
    before = _CHUNK.set(chunk), _SLOTS.set(slots)
    try:
        yield
    finally:
        _CHUNK.reset(before[0])
        _SLOTS.reset(before[1])


def default_chunk(latent_size: int) -> int:
    """Examples to learn from together, whose latents hold `latent_size` numbers each."""
    suits = suited()
    return _CHUNK.get() or max(suits.least_chunk, round(suits.chunk / latent_size))


def default_slots(latent_size: int) -> int:
    """States to think about together, whose latents hold `latent_size` numbers each."""
    suits = suited()
    return _SLOTS.get() or max(1, min(suits.most_slots, round(suits.slots / latent_size)))
