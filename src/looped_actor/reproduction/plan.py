"""What an artifact takes before anything is run: runs, FLOPs, hours here and on an accelerator."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from looped_actor.models.tasks import TASKS
from looped_actor.reproduction.grid import RunKey, Study, is_finished
from looped_actor.runs.config import RunConfig
from looped_actor.runs.registry import run_of
from looped_actor.utils.checks import above_zero
from looped_actor.utils.errors import UserError

PEAK_FLOPS = {"b200": 1.1e15, "h100": 4.9e14, "a100": 1.56e14}
"""Peak of dense matrix products in TF32, which float32 nets use on these; from the makers' data sheets."""
UTILISATION = 0.055
"""The authors report 13 hours on a B200 for 1e8 steps of Boxoban, all 16 loops computed: 68 TFLOP/s by our
count, 6% of the peak. A little less is assumed."""
PAPER_CAP = 16
"""Loops at most, in the paper, of which `reported_mean_loops` were taken."""
_EXAMPLES = 8  # of the piece that is timed


class Accelerator(NamedTuple):
    """What hours are counted on."""

    name: str = "b200"
    utilisation: float = UTILISATION

    @property
    def rate(self) -> float:
        """FLOP/s that are reached."""
        if self.name not in PEAK_FLOPS:
            raise UserError(f"there is no figure for {self.name!r}; there are {', '.join(PEAK_FLOPS)}")
        above_zero(self, "utilisation")
        return PEAK_FLOPS[self.name] * self.utilisation


class PlannedRuns(NamedTuple):
    """Runs that differ in their seed only."""

    task: str
    learner: str
    arm: str
    runs: int
    steps: int
    """Steps of each run."""
    parameters: int
    flops: float
    """FLOPs of each run, at the cap."""
    expected_flops: float
    """FLOPs of each run, at the mean loops that the paper reports, where it does."""
    hours_here: float
    """Hours of each run, on one device of this machine."""
    accelerator_hours: float
    """Hours of each run on the accelerator, from the expected FLOPs."""
    finished: int
    begun: int


def plan(study: Study, keys: Sequence[RunKey], accelerator: Accelerator) -> list[PlannedRuns]:
    """What some runs take, and which of them are there."""
    firsts = {key.task: key for key in reversed(keys)}
    rates = {
        task: _flops_per_second(replace(study.config(key), arm="iso-params", seed=0))
        for task, key in firsts.items()
    }
    planned = []
    for task, learner, arm in dict.fromkeys(key[:3] for key in keys):
        own = [key for key in keys if key[:3] == (task, learner, arm)]
        config = study.config(own[0])
        steps = config.iterations * config.steps_per_iteration
        capped, reported = run_of(config).count(), TASKS[task].reported_mean_loops
        expected = capped
        if arm == "looped" and reported is not None:
            expected = run_of(config).count(reported / PAPER_CAP * run_of(config).net.max_loops)
        folders = [study.folder_of(key) for key in own]
        finished = sum(is_finished(folder) for folder in folders)
        planned.append(
            PlannedRuns(
                task=task,
                learner=learner,
                arm=arm,
                runs=len(own),
                steps=steps,
                parameters=capped.parameters,
                flops=capped.flops_per_step * steps,
                expected_flops=expected.flops_per_step * steps,
                hours_here=expected.flops_per_step * steps / rates[task] / 3600,
                accelerator_hours=expected.flops_per_step * steps / accelerator.rate / 3600,
                finished=finished,
                begun=sum(folder.exists() for folder in folders) - finished,
            )
        )
    return planned


@cache  # several figures need the same
def _flops_per_second(config: RunConfig) -> float:
    """What one device of this machine reaches on a task: timed with one pass through the core."""
    run = run_of(config)
    return run.count().flops_per_step / run.seconds_per_step(_EXAMPLES)
