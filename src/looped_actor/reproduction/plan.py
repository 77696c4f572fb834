"""Cost of an artifact before its runs are trained: FLOPs, hours on this machine and on an accelerator."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from looped_actor.models.tasks import TASKS
from looped_actor.planning.estimate import count, seconds_per_step
from looped_actor.reproduction.grid import RunKey, Study, is_finished
from looped_actor.runs.config import RunConfig
from looped_actor.runs.registry import run_of
from looped_actor.utils.checks import above_zero
from looped_actor.utils.errors import UserError

PEAK_FLOPS = {"b200": 1.1e15, "h100": 4.9e14, "a100": 1.56e14}
"""Peak of dense matrix products in TF32, the type of float32 nets on these, by the makers' data sheets."""
UTILISATION = 0.055
"""Share of the peak that is assumed. The authors report 13 hours on a B200 for 1e8 steps of Boxoban with all
16 loops computed: 68 TFLOP/s by our count, 6% of the peak."""
PAPER_CAP = 16
"""Cap of the paper's policies, to which `reported_mean_loops` belong."""
TIMED_EXAMPLES = 8


class Accelerator(NamedTuple):
    """An accelerator for which hours are estimated."""

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
    """Runs that differ only in their seed."""

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
    """FLOPs of each run, at the mean loops that the paper reports, or else at the cap."""
    hours_here: float
    """Hours of each run, on one device of this machine."""
    accelerator_hours: float
    """Hours of each run on the accelerator, from the expected FLOPs."""
    finished: int
    begun: int


def plan(study: Study, keys: Sequence[RunKey], accelerator: Accelerator) -> list[PlannedRuns]:
    """Return the cost of some runs, and how many of them are finished or begun."""
    first_keys = {key.task: key for key in reversed(keys)}
    rates = {
        task: _flops_per_second(study.config(key._replace(arm="iso-params", seed=0)))
        for task, key in first_keys.items()
    }
    planned = []
    for task, learner, arm in dict.fromkeys(key[:3] for key in keys):
        own = [key for key in keys if key[:3] == (task, learner, arm)]
        config = study.config(own[0])
        run, steps = run_of(config), config.iterations * config.steps_per_iteration
        capped, reported = count(run), TASKS[task].reported_mean_loops
        expected = capped
        if arm == "looped" and reported is not None:
            expected = count(run, reported / PAPER_CAP * run.spec.max_loops)
        flops = expected.flops_per_step * steps
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
                expected_flops=flops,
                hours_here=flops / rates[task] / 3600,
                accelerator_hours=flops / accelerator.rate / 3600,
                finished=finished,
                begun=sum(folder.exists() for folder in folders) - finished,
            )
        )
    return planned


@cache  # several figures need the same
def _flops_per_second(config: RunConfig) -> float:
    """Return the FLOP/s of one device of this machine on a task, timed with one pass through the core."""
    run = run_of(config)
    return count(run).flops_per_step / seconds_per_step(run, TIMED_EXAMPLES)
