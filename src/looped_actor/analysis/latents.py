"""Recordings of latents on disk, for more states than memory holds.

A recording is a folder with one NumPy file for the input embedding and one for each chosen loop, of shape
[states, tokens, width] in float16, and a header, `latents.json`, which identifies policy and states, and
counts the finished states. It is written in chunks, and an interrupted recording continues where it stopped.
"""

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Float16, Shaped

from looped_actor.algorithms import Weights, make_policy, to_streaming
from looped_actor.loop import EarlyExit, HaltingRule
from looped_actor.training import sharding
from looped_actor.utils.codec import from_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import FileError, read_json, reading, write_whole
from looped_actor.utils.processes import Progress, no_progress

HEADER = "latents.json"
FORMAT = "looped-actor latents 1"
INPUT = 0
"""Place of the input embedding; loops are counted from 1."""


class LatentsError(FileError):
    """A recording that cannot be used, and the reason."""


@dataclass(frozen=True)
class LatentsInfo:
    """Header of a recording."""

    source: str
    """Checksum of the policy and the states."""
    states: int
    tokens: int
    width: int
    places: tuple[int, ...]
    """Loops, and `INPUT` for the input embedding."""
    done: int = 0
    """States that are finished."""


@dataclass(frozen=True)
class Latents:
    """A finished recording, opened by memory map."""

    folder: pathlib.Path
    info: LatentsInfo

    def at(self, place: int) -> Float16[np.ndarray, "n t d"]:
        """Return the latents after a loop, or the input embedding for `INPUT`."""
        if place not in self.info.places:
            raise LatentsError(f"{self.folder}: loop {place} was not recorded; there are {self.info.places}")
        path, shape = self.folder / _file_name(place), (self.info.states, self.info.tokens, self.info.width)
        with reading("recording", path, lambda problem: LatentsError(f"{path}: {problem}")):
            latents = np.load(path, mmap_mode="r", allow_pickle=False)
            if latents.dtype != np.float16 or latents.shape != shape:
                raise UserError(f"{latents.dtype}{latents.shape} instead of float16{shape}")
        return latents


def _file_name(place: int) -> str:
    return "input.npy" if place == INPUT else f"loop_{place:02d}.npy"


def open_latents(folder: pathlib.Path) -> Latents:
    """Open a finished recording."""
    info = _read_header(folder)
    if info.done < info.states:
        raise LatentsError(
            f"{folder}: {info.done:,} of {info.states:,} states are recorded; run it again to continue"
        )
    return Latents(folder, info)


def select_loops(cap: int, loops: Sequence[int]) -> tuple[int, ...]:
    """Return the loops that a policy with this cap has."""
    chosen = tuple(loop for loop in loops if 1 <= loop <= cap)
    if not chosen:
        raise LatentsError(f"none of the loops {list(loops)} is within the cap of {cap}")
    return chosen


@dataclass(frozen=True)
class LatentsRecorder:
    """Records latents of a looped policy.

    Args:
      definition: the net without its weights.
      loops: loops after which to record; at most the cap of the halting rule.
      mesh: the devices.
      halting: replaces the halting rule of training. The latent of a state that has halted stays constant.
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
        """Record the latents of states; continue if the folder holds the beginning of the same recording.

        Args:
          weights: weights of the policy.
          observe: returns the observations of states first to last - 1, given (first, last).
          states: number of states.
          folder: folder of the recording.
          source: checksum of the states.
          progress: called with the number of finished and of all states.
        """
        if to_streaming(self.definition, weights, self.halting) is None:
            raise LatentsError("this policy does not loop: there are no loops to record")
        info = self._describe(weights, observe(0, 1), states, source)
        folder.mkdir(parents=True, exist_ok=True)
        info = _open_or_create(folder, info)
        batch = self.chunk * self.mesh.size
        files = {place: (folder / _file_name(place)).open("r+b") for place in info.places}
        try:
            for first in range(info.done, states, batch):
                last = min(first + batch, states)
                observation = observe(first, last)
                missing = batch - len(observation)  # the last chunk is padded, to reuse the compiled program
                padded = np.concatenate([observation, np.repeat(observation[-1:], missing, axis=0)])
                latents = np.asarray(
                    self._compute_on_mesh(weights, sharding.place(self.mesh, padded, sharding.ROWS))
                )
                for file, rows in zip(files.values(), latents, strict=True):
                    _write_rows(file, first, rows[: last - first])
                info = replace(info, done=last)
                _write_header(folder, info)
                progress(last, states)
        finally:
            for file in files.values():
                file.close()
        return Latents(folder, info)

    def _describe(self, weights: Weights, observation: np.ndarray, states: int, source: str) -> LatentsInfo:
        shape = jax.eval_shape(lambda: self._compute(weights, jnp.asarray(observation))).shape
        return LatentsInfo(
            source=hashlib.sha256((source + weights.checksum).encode()).hexdigest(),
            states=states,
            tokens=shape[2],
            width=shape[3],
            places=(INPUT, *self.loops),
        )

    def _compute(self, weights: Weights, observation: Array) -> Float[Array, "p b t d"]:
        """Return the input embedding, and the latents after the chosen loops."""
        policy = make_policy(self.definition, weights, self.halting, EarlyExit())
        parts = to_streaming(self.definition, weights, self.halting)
        loop = policy(observation, record=True).loop
        assert parts is not None
        assert loop is not None
        assert loop.latents is not None
        if max(self.loops) > len(loop.latents):
            raise LatentsError(f"loop {max(self.loops)} is beyond the cap of {len(loop.latents)}")
        chosen = loop.latents[jnp.array(self.loops) - 1]
        embedding: Any = parts.embed(observation)
        return jnp.concatenate([embedding.embedding[None], chosen]).astype(jnp.float16)

    @functools.cached_property
    def _compute_on_mesh(self) -> Callable[..., Array]:
        by_state: Any = PartitionSpec(None, sharding.DATA)
        in_specs = (sharding.REPLICATED, sharding.ROWS)
        return sharding.jit_per_device(self.mesh, self._compute, in_specs, by_state)


def _open_or_create(folder: pathlib.Path, info: LatentsInfo) -> LatentsInfo:
    """Return the header of the recording in a folder; create its empty files if there is none."""
    if (folder / HEADER).exists():
        found = _read_header(folder)
        if replace(found, done=0) != info:
            raise LatentsError(
                f"{folder} holds latents of another policy, other states or other loops: give another folder"
            )
        missing = [place for place in info.places if not (folder / _file_name(place)).is_file()]
        if missing:
            raise LatentsError(
                f"{folder}: {_file_name(missing[0])} is missing; remove the folder to start anew"
            )
        return found
    shape = (info.states, info.tokens, info.width)
    for place in info.places:
        with (folder / _file_name(place)).open("wb") as file:
            header = {"descr": "<f2", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 2 * info.states * info.tokens * info.width)
    _write_header(folder, info)
    return info


def _write_rows(file: Any, first: int, rows: Float16[np.ndarray, "n t d"]) -> None:
    """Write rows at their place. Not by memory map, whose pages would count as memory of this process."""
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
    path = folder / HEADER
    with reading("recording", path, lambda problem: LatentsError(f"{path}: {problem}")):
        header = read_json(path)
        if header.pop("format") != FORMAT:
            raise UserError("another format")
        return from_json(LatentsInfo, header, "its header")
