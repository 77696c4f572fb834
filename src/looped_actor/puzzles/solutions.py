"""Optimal solutions of the levels of a bank: over processes, resumable, in one file that executes nothing."""

import functools
import hashlib
import json
import os
import pathlib
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
import safetensors.numpy
from jaxtyping import Integer, Shaped

from looped_actor.puzzles.banks import LevelBank
from looped_actor.puzzles.catalogue import game_named
from looped_actor.puzzles.grid import LevelError
from looped_actor.puzzles.search import default_node_limit
from looped_actor.utils.codec import from_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import checksum_of, read_tensors, reading, write_whole
from looped_actor.utils.processes import Pool, Progress, no_progress, run_batches

LEVELS_PER_BATCH = 50
FORMAT = "looped-actor solutions 1"


@dataclass(frozen=True)
class SolveJob:
    """The levels to solve, and the limit of the search."""

    game: str
    bank_checksum: str
    first: int
    """Index of the first level."""
    count: int
    """Number of levels."""
    node_limit: int
    """States after which a search gives up."""


class _Batch(NamedTuple):
    game: str
    cells: np.ndarray
    node_limit: int


@dataclass(frozen=True)
class Solutions:
    """Solutions of consecutive levels of a bank, from level `job.first` on. All lists are concatenated.

    In Boxoban a move is a direction and a push is (box, direction). In Rush Hour a move is (vehicle,
    distance) and there are no pushes. Levels that were not solved have neither.
    """

    job: SolveJob
    status: Integer[np.ndarray, " n"]
    """Values of `SolveStatus`."""
    nodes: Integer[np.ndarray, " n"]
    """States that each search stored."""
    all_moves: Shaped[np.ndarray, "m ..."]
    all_pushes: Integer[np.ndarray, "p 2"]
    move_counts: Integer[np.ndarray, " n"]
    push_counts: Integer[np.ndarray, " n"]

    def __post_init__(self) -> None:
        lengths = {len(values) for values in (self.status, self.nodes, self.move_counts, self.push_counts)}
        if lengths != {self.job.count}:
            raise UserError(f"columns of {sorted(lengths)} levels, where {self.job.count} were to be solved")
        moves, pushes = self.move_counts.sum(dtype=np.int64), self.push_counts.sum(dtype=np.int64)
        if moves != len(self.all_moves) or pushes != len(self.all_pushes):
            raise UserError("not as many moves or pushes as the counts of the levels add up to")

    def __len__(self) -> int:
        return len(self.status)

    def moves(self, index: int) -> np.ndarray:
        """Return the moves of one level; level `job.first` has index 0."""
        end = int(self._move_ends[index])
        return self.all_moves[end - int(self.move_counts[index]) : end]

    def pushes(self, index: int) -> np.ndarray:
        """Return the pushes of one level."""
        end = int(self._push_ends[index])
        return self.all_pushes[end - int(self.push_counts[index]) : end]

    @cached_property
    def _move_ends(self) -> np.ndarray:
        return self.move_counts.cumsum(dtype=np.int64)

    @cached_property
    def _push_ends(self) -> np.ndarray:
        return self.push_counts.cumsum(dtype=np.int64)


def solve_bank(
    bank: LevelBank,
    *,
    first: int = 0,
    count: int | None = None,
    node_limit: int | None = None,
    workers: int | Pool = 1,
    parts: pathlib.Path | None = None,
    progress: Progress = no_progress,
) -> Solutions:
    """Solve `count` levels of a bank optimally. Default: all from `first` on.

    Args:
      bank: The levels.
      first: Index of the first level.
      count: Number of levels.
      node_limit: States after which a search gives up. Default: `default_node_limit` of boards of this size.
      workers: Processes, or a pool.
      parts: Folder that keeps finished batches, from which the same job can be resumed.
      progress: Called with the number of levels done and of all levels.
    """
    count = len(bank) - first if count is None else count
    if first < 0 or count < 1 or first + count > len(bank):
        raise LevelError(f"no {count} levels from {first} on; there are {len(bank)}", source=bank.name)
    if node_limit is None:
        node_limit = default_node_limit(bank.info.height, bank.info.width)
    job = SolveJob(
        game=bank.info.game,
        bank_checksum=bank.info.checksum,
        first=first,
        count=count,
        node_limit=node_limit,
    )
    if parts is not None:
        parts = parts / hashlib.sha256(json.dumps(asdict(job)).encode()).hexdigest()[:16]
    tasks = (
        _Batch(job.game, bank.cells(slice(begin, min(begin + LEVELS_PER_BATCH, first + count))), node_limit)
        for begin in range(first, first + count, LEVELS_PER_BATCH)
    )
    batches, done = [], 0
    for batch in run_batches(solve_batch, tasks, workers=workers, parts=parts):
        batches.append(batch)
        done += len(batch["status"])
        progress(done, count)
    return Solutions(job, **{name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]})


def solve_batch(task: _Batch) -> dict[str, np.ndarray]:
    """Solve some levels, in a worker."""
    solve = game_named(task.game).solve
    solved = [solve(cells, task.node_limit) for cells in task.cells]
    return {
        "status": np.array([s.status for s in solved], np.uint8),
        "nodes": np.array([s.nodes for s in solved], np.uint32),
        "all_moves": np.concatenate([s.moves for s in solved]),
        "all_pushes": np.concatenate([s.pushes for s in solved]),
        "move_counts": np.array([len(s.moves) for s in solved], np.uint16),
        "push_counts": np.array([len(s.pushes) for s in solved], np.uint16),
    }


def solution_wins(bank: LevelBank, solutions: Solutions, index: int) -> bool:
    """Return whether a solution, played by the plain rules, solves its level."""
    board = bank.board(solutions.job.first + index)
    return bank.game.replay(board, solutions.moves(index))[-1].solved


def write_solutions(solutions: Solutions, path: str | os.PathLike) -> None:
    """Write solutions. The file appears only when it is complete."""
    arrays = {field.name: getattr(solutions, field.name) for field in fields(solutions)[1:]}  # not the job
    about = {"format": FORMAT, "checksum": checksum_of(arrays), **asdict(solutions.job)}
    header = json.dumps(about, sort_keys=True)
    write_whole(path, safetensors.numpy.save(arrays, metadata={"solutions": header}))


def open_solutions(path: str | os.PathLike, bank: LevelBank | None = None) -> Solutions:
    """Read solutions. If a bank is given, they must be of its levels."""
    name = os.fspath(path)
    with reading("file of solutions", path, functools.partial(LevelError, source=name)):
        metadata, arrays = read_tensors(path)
        header = json.loads(metadata["solutions"])
        if header.pop("format") != FORMAT:
            raise LevelError(f"not in the format {FORMAT!r}", source=name)
        checksum = header.pop("checksum", None)  # files of older versions have none
        if checksum is not None and checksum != checksum_of(arrays):
            raise LevelError("the file is damaged: its checksum does not match", source=name)
        solutions = Solutions(from_json(SolveJob, header, "its header"), **arrays)
    if bank is not None and solutions.job.bank_checksum != bank.info.checksum:
        raise LevelError(f"these solutions are of other levels than {bank.name}", source=name)
    return solutions
