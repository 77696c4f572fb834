"""Optimal solutions of all levels of a bank: over processes, resumable, in one file that executes nothing."""

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
from looped_actor.puzzles.boxoban import solver as boxoban
from looped_actor.puzzles.grid import LevelError
from looped_actor.puzzles.replay import played
from looped_actor.puzzles.rush_hour import solver as rush_hour
from looped_actor.puzzles.rush_hour.rules import RushHourBoard
from looped_actor.puzzles.solve_status import node_limit_for
from looped_actor.utils.codec import from_json
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import checksum_of, read_tensors, reading, write_whole
from looped_actor.utils.processes import Pool, Progress, no_progress, run_batches

LEVELS_PER_BATCH = 50
FORMAT = "looped-actor solutions 1"


@dataclass(frozen=True)
class SolveJob:
    """What was solved, and how far the search went."""

    game: str
    bank_checksum: str
    first: int
    count: int
    node_limit: int


class _Batch(NamedTuple):
    game: str
    cells: np.ndarray
    node_limit: int


@dataclass(frozen=True)
class Solutions:
    """Solutions of consecutive levels of a bank, from level `job.first` on. All lists are joined end to end.

    For Boxoban a move is a direction and a push is (box, direction). For Rush Hour a move is (vehicle,
    distance) and there are no pushes. Levels that were not solved have none.
    """

    job: SolveJob
    status: Integer[np.ndarray, " n"]
    """Values of `SolveStatus`."""
    nodes: Integer[np.ndarray, " n"]
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
        """The moves of one level; the first solved one has index 0."""
        end = int(self._move_ends[index])
        return self.all_moves[end - int(self.move_counts[index]) : end]

    def pushes(self, index: int) -> np.ndarray:
        """The pushes of one level."""
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
    """Solve levels of a bank optimally. `parts` keeps finished batches, so that a job can be resumed.

    A search that has seen `node_limit` states gives up. Default: `node_limit_for` boards of this size.
    """
    count = len(bank) - first if count is None else count
    if first < 0 or count < 1 or first + count > len(bank):
        raise LevelError(f"no {count} levels from {first} on; there are {len(bank)}", source=bank.name)
    node_limit = node_limit_for(bank.info.height, bank.info.width) if node_limit is None else node_limit
    job = SolveJob(bank.info.game, bank.info.checksum, first, count, node_limit)
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
    """Solve some levels: what a worker does."""
    solve = _solve_boxoban if task.game == "boxoban" else _solve_rush_hour
    solved = [solve(cells, task.node_limit) for cells in task.cells]
    return {
        "status": np.array([s.status for s in solved], np.uint8),
        "nodes": np.array([s.nodes for s in solved], np.uint32),
        "all_moves": np.concatenate([s.moves for s in solved]),
        "all_pushes": np.concatenate([s.pushes for s in solved]),
        "move_counts": np.array([len(s.moves) for s in solved], np.uint16),
        "push_counts": np.array([len(s.pushes) for s in solved], np.uint16),
    }


def _solve_boxoban(cells: np.ndarray, node_limit: int) -> boxoban.PackedSolution:
    return boxoban.solve_cells(cells, node_limit=node_limit)


def _solve_rush_hour(cells: np.ndarray, node_limit: int) -> boxoban.PackedSolution:
    solution = rush_hour.solve(RushHourBoard.from_cells(cells), node_limit=node_limit)
    moves = np.array(solution.moves, np.int8).reshape(-1, 2)
    return boxoban.PackedSolution(solution.status.value, moves, np.empty((0, 2), np.uint8), solution.nodes)


def replays(bank: LevelBank, solutions: Solutions, index: int) -> bool:
    """Whether a solution, played by the plain rules, wins its level."""
    return played(bank.board(solutions.job.first + index), solutions.moves(index))[-1].solved


def write_solutions(solutions: Solutions, path: str | os.PathLike) -> None:
    """Write solutions. The file appears only when it is whole."""
    arrays = {field.name: getattr(solutions, field.name) for field in fields(solutions)[1:]}  # not the job
    about = {"format": FORMAT, "checksum": checksum_of(arrays), **asdict(solutions.job)}
    header = json.dumps(about, sort_keys=True)
    write_whole(path, safetensors.numpy.save(arrays, metadata={"solutions": header}))


def open_solutions(path: str | os.PathLike, bank: LevelBank | None = None) -> Solutions:
    """Read solutions; if a bank is given, they must be of its levels."""
    name = os.fspath(path)
    with reading("file of solutions", path, functools.partial(LevelError, source=name)):
        said, arrays = read_tensors(path)
        header = json.loads(said["solutions"])
        if header.pop("format") != FORMAT:
            raise LevelError(f"not in the format {FORMAT!r}", source=name)
        checksum = header.pop("checksum", None)  # files of older versions have none
        if checksum is not None and checksum != checksum_of(arrays):
            raise LevelError("the file is damaged: its checksum does not match", source=name)
        solutions = Solutions(from_json(SolveJob, header, "its header"), **arrays)
    if bank is not None and solutions.job.bank_checksum != bank.info.checksum:
        raise LevelError(f"these solutions are of other levels than {bank.name}", source=name)
    return solutions
