"""Proximal policy optimisation, as in the paper's equation for online learning.

Policy and value are read from the same latent at the halting loop. An update computes both anew, with
their own halting, so the loop at which an example stops may differ from that of acting.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, Shaped

from looped_actor.algorithms.collectives import average
from looped_actor.algorithms.deciding import Decide
from looped_actor.algorithms.rollout_config import RolloutConfig
from looped_actor.checks import above_zero, within
from looped_actor.errors import UserError
from looped_actor.loop import Memory


@dataclass(frozen=True)
class PPOConfig(RolloutConfig):
    """How to learn by PPO. The defaults are the paper's."""

    discount: float = 0.99
    """gamma."""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation, and of the value targets."""
    clip: float = 0.3
    """How far the ratio to the acting policy may go from 1."""
    entropy_cost: float = 0.01
    """c_H."""
    value_cost: float = 0.25
    """c_V, the factor of the squared error."""
    reward_scale: float = 1.0
    """Factor of all rewards. Values of about 1 leave the policy its share of a short training."""
    bootstrap_timeouts: bool = True
    """Expect something after a time-out; otherwise it counts as a true end."""
    FORMER: ClassVar = {"trace": "gae_lambda"}

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "clip", "reward_scale")
        within(self, 0, 1, "discount", "gae_lambda")
        for name in ("entropy_cost", "value_cost"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 0")


class PPOBatch(NamedTuple):
    """A batch of what PPO learns from."""

    observation: PyTree[Shaped[Array, "b ..."]]
    action: Shaped[Array, "b ..."]
    log_prob: Float[Array, " b"]
    """Log-probability of the action under the policy that took it."""
    advantage: Float[Array, " b"]
    """Normalised over the whole rollout."""
    value_target: Float[Array, " b"]
    loops: Int[Array, " b"]
    """Loops taken when acting: what `Packed` sorts by."""
    memory: Memory | None = None
    """What each thought started from when acting; None where nothing is carried."""


class PPOTerms(NamedTuple):
    """What the loss is made of, and what to watch beside it: of each example, or means of them."""

    policy_loss: Float[Array, "*b"]
    value_loss: Float[Array, "*b"]
    """Squared error, without its factor."""
    entropy: Float[Array, "*b"]
    kl: Float[Array, "*b"]
    """From the acting policy, estimated on its own actions."""
    clipped: Float[Array, "*b"]
    """Whether the ratio left the clipping range."""
    loops: Float[Array, "*b"]
    executed_loops: Float[Array, "*b"]
    """Loops that the hardware computed, forward and back, spread evenly; `loops` were asked for."""


def ppo_loss(decide: Decide, example: PPOBatch, config: PPOConfig) -> tuple[Float[Array, " b"], PPOTerms]:
    """The paper's loss of each example. A minibatch is learned from by their mean."""
    now = decide(example.observation, expected_loops=example.loops, memory=example.memory)
    log_ratio = now.distribution.log_prob(example.action) - example.log_prob
    ratio = jnp.exp(log_ratio)
    held = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
    terms = PPOTerms(
        policy_loss=-jnp.minimum(ratio * example.advantage, held * example.advantage),
        value_loss=(now.value - example.value_target) ** 2,
        entropy=now.distribution.entropy(),
        kl=ratio - 1 - log_ratio,
        clipped=(jnp.abs(ratio - 1) > config.clip).astype(ratio.dtype),
        loops=now.loop.loops.astype(ratio.dtype),
        executed_loops=jnp.full_like(ratio, now.loop.executed_to_learn / len(ratio)),
    )
    loss = terms.policy_loss + config.value_cost * terms.value_loss - config.entropy_cost * terms.entropy
    return loss, jax.lax.stop_gradient(terms)


def normalised_advantage(advantage: Float[Array, "..."], axis: str | None = None) -> Float[Array, "..."]:
    """Advantages with mean 0 and variance 1 over the whole rollout, on all devices."""
    mean = average(advantage.mean(), axis)
    variance = average(((advantage - mean) ** 2).mean(), axis)
    return (advantage - mean) / (jnp.sqrt(variance) + 1e-8)
