"""Imitation of a solver: the policy plays, the solver says what would have been best.

The loss is the cross-entropy to a *set*: all optimal actions of a state count as one, however the policy
shares its probability among them. States come from the policy's own play and from the solver's, so the
policy learns where it errs as well as where it should be.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from looped_actor.algorithms.deciding import Decide
from looped_actor.algorithms.rollout_config import RolloutConfig
from looped_actor.checks import within
from looped_actor.errors import UserError
from looped_actor.loop import Memory
from looped_actor.solvers import Advice


@dataclass(frozen=True)
class ImitationConfig(RolloutConfig):
    """How to learn from a solver."""

    solver_share: float = 0.5
    """Share of the environments that the solver plays; the policy plays the others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0, 1, "solver_share")
        if self.shuffle != "examples" or self.hard_resets:
            raise UserError("imitation shuffles examples and has no hard resets: these are options of PPO")


@runtime_checkable
class Teacher(Protocol):
    """A solver. Bring your own by giving it these two methods; both see what the policy sees."""

    def advise(self, observation: Shaped[np.ndarray, "n ..."]) -> Advice:
        """The optimal actions of each state."""
        ...

    def demonstrate(self, observation: Shaped[np.ndarray, "n ..."], steps: int) -> Int[np.ndarray, "n s"]:
        """The first actions of a shortest solution of each state, and -1 after its end."""
        ...


class Advised(NamedTuple):
    """A batch of what imitation learns from."""

    observation: PyTree[Shaped[Array, "b ..."]]
    optimal: Bool[Array, "b a"]
    """Where none is, the example counts for nothing."""
    loops: Int[Array, " b"]
    """Loops taken when acting: what `Packed` sorts by."""
    memory: Memory | None = None
    """What each thought started from when acting; None where nothing is carried."""


class ImitationTerms(NamedTuple):
    """What to watch beside the loss: of each example, or means of them."""

    accuracy: Float[Array, "*b"]
    """Whether the most probable action is an optimal one."""
    entropy: Float[Array, "*b"]
    loops: Float[Array, "*b"]
    executed_loops: Float[Array, "*b"]
    """Loops that the hardware computed, forward and back, spread evenly; `loops` were asked for."""


def imitation_loss(decide: Decide, example: Advised) -> tuple[Float[Array, " b"], ImitationTerms]:
    """Minus the log of the probability that each example gives to its optimal actions together."""
    now = decide(example.observation, expected_loops=example.loops, memory=example.memory)
    log_probabilities = now.distribution.log_probabilities
    advised = example.optimal.any(axis=-1)
    # Where nothing is optimal, everything counts, and then nothing does: else there would be 0 x inf.
    counted = example.optimal | ~advised[:, None]
    in_the_set = jax.nn.logsumexp(jnp.where(counted, log_probabilities, -jnp.inf), axis=-1)
    loss = jnp.where(advised, -in_the_set, 0)
    chosen = jnp.take_along_axis(example.optimal, now.distribution.mode()[:, None], axis=-1)[:, 0]
    terms = ImitationTerms(
        accuracy=chosen.astype(loss.dtype),
        entropy=now.distribution.entropy(),
        loops=now.loop.loops.astype(loss.dtype),
        executed_loops=jnp.full_like(loss, now.loop.executed_to_learn / len(loss)),
    )
    return loss, jax.lax.stop_gradient(terms)
