"""Actors: a tokenizer, a trunk and heads."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.loop import Distribution, HaltingRule, LoopResult, StreamablePolicy
from looped_actor.models.heads import PolicyHead, ValueHead
from looped_actor.models.looped import LoopedTrunk, Trunk
from looped_actor.models.tokenizers import Tokenizer
from looped_actor.utils.errors import UserError


class PolicyOutput(NamedTuple):
    """The output of a policy for a batch of observations."""

    distribution: Distribution
    """Action distribution, read at the loop at which each example stopped."""
    value: Float[Array, " b"] | None = None
    """Value, read from the same latent; None for nets without a value head."""
    loop: LoopResult | None = None
    """Latents and numbers of loops; None where only latents were decoded."""


@runtime_checkable
class PolicyModel(Protocol):
    """Interface of every net: looped, stacks, DRC and MLP alike."""

    def __call__(self, observation: Any, **options: Any) -> PolicyOutput:
        """Return the policy of a batch of observations. The options are those of `run_loop`, and `carry`."""
        ...

    @property
    def halting(self) -> HaltingRule | None:
        """Halting rule; None for nets that do not loop."""
        ...

    @property
    def max_loops(self) -> int:
        """Cap, or fixed depth."""
        ...

    @property
    def carry_latent(self) -> bool:
        """True if a decision starts from the latent of the last one of its episode."""
        ...

    def to_streaming(self, halting: HaltingRule | None = None) -> StreamablePolicy | None:
        """Return the policy in parts, to be streamed; None for nets that do not loop."""
        ...

    def flops(self, observation: Any, loops: float) -> float:
        """Return the FLOPs of one decision at a number of loops."""
        ...


class Actor(nnx.Module):
    """A policy, and a value if a value head is given: with a `LoopedTrunk`, the looped actor.

    The head that acts is the head that halts: the trunk compares what `policy` reads from consecutive loops.
    """

    def __init__(
        self, tokenizer: Tokenizer, trunk: Trunk, policy: PolicyHead, value: ValueHead | None = None
    ):
        parts = {"tokenizer": tokenizer, "trunk": trunk, "policy": policy, "value": value}
        widths = {name: part.width for name, part in parts.items() if part is not None}
        if len(set(widths.values())) > 1:
            raise UserError(f"the parts of an actor must share one width, but have {widths}")
        self.tokenizer, self.trunk, self.policy, self.value = tokenizer, trunk, policy, value

    @property
    def halting(self) -> HaltingRule | None:
        return self.trunk.halting

    @property
    def max_loops(self) -> int:
        return self.trunk.max_loops

    @property
    def carry_latent(self) -> bool:
        return self.trunk.carry_latent

    def __call__(self, observation: Any, **options: Any) -> PolicyOutput:
        """Return the policy of a batch of observations.

        Args:
          observation: the batch.
          options: `carry` (default: episodes begin), and `halting`, `execution`, `expected_loops`, `caps` and
            `record` as in `run_loop`.
        """
        loop = self.trunk(self.tokenizer(observation), self.policy, **options)
        return self.decode(loop.latent)._replace(loop=loop)

    def decode(self, latent: Float[Array, "b t d"]) -> PolicyOutput:
        """Return the policy, and the value, that are read from latents."""
        return PolicyOutput(self.policy(latent), None if self.value is None else self.value(latent))

    def to_streaming(self, halting: HaltingRule | None = None) -> StreamablePolicy | None:
        if not isinstance(self.trunk, LoopedTrunk):
            return None
        problem = self.trunk.problem(self.policy, halting)
        return StreamablePolicy(self.tokenizer, self.trunk.initial_latent, problem, self.decode)

    def tokens(self, observation: Any) -> int:
        """Return the number of tokens of one example, the readout token included."""
        definition, state = nnx.split(self.tokenizer)  # the parameters may be shapes only
        embedded = jax.eval_shape(
            lambda state, o: nnx.merge(definition, state)(o).embedding, state, observation
        )
        return embedded.shape[1]

    def flops(self, observation: Any, loops: float) -> float:
        tokens = self.tokens(observation)
        readout = self.policy.flops(tokens)
        value = 0 if self.value is None else self.value.flops(1)
        return self.tokenizer.flops(tokens) + self.trunk.flops(tokens, loops, readout) + readout + value
