"""The paper's six environments as shapes: what a net must read and what it must decide."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from flax import nnx

from looped_actor.errors import UserError
from looped_actor.models.fprm import CoreConfig
from looped_actor.models.heads import CellLogits, GaussianMean, PolicyHead, ReadoutLogits
from looped_actor.models.layers import Grid
from looped_actor.models.tokenizers import (
    GoalObservation,
    GoalTokenizer,
    PairedTokenizer,
    PlanesTokenizer,
    Tokenizer,
)


@dataclass(frozen=True)
class PuzzleTask:
    """A board of feature planes and discrete actions, learned online with a value."""

    planes: int
    grid: Grid
    board_actions: int = 0
    """Actions of the board as a whole, or 0."""
    cell_actions: int = 0
    """Actions on each cell, or 0."""
    reported_mean_loops: float | None = None
    """Mean loops of the paper's trained policy, where it was reported."""
    unfit_arms: tuple[str, ...] = field(default=("mlp",), init=False)
    """Arms that cannot learn it: an MLP reads vectors."""

    def __post_init__(self) -> None:
        if (self.board_actions > 0) == (self.cell_actions > 0):
            raise UserError("a puzzle has either board_actions or cell_actions")

    @property
    def features(self) -> int:
        """Numbers that observations are scaled by."""
        return self.planes

    @property
    def actions(self) -> int:
        """Actions in all."""
        return self.board_actions or self.cell_actions * self.grid[0] * self.grid[1]

    def observation(self, batch: int) -> jax.ShapeDtypeStruct:
        """The shape of a batch of observations."""
        return jax.ShapeDtypeStruct((batch, *self.grid, self.planes), jnp.float32)

    def tokenizer(self, core: CoreConfig, rngs: nnx.Rngs) -> Tokenizer:
        """A token per cell."""
        return PlanesTokenizer(self.planes, core.width, core.initial, rngs=rngs)

    def policy_head(self, core: CoreConfig, rngs: nnx.Rngs) -> PolicyHead:
        """Logits from the readout token, or from each cell's."""
        if self.board_actions:
            return ReadoutLogits(core.width, self.board_actions, rngs=rngs)
        return CellLogits(core.width, self.cell_actions, rngs=rngs)


@dataclass(frozen=True)
class ControlTask:
    """State and goal vectors and continuous actions, learned offline; the value is not looped."""

    size: int
    """Scalars of a state, and of a goal."""
    actions: int = 5
    paired: bool = False
    """One token for each (state_i, goal_i) instead of one for each scalar."""
    differences: bool = False
    """Nets that see state_i and goal_i together see |state_i - goal_i| too."""
    reported_mean_loops: float | None = None
    grid: None = field(default=None, init=False)
    unfit_arms: tuple[str, ...] = field(default=("drc",), init=False)
    """Arms that cannot learn it: DRC convolves a board."""

    @property
    def features(self) -> int:
        """Numbers that observations are scaled by."""
        return self.size

    def observation(self, batch: int) -> GoalObservation:
        """The shape of a batch of observations."""
        vector = jax.ShapeDtypeStruct((batch, self.size), jnp.float32)
        return GoalObservation(vector, vector)  # type: ignore[arg-type]

    def tokenizer(self, core: CoreConfig, rngs: nnx.Rngs) -> Tokenizer:
        """A token per scalar, or per pair."""
        given = self.size, core.width, core.initial
        if self.paired:
            return PairedTokenizer(*given, self.differences, rngs=rngs)
        return GoalTokenizer(*given, rngs=rngs)

    def policy_head(self, core: CoreConfig, rngs: nnx.Rngs) -> PolicyHead:
        """The mean of a unit-variance Gaussian."""
        return GaussianMean(core.width, self.actions, core.initial.robot(0.01), rngs=rngs)


Task = PuzzleTask | ControlTask

PUZZLE_TASKS = {
    "boxoban": PuzzleTask(planes=4, grid=(10, 10), board_actions=4, reported_mean_loops=9.8),
    "rush-hour": PuzzleTask(planes=7, grid=(6, 6), cell_actions=2, reported_mean_loops=15.1),
}
CONTROL_TASKS = {
    "cube-double": ControlTask(size=37),
    "cube-triple": ControlTask(size=46),
    "puzzle-3x3": ControlTask(size=55, paired=True),
    "scene": ControlTask(size=40),
}
TASKS: dict[str, Task] = {**PUZZLE_TASKS, **CONTROL_TASKS}
