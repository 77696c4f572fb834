"""Policies put together: a tokenizer, a trunk, and heads."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.errors import UserError
from looped_actor.loop import Distribution, HaltingRule, LoopResult, OpenLoop, Start, starting_of
from looped_actor.models.heads import PolicyHead, ValueHead
from looped_actor.models.looped import LoopedTrunk, Trunk
from looped_actor.models.tokenizers import Tokenizer


class Decision(NamedTuple):
    """What is read from latents: a batch of decisions without the way they were reached."""

    distribution: Distribution
    value: Float[Array, " b"] | None = None


class ActorOutput(NamedTuple):
    """A batch of decisions."""

    distribution: Distribution
    """The policy, read at the loop at which each example stopped."""
    loop: LoopResult
    """How it got there."""


class ActorCriticOutput(NamedTuple):
    """A batch of decisions and values."""

    distribution: Distribution
    value: Float[Array, " b"]
    """The value, read from the same latent as the policy."""
    loop: LoopResult


@runtime_checkable
class PolicyModel(Protocol):
    """Every arm: looped, stacks and DRC alike."""

    def __call__(self, observation: Any, **options: Any) -> ActorOutput | ActorCriticOutput:
        """Decide for a batch of observations. The options are those of `run_loop`."""
        ...

    @property
    def halting(self) -> HaltingRule | None:
        """When it stops; None where it does not loop."""
        ...

    @property
    def max_loops(self) -> int:
        """Its cap, or its fixed depth."""
        ...

    def as_open_loop(self, halting: HaltingRule | None = None) -> OpenLoop | None:
        """The policy taken apart, to be streamed; None where it does not loop."""
        ...

    def flops(self, observation: Any, loops: float) -> float:
        """FLOPs of one decision at a number of loops."""
        ...


class _Thinker(nnx.Module):
    """Tokenizer, trunk and policy head: what actor and actor-critic share."""

    def __init__(self, tokenizer: Tokenizer, trunk: Trunk, policy: PolicyHead):
        _check_widths(tokenizer=tokenizer, trunk=trunk, policy=policy)
        self.tokenizer, self.trunk, self.policy = tokenizer, trunk, policy

    @property
    def halting(self) -> HaltingRule | None:
        """When it stops; None where it does not loop."""
        return self.trunk.halting

    @property
    def max_loops(self) -> int:
        """Its cap, or the cores of a stack."""
        return self.trunk.max_loops

    @property
    def starting(self) -> Start:
        """Where its thoughts start."""
        return starting_of(self.trunk)

    def think(self, observation: Any, **options: Any) -> LoopResult:
        """From observations to latents. The options are those of `run_loop`, and `memory`."""
        return self.trunk(self.tokenizer(observation), self.policy, **options)

    def decode(self, latent: Float[Array, "b t d"]) -> Decision:
        """From latents to decisions."""
        return Decision(self.policy(latent))

    def as_open_loop(self, halting: HaltingRule | None = None) -> OpenLoop | None:
        """The policy taken apart, to be streamed; None where it does not loop."""
        if not isinstance(self.trunk, LoopedTrunk):
            return None
        problem = self.trunk.problem(self.policy, halting)
        return OpenLoop(self.tokenizer, self.trunk.begin, problem, self.decode)

    def tokens(self, observation: Any) -> int:
        """Tokens of one example, the readout token among them."""
        definition, state = nnx.split(self.tokenizer)  # the parameters may be shapes only
        embedded = jax.eval_shape(
            lambda state, o: nnx.merge(definition, state)(o).embedding, state, observation
        )
        return embedded.shape[1]

    def flops(self, observation: Any, loops: float) -> float:
        """FLOPs of one decision at a number of loops."""
        tokens = self.tokens(observation)
        readout = self.policy.flops(tokens)
        return self.tokenizer.flops(tokens) + self.trunk.flops(tokens, loops, readout) + readout


class Actor(_Thinker):
    """A policy: with a `LoopedTrunk`, the looped actor; with a `Stack`, one of its baselines.

    The head that acts is the head that halts: the trunk compares what `policy` reads from its loops.
    """

    def __call__(self, observation: Any, **options: Any) -> ActorOutput:
        """Decide for a batch of observations. The options are those of `think`."""
        loop = self.think(observation, **options)
        return ActorOutput(self.decode(loop.latent).distribution, loop)


class ActorCritic(_Thinker):
    """A policy and a value that share the trunk, both decoded at the halting loop."""

    def __init__(self, tokenizer: Tokenizer, trunk: Trunk, policy: PolicyHead, value: ValueHead):
        super().__init__(tokenizer, trunk, policy)
        _check_widths(trunk=trunk, value=value)
        self.value = value

    def __call__(self, observation: Any, **options: Any) -> ActorCriticOutput:
        """Decide for and judge a batch of observations. The options are those of `think`."""
        loop = self.think(observation, **options)
        decision = self.decode(loop.latent)
        assert decision.value is not None
        return ActorCriticOutput(decision.distribution, decision.value, loop)

    def decode(self, latent: Float[Array, "b t d"]) -> Decision:
        """From latents to decisions and values."""
        return Decision(self.policy(latent), self.value(latent))

    def flops(self, observation: Any, loops: float) -> float:
        """FLOPs of one decision and its value at a number of loops."""
        return super().flops(observation, loops) + self.value.flops(1)


def _check_widths(**parts: Any) -> None:
    widths = {name: part.width for name, part in parts.items()}
    if len(set(widths.values())) > 1:
        raise UserError(f"the parts of an actor must share one width, but have {widths}")
