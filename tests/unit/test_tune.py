"""Timing of microbatches and slots on the hardware at hand."""

import pytest
from test_plan import small_run

from looped_actor.planning import tune
from looped_actor.training.sharding import all_devices


def test_a_small_gain_is_no_reason_to_change_the_default():
    times = {2: 1.0, 1: 0.98, 4: 1.2}
    found = tune.TimedSizes("cpu", microbatches=times, slots=times | {8: 0.9})
    assert found.changes == {"microbatch": 2, "slots": 8}


@pytest.mark.parametrize("task", ["boxoban", "cube-double"])
def test_gradients_and_streams_are_timed(task, monkeypatch):
    monkeypatch.setattr(tune, "FACTORS", (0.25,))
    steps = []
    found = tune.time_sizes(small_run(task), all_devices(1), 1, lambda fraction, step: steps.append(step))
    assert found.device == "cpu"
    for times in (found.microbatches, found.slots):
        assert next(iter(times.values())) == 1
        assert all(time > 0 for time in times.values())
    assert set(found.changes) == {"microbatch", "slots"}
    assert steps[-1] == "done"


@pytest.mark.parametrize(("task", "arm"), [("boxoban", "iso-flops"), ("cube-double", None)])
def test_nets_that_do_not_loop_have_nothing_to_time(task, arm):
    with pytest.raises(ValueError, match="does not loop"):
        tune.time_sizes(small_run(task, arm), all_devices(1))
