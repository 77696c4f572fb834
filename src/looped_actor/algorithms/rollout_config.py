"""What every learner that plays has to know: how much to play, and how to learn from it."""

from dataclasses import dataclass
from typing import Literal

from looped_actor.checks import above_zero, at_least_one
from looped_actor.errors import UserError


@dataclass(frozen=True)
class RolloutConfig:
    """How to learn online. The defaults are the paper's."""

    num_envs: int = 1024
    """Environments that are played side by side, over all devices."""
    rollout_steps: int = 64
    """Steps of each environment between two rounds of updates."""
    minibatch: int = 1024
    """Examples of one gradient, over all devices."""
    epochs: int = 4
    """How often each example is learned from."""
    learning_rate: float = 1e-4
    """Step size of Adam."""
    decay_learning_rate: bool = False
    """Let the learning rate fall linearly, to nothing at the end of the run."""
    max_gradient_norm: float = 1.0
    """Longer gradients are shortened to this."""
    shuffle: Literal["examples", "steps"] = "examples"
    """What a minibatch is drawn from: the examples of all environments, or whole time steps of them."""
    hard_resets: int = 0
    """How often in a run all environments begin a new episode together."""
    cell_statistics: bool = False
    """Scale each cell of a board by its own statistics, down to deviations of 1e-6, instead of each plane by
    one for all cells, down to 1e-3. Such a policy plays boards of one size."""
    scale_before_learning: bool = False
    """Update the statistics of observations between acting and learning, as the authors' code does: the first
    rollout acts on raw observations, and the value after the last step uses the updated statistics. Otherwise
    they start from the first observations, and a rollout counts after it was learned from."""
    min_cap: int | None = None
    """Learn each minibatch with a cap drawn at random, from this one to the cap of the halting rule, so that
    a block learns to be repeated. Play has the rule's cap. None: learning has it too."""
    measure_gradients: bool = False
    """Add to metrics.csv the share of clipped updates, and norms of the gradient by the core: whole, and by
    each of its loops, or by each core of a stack."""

    def __post_init__(self) -> None:
        at_least_one(self, "num_envs", "rollout_steps", "minibatch", "epochs", "min_cap")
        if self.hard_resets < 0:
            raise UserError(f"hard_resets is {self.hard_resets}; it must be at least 0")
        if self.shuffle == "steps" and self.minibatch % self.num_envs:
            raise UserError(
                f"minibatches of {self.minibatch} are not whole time steps of {self.num_envs} environments: "
                "shuffle examples, or change one of them"
            )
        above_zero(self, "learning_rate", "max_gradient_norm")
        if self.steps_per_iteration % self.minibatch:
            raise UserError(
                f"{self.num_envs} environments x {self.rollout_steps} steps = {self.steps_per_iteration} "
                f"examples do not divide into minibatches of {self.minibatch}"
            )

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one rollout."""
        return self.num_envs * self.rollout_steps

    @property
    def updates_per_iteration(self) -> int:
        """Gradients of one rollout."""
        return self.epochs * self.steps_per_iteration // self.minibatch
