"""Recipes: the choices in which the authors' code differs from this project's defaults (docs/paper.md)."""

from dataclasses import dataclass
from typing import Literal

from looped_actor.models import AUTHORS_INITIAL, DEFAULT_INITIAL, InitialWeights
from looped_actor.utils.errors import UserError

RecipeName = Literal["default", "authors"]


@dataclass(frozen=True)
class Recipe:
    """Details of online learning. Configurations name one of `RECIPES`; studies may mix their own."""

    initial: InitialWeights = DEFAULT_INITIAL
    """Distributions of the initial weights."""
    bootstrap_timeouts: bool = True
    """Bootstrap from the value after a time-out. False: a time-out counts as a termination."""
    shuffle: Literal["examples", "steps"] = "examples"
    """Unit of minibatches: examples of all environments, or whole time steps of them."""
    hard_resets: int = 0
    """Number of times in a run that all environments start a new episode together."""
    cell_statistics: bool = False
    """Normalise each cell of a board by its own statistics, with a floor of 1e-6, instead of each plane by
    one for all cells, with a floor of 1e-3. Such a policy plays boards of one size."""
    statistics_before_learning: bool = False
    """Update the statistics between acting and learning: the first rollout acts on raw observations, and the
    value after the last step uses the updated statistics. False: they start from the first observations, and
    a rollout counts only after learning."""

    def __post_init__(self) -> None:
        if self.hard_resets < 0:
            raise UserError(f"hard_resets is {self.hard_resets}; it must be at least 0")


DEFAULT = Recipe()
AUTHORS = Recipe(
    initial=AUTHORS_INITIAL,
    bootstrap_timeouts=False,
    shuffle="steps",
    hard_resets=100,
    cell_statistics=True,
    statistics_before_learning=True,
)
RECIPES: dict[RecipeName, Recipe] = {"default": DEFAULT, "authors": AUTHORS}
