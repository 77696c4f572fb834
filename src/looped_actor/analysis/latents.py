"""Latents on disk: what a policy has in mind after chosen loops, for more states than memory holds.

A recording is a folder with one plain array file for the input embedding and one for each loop, of shape
(states, tokens, width) in float16, and `latents.json`, which says what they are of and how many states are
finished. It is written a chunk at a time and goes on where it stopped.
"""

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Float16, Shaped

from looped_actor.algorithms import Weights, as_open_loop
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.loop import EarlyExit, HaltingRule
from looped_actor.training.sharding import DATA, EVERYWHERE, ROWS, on_each_device, placed
from looped_actor.utils.codec import from_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import FileError, read_json, reading, write_whole
from looped_actor.utils.processes import Progress, no_progress

HEADER = "latents.json"
FORMAT = "looped-actor latents 1"
INPUT = 0
"""The place of the input embedding, where loops are counted from 1."""


class LatentsError(FileError):
    """A recording that cannot be used, and why."""


@dataclass(frozen=True)
class LatentsInfo:
    """What a recording says of itself."""

    source: str
    """A checksum of the policy and of the states."""
    states: int
    tokens: int
    width: int
    places: tuple[int, ...]
    """Loops, and 0 for the input embedding."""
    done: int = 0
    """States that are finished."""


@dataclass(frozen=True)
class Latents:
    """A finished recording, opened by memory map."""

    folder: pathlib.Path
    info: LatentsInfo

    def at(self, place: int) -> Float16[np.ndarray, "n t d"]:
        """The latents after a loop, or with 0 the input embedding."""
        if place not in self.info.places:
            raise LatentsError(f"{self.folder}: loop {place} was not recorded; there are {self.info.places}")
        path, wanted = self.folder / _name(place), (self.info.states, self.info.tokens, self.info.width)
        with reading("recording", path, lambda problem: LatentsError(f"{path}: {problem}")):
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if found.dtype != np.float16 or found.shape != wanted:
                raise UserError(f"{found.dtype}{found.shape} instead of float16{wanted}")
        return found


def _name(place: int) -> str:
    return "input.npy" if place == INPUT else f"loop_{place:02d}.npy"


@dataclass(frozen=True)
class LatentsRecorder:
    """Records a looped policy.

    Args:
      definition: the net without its weights.
      loops: after which loops to look; those of the rule's cap at most.
      mesh: the devices.
      halting: replaces the rule that the net was trained with. A latent stays as it is once its state has
        halted: it is what the policy acts on.
      chunk: states that each device computes at a time.
    """

    definition: nnx.GraphDef
    loops: tuple[int, ...]
    mesh: Mesh
    halting: HaltingRule | None = None
    chunk: int = 32

    def record(
        self,
        weights: Weights,
        observe: Callable[[int, int], Shaped[np.ndarray, "n ..."]],
        states: int,
        folder: pathlib.Path,
        *,
        source: str = "",
        progress: Progress = no_progress,
    ) -> Latents:
        """Record states 0 to `states`, of which `observe(first, last)` gives some.

        Where the folder holds the beginning of the same recording, it goes on from there.
        """
        if as_open_loop(self.definition, weights, self.halting) is None:
            raise LatentsError("this policy does not loop: there are no loops to record")
        info = self._info(weights, observe(0, 1), states, source)
        folder.mkdir(parents=True, exist_ok=True)
        info = _begun(folder, info)
        at_once = self.chunk * self.mesh.size
        files = {place: (folder / _name(place)).open("r+b") for place in info.places}
        try:
            for first in range(info.done, states, at_once):
                last = min(first + at_once, states)
                observation = observe(first, last)
                short = at_once - len(observation)  # the last chunk is filled up, so that one program does
                filled = np.concatenate([observation, np.repeat(observation[-1:], short, axis=0)])
                found = np.asarray(self._look(weights, placed(self.mesh, filled, ROWS)))
                for file, latents in zip(files.values(), found, strict=True):
                    _write_rows(file, first, latents[: last - first])
                info = LatentsInfo(**{**asdict(info), "done": last})
                _write_header(folder, info)
                progress(last, states)
        finally:
            for file in files.values():
                file.close()
        return Latents(folder, info)

    def _info(self, weights: Weights, one: np.ndarray, states: int, source: str) -> LatentsInfo:
        shape = jax.eval_shape(lambda: self._of(weights, jnp.asarray(one))).shape
        checksum = hashlib.sha256((source + weights.checksum).encode()).hexdigest()
        return LatentsInfo(checksum, states, shape[2], shape[3], (INPUT, *self.loops))

    def _of(self, weights: Weights, observation: Array) -> Float[Array, "p b t d"]:
        """The input embedding, and the latents after the chosen loops."""
        loop: Any = as_open_loop(self.definition, weights, self.halting)
        decide: Any = deciding(self.definition, weights, self.halting, EarlyExit())
        latents = decide(observation, record=True).loop.latents
        if max(self.loops) > len(latents):
            raise LatentsError(f"loop {max(self.loops)} is beyond the cap of {len(latents)}")
        chosen = latents[jnp.array(self.loops) - 1]
        return jnp.concatenate([loop.embed(observation).embedding[None], chosen]).astype(jnp.float16)

    @functools.cached_property
    def _look(self) -> Callable[..., Array]:
        by_state: Any = PartitionSpec(None, DATA)
        return on_each_device(self.mesh, self._of, (EVERYWHERE, ROWS), by_state)


def _begun(folder: pathlib.Path, info: LatentsInfo) -> LatentsInfo:
    """How far the recording in a folder is; or its empty files."""
    if (folder / HEADER).exists():
        there = _read_header(folder)
        if LatentsInfo(**{**asdict(there), "done": 0}) != info:
            raise LatentsError(
                f"{folder} holds latents of another policy, other states or other loops: give another folder"
            )
        missing = [place for place in info.places if not (folder / _name(place)).is_file()]
        if missing:
            raise LatentsError(f"{folder}: {_name(missing[0])} is gone; remove the folder to begin anew")
        return there
    shape = (info.states, info.tokens, info.width)
    for place in info.places:
        with (folder / _name(place)).open("wb") as file:
            header = {"descr": "<f2", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 2 * info.states * info.tokens * info.width)
    _write_header(folder, info)
    return info


def _write_rows(file: Any, first: int, rows: Float16[np.ndarray, "n t d"]) -> None:
    """Through the file and not a memory map, whose pages would count as this process's memory."""
    file.seek(0)
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    file.seek(first * rows[0].nbytes, os.SEEK_CUR)
    file.write(np.ascontiguousarray(rows).data)
    file.flush()
    os.fsync(file.fileno())


def _write_header(folder: pathlib.Path, info: LatentsInfo) -> None:
    write_whole(folder / HEADER, json.dumps({"format": FORMAT, **asdict(info)}, indent=1).encode())


def _read_header(folder: pathlib.Path) -> LatentsInfo:
    with reading("recording", folder / HEADER, lambda problem: LatentsError(f"{folder / HEADER}: {problem}")):
        said = read_json(folder / HEADER)
        if said.pop("format") != FORMAT:
            raise UserError("another format")
        return from_json(LatentsInfo, said, "its header")


def open_latents(folder: pathlib.Path) -> Latents:
    """Open a recording that is finished."""
    info = _read_header(folder)
    if info.done < info.states:
        raise LatentsError(
            f"{folder}: {info.done:,} of {info.states:,} states are recorded; run it again to continue"
        )
    return Latents(folder, info)


def loops_within(cap: int, wanted: Sequence[int]) -> tuple[int, ...]:
    """Those of the wanted loops that a policy with this cap has."""
    chosen = tuple(loop for loop in wanted if 1 <= loop <= cap)
    if not chosen:
        raise LatentsError(f"none of the loops {list(wanted)} is within the cap of {cap}")
    return chosen
