"""The arms of the paper's comparison: what is built for a task."""

from dataclasses import dataclass, field

from flax import nnx

from looped_actor.loop import FixedLoops, HaltingRule, LatentResidual, PolicyKL
from looped_actor.models.actor import Actor, PolicyModel
from looped_actor.models.drc import DRC, DRCConfig
from looped_actor.models.fprm import CoreConfig
from looped_actor.models.heads import ValueHead
from looped_actor.models.layers import DEFAULT_INITIAL, InitialWeights
from looped_actor.models.looped import LoopedTrunk, Trunk
from looped_actor.models.mlp import MLPActor
from looped_actor.models.stacks import Stack
from looped_actor.models.tasks import Task
from looped_actor.names import ArmName
from looped_actor.utils.checks import at_least_one, sizes_above_zero
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class Looped:
    """One core, looped until the halting rule is satisfied."""

    core: CoreConfig = field(default_factory=CoreConfig)
    halting: PolicyKL | LatentResidual | FixedLoops = field(default_factory=PolicyKL)
    """When a decision stops looping."""
    carry_latent: bool = False
    """Start a decision from the latent in which the last one of its episode ended, instead of from z_0."""

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        return f"fixed-{self.halting.loops}" if isinstance(self.halting, FixedLoops) else "looped"

    @property
    def max_loops(self) -> int:
        return self.halting.max_loops

    def build(self, task: Task, rngs: nnx.Rngs, initial: InitialWeights = DEFAULT_INITIAL) -> PolicyModel:
        """Return a net with new weights."""
        trunk = LoopedTrunk(
            self.core,
            self.halting,
            convolution=task.grid is not None,
            carry_latent=self.carry_latent,
            initial=initial,
            rngs=rngs,
        )
        return _assemble(task, trunk, rngs, initial)


@dataclass(frozen=True)
class Stacked:
    """Copies of a core, applied once each: Iso-Params with one copy, Iso-FLOPs with as many as may be
    looped."""

    core: CoreConfig = field(default_factory=CoreConfig)
    copies: int = 16
    """Number of cores."""

    def __post_init__(self) -> None:
        at_least_one(self, "copies")

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        return "iso-params" if self.copies == 1 else "iso-flops"

    @property
    def halting(self) -> None:
        return None

    @property
    def max_loops(self) -> int:
        return self.copies

    def build(self, task: Task, rngs: nnx.Rngs, initial: InitialWeights = DEFAULT_INITIAL) -> PolicyModel:
        """Return a net with new weights."""
        trunk = Stack(self.core, self.copies, convolution=task.grid is not None, initial=initial, rngs=rngs)
        return _assemble(task, trunk, rngs, initial)


@dataclass(frozen=True)
class RepeatedConvLSTM(DRCConfig):
    """DRC(D, N), for boards only."""

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        return "drc"

    @property
    def halting(self) -> None:
        return None

    @property
    def max_loops(self) -> int:
        return self.ticks

    def build(self, task: Task, rngs: nnx.Rngs, initial: InitialWeights = DEFAULT_INITIAL) -> PolicyModel:
        """Return a net with new weights."""
        if task.grid is None:
            raise UserError("DRC needs a board to convolve; this task observes vectors")
        return DRC(self, task.planes, task.grid, task.actions, rngs=rngs)


@dataclass(frozen=True)
class Perceptron:
    """The MLP actor of OGBench's reference, for vectors only."""

    hidden: tuple[int, ...] = (512, 512, 512)
    """Widths of the layers."""

    def __post_init__(self) -> None:
        sizes_above_zero(self, "hidden")

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        return "mlp"

    @property
    def halting(self) -> None:
        return None

    @property
    def max_loops(self) -> int:
        return 1

    def build(self, task: Task, rngs: nnx.Rngs, initial: InitialWeights = DEFAULT_INITIAL) -> PolicyModel:
        """Return a net with new weights."""
        if task.grid is not None:
            raise UserError("the arm mlp reads vectors; this task observes a board")
        return MLPActor(task.size, task.actions, self.hidden, task.differences, rngs=rngs)


Arm = Looped | Stacked | RepeatedConvLSTM | Perceptron
"""Every arm has `name`, `max_loops`, `halting` (None if it does not loop) and `build`."""


def _assemble(task: Task, trunk: Trunk, rngs: nnx.Rngs, initial: InitialWeights) -> PolicyModel:
    tokenizer = task.tokenizer(trunk.width, rngs, initial)
    policy = task.policy_head(trunk.width, rngs, initial)
    value = ValueHead(trunk.width, rngs=rngs) if task.grid is not None else None
    return Actor(tokenizer, trunk, policy, value)


def arm_named(
    name: ArmName,
    core: CoreConfig,
    halting: HaltingRule,
    drc: DRCConfig | None = None,
    mlp: tuple[int, ...] = (512, 512, 512),
) -> Arm:
    """Return an arm of the comparison.

    Args:
      name: of the arm.
      core: the core that is looped or stacked.
      halting: halting rule of the looped arm. Iso-FLOPs has as many cores as it may loop.
      drc: shape of the DRC. Default: DRC(3, 3).
      mlp: layers of the MLP.
    """
    if name == "drc":
        return RepeatedConvLSTM(**vars(drc or DRCConfig()))
    if name == "mlp":
        return Perceptron(mlp)
    if name.startswith("fixed-"):
        return Looped(core, FixedLoops(int(name.removeprefix("fixed-"))))
    copies = {"iso-params": 1, "iso-flops": halting.max_loops}
    return Stacked(core, copies[name]) if name in copies else Looped(core, halting)  # type: ignore[arg-type]


def paper_core() -> CoreConfig:
    """Return the core of the paper (Table 2)."""
    return CoreConfig(width=128, heads=4, layers=2)
