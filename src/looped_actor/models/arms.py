"""The arms of the paper's comparison: what is built for a task, and how it thinks."""

from dataclasses import dataclass, field
from typing import get_args

from flax import nnx

from looped_actor.errors import UserError
from looped_actor.loop import Carried, FixedLoops, FixedStart, HaltingRule, PolicyKL, Start
from looped_actor.models.actor import Actor, ActorCritic, PolicyModel
from looped_actor.models.drc import DRC, DRCConfig
from looped_actor.models.fprm import CoreConfig
from looped_actor.models.heads import ValueHead
from looped_actor.models.looped import LoopedTrunk, Trunk
from looped_actor.models.mlp import MLPActor
from looped_actor.models.stacks import Stack
from looped_actor.models.tasks import Task
from looped_actor.names import ArmName, StartName

STARTS: dict[StartName, Start] = {
    "fixed": FixedStart(),
    "carried": Carried(),
    "carried-bfloat16": Carried(bfloat16=True),
}
"""Where thoughts can start, by the names that configurations and commands know."""


@dataclass(frozen=True)
class Looped:
    """One core, looped until the halting rule is satisfied."""

    halting: HaltingRule = field(default_factory=PolicyKL)
    starting: Start = field(default_factory=FixedStart)

    @property
    def max_loops(self) -> int:
        """The cap."""
        return self.halting.max_loops

    @property
    def adaptive(self) -> bool:
        """Unless the number of loops is fixed."""
        return self.halting.min_loops < self.halting.max_loops

    def build(self, task: Task, core: CoreConfig, rngs: nnx.Rngs) -> PolicyModel:
        """Make the net."""
        return _assemble(task, core, LoopedTrunk(core, self.halting, self.starting, rngs=rngs), rngs)


@dataclass(frozen=True)
class Stacked:
    """`copies` cores, once each."""

    copies: int
    adaptive: bool = field(default=False, init=False)
    halting: None = field(default=None, init=False)

    @property
    def max_loops(self) -> int:
        """A core counts as a loop."""
        return self.copies

    def build(self, task: Task, core: CoreConfig, rngs: nnx.Rngs) -> PolicyModel:
        """Make the net."""
        return _assemble(task, core, Stack(core, self.copies, rngs=rngs), rngs)


@dataclass(frozen=True)
class RepeatedConvLSTM:
    """DRC: for puzzles only, since its convolutions need a board."""

    config: DRCConfig = field(default_factory=DRCConfig)
    adaptive: bool = field(default=False, init=False)
    halting: None = field(default=None, init=False)

    @property
    def max_loops(self) -> int:
        """A tick counts as a loop."""
        return self.config.ticks

    def build(self, task: Task, core: CoreConfig, rngs: nnx.Rngs) -> PolicyModel:
        """Make the net. The core's shape is not used."""
        if task.grid is None:
            raise UserError("DRC needs a board to convolve; this task observes vectors")
        return DRC(self.config, task.planes, task.grid, task.actions, rngs=rngs)


@dataclass(frozen=True)
class Perceptron:
    """The MLP actor of OGBench's reference: for vectors only."""

    hidden: tuple[int, ...] = (512, 512, 512)
    max_loops: int = field(default=1, init=False)
    adaptive: bool = field(default=False, init=False)
    halting: None = field(default=None, init=False)

    def build(self, task: Task, core: CoreConfig, rngs: nnx.Rngs) -> PolicyModel:
        """Make the net. The core's shape is not used."""
        if task.grid is not None:
            raise UserError("the arm mlp reads vectors; this task observes a board")
        return MLPActor(task.size, task.actions, self.hidden, task.differences, rngs=rngs)


Arm = Looped | Stacked | RepeatedConvLSTM | Perceptron
"""What is trained: `max_loops`, `adaptive`, `halting` (None where it does not loop) and `build`."""


def _assemble(task: Task, core: CoreConfig, trunk: Trunk, rngs: nnx.Rngs) -> PolicyModel:
    tokenizer, policy = task.tokenizer(core, rngs), task.policy_head(core, rngs)
    if task.grid is not None:
        return ActorCritic(tokenizer, trunk, policy, ValueHead(trunk.width, rngs=rngs))
    return Actor(tokenizer, trunk, policy)


def arm_named(
    name: ArmName,
    halting: HaltingRule,
    drc: DRCConfig | None = None,
    mlp: tuple[int, ...] = (512, 512, 512),
    start: StartName = "fixed",
) -> Arm:
    """An arm of the comparison.

    Args:
      name: which one.
      halting: of the looped arm. Iso-FLOPs has as many cores as it may loop.
      drc: the shape of the DRC. Default: the paper's.
      mlp: the layers of the MLP.
      start: where the thoughts of what loops start.
    """
    starting = STARTS[start]
    return {
        "looped": Looped(halting, starting),
        "iso-params": Stacked(1),
        "iso-flops": Stacked(halting.max_loops),
        "drc": RepeatedConvLSTM(drc or DRCConfig()),
        "mlp": Perceptron(mlp),
        "fixed-4": Looped(FixedLoops(4), starting),
        "fixed-8": Looped(FixedLoops(8), starting),
        "fixed-16": Looped(FixedLoops(16), starting),
    }[name]


ARMS: dict[str, Arm] = {name: arm_named(name, PolicyKL()) for name in get_args(ArmName)}
"""As in the paper."""


def arms_for(task: Task) -> dict[str, Arm]:
    """The arms that a task can be learned with."""
    return {name: arm for name, arm in ARMS.items() if name not in task.unfit_arms}


def paper_core(task: Task) -> CoreConfig:
    """The core of the paper (Table 2): a convolution where there is a board."""
    return CoreConfig(convolution=task.grid is not None)
