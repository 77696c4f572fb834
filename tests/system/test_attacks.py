"""What an attack on the package found, one test for each finding."""

import json
import multiprocessing
import os
import pathlib
import resource

import numpy as np
import pytest
import safetensors.numpy

import looped_actor
from looped_actor.files import write_whole
from looped_actor.games import LevelError
from looped_actor.games.boxoban import Cell
from looped_actor.levels import open_bank
from looped_actor.runs.folder import begin_run
from looped_actor.runs.policy import PolicyError
from looped_actor.solvers.boxoban import possible_pushes, solve_cells
from tiny import tiny

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": 2**31, "width": "scene"}, "header.width is 'scene'; it must be of type int"),
        ({"height": 2**31, "width": 2**31}, "sides of 1 to 64 are read"),
        ({"height": 0}, "sides of 1 to 64 are read"),
        ({"count": [1] * 3}, "header.count is"),
        ({"later": 1}, "has no field 'later'"),
    ],
)
def test_the_header_of_a_bank_is_checked_before_it_is_computed_with(change, message, tmp_path):
    header = {"format": "looped-actor levels 1", "game": "boxoban", "count": 1, "height": 5, "width": 5}
    header |= {"source": "", "licence": "", "checksum": "0"} | change
    data = safetensors.numpy.save({"cells": np.zeros((1, 13), np.uint8)}, {"bank": json.dumps(header)})
    (tmp_path / "evil.levels").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LevelError, match=message):
        open_bank(tmp_path / "evil.levels")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_boards_that_are_too_large_are_not_called_unsolvable():
    cells = np.zeros((3, 200), np.uint8)
    cells[1, 1], cells[1, 2], cells[1, 190] = Cell.PLAYER, Cell.BOX, Cell.TARGET
    for search in (solve_cells, possible_pushes):
        with pytest.raises(ValueError, match="a board of 3x200; sides of 1 to 64"):
            search(cells)


def test_a_number_that_becomes_infinite_is_refused(tmp_path):
    source = ROOT / "results" / "micro_rush_hour" / "policy"
    tensors = safetensors.numpy.load_file(source / "policy.safetensors")
    name = next(iter(tensors))
    tensors[name] = np.full(tensors[name].shape, 1e300)
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    data = safetensors.numpy.save(tensors, {"format": "looped-actor policy 1"})
    (tmp_path / "policy.safetensors").write_bytes(data)
    with pytest.raises(PolicyError, match=f"{name} holds what is not a finite"):
        looped_actor.load_policy(tmp_path)


def test_only_regular_files_are_written_over(tmp_path):
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    write_whole(real, b"1")
    write_whole(real, b"2")
    assert real.read_bytes() == b"2"
    link.symlink_to(real)
    os.mkfifo(pipe)
    for target in (link, pipe, pathlib.Path(os.devnull), tmp_path):
        with pytest.raises(ValueError, match="is no regular file"):
            write_whole(target, b"3")
    assert real.read_bytes() == b"2"
    assert pathlib.Path(os.devnull).is_char_device()


def begin(folder, seed, barrier, outcomes):
    barrier.wait()
    try:
        outcomes.put(begin_run(tiny(seed=seed), folder).seed)
    except ValueError as error:
        outcomes.put(str(error))


def test_two_runs_begun_at_once_in_one_folder_are_one(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    barrier, outcomes = spawn.Barrier(2), spawn.Queue()
    both = [spawn.Process(target=begin, args=(tmp_path / "run", s, barrier, outcomes)) for s in (1, 2)]
    for process in both:
        process.start()
    told = [outcomes.get(timeout=120) for _ in both]
    for process in both:
        process.join()
    (seed,) = [one for one in told if isinstance(one, int)]
    (refused,) = [one for one in told if isinstance(one, str)]
    assert "another process is" in refused or "is the folder of a run already" in refused
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == seed
