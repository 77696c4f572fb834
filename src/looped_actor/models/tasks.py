"""The paper's six environments as shapes of observations and actions."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from flax import nnx

from looped_actor.models.heads import CellLogits, GaussianMean, PolicyHead, ReadoutLogits
from looped_actor.models.layers import Grid, InitialWeights
from looped_actor.models.tokenizers import (
    GoalObservation,
    GoalTokenizer,
    PairedTokenizer,
    PlanesTokenizer,
    Tokenizer,
)
from looped_actor.utils.errors import UserError


@dataclass(frozen=True)
class PuzzleTask:
    """A board of feature planes and discrete actions, learned online with a value."""

    planes: int
    grid: Grid
    board_actions: int = 0
    """Number of actions on the board as a whole, or 0."""
    cell_actions: int = 0
    """Number of actions on each cell, or 0."""
    reported_mean_loops: float | None = None
    """Mean loops of the paper's trained policy; None if not reported."""
    unfit_arms: tuple[str, ...] = field(default=("mlp",), init=False)
    """Arms that cannot learn the task: an MLP reads vectors."""

    def __post_init__(self) -> None:
        if (self.board_actions > 0) == (self.cell_actions > 0):
            raise UserError("a puzzle has either board_actions or cell_actions")

    @property
    def features(self) -> int:
        """Number of features that observations are normalised by."""
        return self.planes

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.board_actions or self.cell_actions * self.grid[0] * self.grid[1]

    def observation(self, batch: int) -> jax.ShapeDtypeStruct:
        """Return the shape of a batch of observations."""
        return jax.ShapeDtypeStruct((batch, *self.grid, self.planes), jnp.float32)

    def tokenizer(self, width: int, rngs: nnx.Rngs, initial: InitialWeights) -> Tokenizer:
        """Return a tokenizer with one token per cell."""
        return PlanesTokenizer(self.planes, width, initial, rngs=rngs)

    def policy_head(self, width: int, rngs: nnx.Rngs, initial: InitialWeights) -> PolicyHead:
        """Return a head that reads logits from the readout token, or from each cell's."""
        if self.board_actions:
            return ReadoutLogits(width, self.board_actions, rngs=rngs)
        return CellLogits(width, self.cell_actions, rngs=rngs)


@dataclass(frozen=True)
class RobotTask:
    """State and goal vectors and continuous actions, learned offline; the value is not looped."""

    size: int
    """Number of scalars of a state, and of a goal."""
    actions: int = 5
    paired: bool = False
    """Use one token for each (state_i, goal_i) instead of one for each scalar."""
    differences: bool = False
    """Give |state_i - goal_i| to nets that see state_i and goal_i together."""
    reported_mean_loops: float | None = None
    grid: None = field(default=None, init=False)
    unfit_arms: tuple[str, ...] = field(default=("drc",), init=False)
    """Arms that cannot learn the task: DRC convolves a board."""

    @property
    def features(self) -> int:
        """Number of features that observations are normalised by."""
        return self.size

    def observation(self, batch: int) -> GoalObservation:
        """Return the shape of a batch of observations."""
        vector = jax.ShapeDtypeStruct((batch, self.size), jnp.float32)
        return GoalObservation(vector, vector)  # type: ignore[arg-type]

    def tokenizer(self, width: int, rngs: nnx.Rngs, initial: InitialWeights) -> Tokenizer:
        """Return a tokenizer with one token per scalar, or per pair."""
        if self.paired:
            return PairedTokenizer(self.size, width, initial, self.differences, rngs=rngs)
        return GoalTokenizer(self.size, width, initial, rngs=rngs)

    def policy_head(self, width: int, rngs: nnx.Rngs, initial: InitialWeights) -> PolicyHead:
        """Return a head for the mean of a unit-variance Gaussian."""
        return GaussianMean(width, self.actions, initial.robot(0.01), rngs=rngs)


Task = PuzzleTask | RobotTask

PUZZLE_TASKS = {
    "boxoban": PuzzleTask(planes=4, grid=(10, 10), board_actions=4, reported_mean_loops=9.8),
    "rush-hour": PuzzleTask(planes=7, grid=(6, 6), cell_actions=2, reported_mean_loops=15.1),
}
ROBOT_TASKS = {
    "cube-double": RobotTask(size=37),
    "cube-triple": RobotTask(size=46),
    "puzzle-3x3": RobotTask(size=55, paired=True),
    "scene": RobotTask(size=40),
}
TASKS: dict[str, Task] = {**PUZZLE_TASKS, **ROBOT_TASKS}
