"""Long work in batches: order, resuming, and a worker that dies."""

import os

import numpy as np
import pytest

from looped_actor.utils.processes import run_batches


def square(number: int) -> dict[str, np.ndarray]:
    return {"square": np.array([number**2])}


def die_at_three(number: int) -> dict[str, np.ndarray]:
    if number == 3:
        os._exit(9)
    return square(number)


def never(number: int) -> dict[str, np.ndarray]:
    raise AssertionError("this was finished before")


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_are_found_again(workers, tmp_path):
    squares = [
        int(batch["square"][0]) for batch in run_batches(square, range(7), workers=workers, parts=tmp_path)
    ]
    assert squares == [n**2 for n in range(7)]
    again = run_batches(never, range(7), workers=1, parts=tmp_path)
    assert [int(batch["square"][0]) for batch in again] == squares


def test_a_part_that_was_cut_short_is_done_again(tmp_path):
    list(run_batches(square, range(3), workers=1, parts=tmp_path))
    part = tmp_path / "000001.part"
    part.write_bytes(part.read_bytes()[:-3])
    assert [
        int(batch["square"][0]) for batch in run_batches(square, range(3), workers=1, parts=tmp_path)
    ] == [0, 1, 4]


def test_a_worker_that_dies_is_told_of(tmp_path):
    with pytest.raises(ChildProcessError, match="run the command again"):
        list(run_batches(die_at_three, range(9), workers=2, parts=tmp_path))
    assert list(run_batches(square, range(9), workers=1, parts=tmp_path))[8]["square"] == 64


def test_no_workers():
    with pytest.raises(ValueError, match="at least 1"):
        list(run_batches(square, range(3), workers=0))
