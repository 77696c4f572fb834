"""A looped actor with random weights whose decisions take prescribed numbers of loops.

All the work of halting is done, and then the depth is read from a table by a hash of the observation. So
timings are of the execution alone, and do not depend on a trained policy.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from looped_actor.loop import HaltingRule, StreamablePolicy
from looped_actor.models import Actor, PolicyOutput
from looped_actor.planning.depths import never_converging, prescribe_depths, prescribed_depths


class DepthTable(nnx.Variable):
    """Loops per decision."""


class PrescribedActor(nnx.Module):
    """An actor that takes loops by `prescribed_depths`."""

    carry_latent = False

    def __init__(self, actor: Actor, depths: Int[Array, " n"]):
        assert actor.halting is not None
        self.actor, self.table = actor, DepthTable(depths)
        self.halting = never_converging(actor.halting)

    @property
    def depths(self) -> Int[Array, " n"]:
        """Loops per decision, to choose from."""
        return self.table[...].astype(jnp.int32)  # trainers make every variable a float

    @property
    def max_loops(self) -> int:
        """Cap."""
        return self.actor.max_loops

    def __call__(self, observation: Float[Array, "b r c p"], **options: Any) -> PolicyOutput:
        """Return the policy of a batch of observations."""
        options |= {"halting": self.halting, "caps": prescribed_depths(observation, self.depths)}
        return self.actor(observation, **options)

    def to_streaming(self, halting: HaltingRule | None = None) -> StreamablePolicy:
        """Return the policy in parts, to be streamed."""
        policy = self.actor.to_streaming(self.halting)
        assert policy is not None
        return prescribe_depths(policy, self.depths)

    def flops(self, observation: Any, loops: float) -> float:
        """Return the FLOPs of one decision."""
        return self.actor.flops(observation, loops)
