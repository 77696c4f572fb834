"""What the object behind a run offers, whatever its kind: `folder.run_of` makes the right one."""

import abc
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from jax.sharding import Mesh

from looped_actor.processes import Progress, no_progress
from looped_actor.runs.cost import Counted, Estimate
from looped_actor.runs.policy import Policy, Program
from looped_actor.runs.requests import EvaluationRequest
from looped_actor.training import Trainer

if TYPE_CHECKING:
    from looped_actor.runs.control import ControlRun
    from looped_actor.runs.puzzle import PuzzleRun


@dataclass(frozen=True)
class Run(abc.ABC):
    """The parts of a run, made from its configuration, its folder and the devices."""

    config: Any
    folder: pathlib.Path
    mesh: Mesh | None = None
    """None where nothing is computed."""
    parameters_in_state: ClassVar[str]
    """Where in the trainer's state the policy's parameters are."""

    @property
    def puzzle(self) -> "PuzzleRun":
        """The same, if it plays a puzzle; otherwise an error."""
        raise ValueError(f"{self.folder} is of {self.config.task}: this is for puzzles")

    @property
    def control(self) -> "ControlRun":
        """The same, if it plays OGBench's worlds; otherwise an error."""
        raise ValueError(f"{self.folder} is of {self.config.task}: this is for OGBench's worlds")

    @property
    @abc.abstractmethod
    def material(self) -> pathlib.Path:
        """The folder of its levels or data, where they are made for it."""

    @abc.abstractmethod
    def prepare(self, progress: Progress = no_progress) -> dict[str, str]:
        """Make the levels or data that are not there, and check them; returns their checksums by split."""

    @property
    @abc.abstractmethod
    def trainer(self) -> Trainer:
        """What learns. Opens the training data."""

    @abc.abstractmethod
    def evaluate(self, state: Any) -> Mapping[str, Any]:
        """Facts about a state of training that JSON can hold."""

    @abc.abstractmethod
    def play(
        self, policy: Policy, request: EvaluationRequest, progress: Progress = no_progress
    ) -> dict[str, Any]:
        """Facts about a policy that JSON can hold, as asked for."""

    @abc.abstractmethod
    def program(self, board: tuple[int, int] | None = None) -> Program:
        """What an exported policy reads and returns."""

    @abc.abstractmethod
    def count(self, loops: float | None = None) -> Counted:
        """Parameters and FLOPs at a number of loops. Default: at the cap."""

    @abc.abstractmethod
    def seconds_per_step(self, examples: int) -> float:
        """Of one device like this process's first, timed on a few examples; without a solver's time."""

    @abc.abstractmethod
    def cost(self, devices: int) -> Estimate:
        """Of the whole run."""

    def close(self) -> None:  # noqa: B027
        """Release worker processes, if there are any."""
