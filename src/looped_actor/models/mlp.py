"""MLPs over states and goals: the value and the critics of offline learning, and the simplest actor.

Their shape is that of OGBench's reference: dense layers with GELU, followed by layer norm in value and
critics.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped_actor.loop import HaltingRule, LoopResult, StreamablePolicy, UnitGaussian
from looped_actor.models.actor import PolicyOutput
from looped_actor.models.tokenizers import GoalObservation, state_and_goal

# Uniform, with a variance of 1 / mean(fan in, fan out).
_dense_init = nnx.initializers.variance_scaling(1.0, "fan_avg", "uniform")


class MLP(nnx.Module):
    """Hidden layers, each a linear map and GELU, with `layer_norm` followed by layer norm."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], *, layer_norm: bool, rngs: nnx.Rngs):
        self.sizes = (inputs, *hidden)
        self.layers = nnx.List(
            nnx.Linear(a, b, kernel_init=_dense_init, rngs=rngs) for a, b in itertools.pairwise(self.sizes)
        )
        self.norms = nnx.List(nnx.LayerNorm(size, rngs=rngs) for size in hidden) if layer_norm else None

    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b m"]:
        """Return the features of each example."""
        for i, layer in enumerate(self.layers):
            x = nnx.gelu(layer(x))
            if self.norms is not None:
                x = self.norms[i](x)
        return x

    @property
    def flops(self) -> int:
        """FLOPs of one example."""
        return sum(2 * a * b for a, b in itertools.pairwise(self.sizes))


class _Scalar(nnx.Module):
    """A net with one output."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], *, rngs: nnx.Rngs):
        self.features = MLP(inputs, hidden, layer_norm=True, rngs=rngs)
        self.out = nnx.Linear(hidden[-1], 1, kernel_init=_dense_init, rngs=rngs)

    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, " b"]:
        return self.out(self.features(x))[:, 0]

    @property
    def flops(self) -> int:
        return self.features.flops + 2 * self.out.in_features


@dataclass(frozen=True)
class _Input:
    """State and goal as one vector, with `differences` also the absolute difference of each scalar."""

    state: int
    """Scalars of a state."""
    differences: bool

    @property
    def size(self) -> int:
        """Scalars of the vector."""
        return (2 + self.differences) * self.state

    def of(self, observation: GoalObservation) -> Float[Array, "b m"]:
        """Return the vector of each example."""
        rows = state_and_goal(observation, self.state, self.differences)
        return rows.reshape(len(rows), self.size)


class GoalValue(nnx.Module):
    """Value V(s, g): minus the expected discounted steps from a state to a goal."""

    def __init__(self, size: int, hidden: tuple[int, ...], differences: bool = False, *, rngs: nnx.Rngs):
        self.input = _Input(size, differences)
        self.net = _Scalar(self.input.size, hidden, rngs=rngs)

    def __call__(self, state: Float[Array, "b n"], goal: Float[Array, "b n"]) -> Float[Array, " b"]:
        """Return the value of each state."""
        return self.net(self.input.of(GoalObservation(state, goal)))

    @property
    def flops(self) -> int:
        """FLOPs of one example."""
        return self.net.flops


class TwinGoalCritics(nnx.Module):
    """Two critics Q(s, g, a) of one shape, with separate parameters."""

    def __init__(
        self, size: int, actions: int, hidden: tuple[int, ...], differences: bool = False, *, rngs: nnx.Rngs
    ):
        self.input = _Input(size, differences)

        @nnx.split_rngs(splits=2)
        @nnx.vmap
        def make(rngs: nnx.Rngs) -> _Scalar:
            return _Scalar(self.input.size + actions, hidden, rngs=rngs)

        self.twins = make(rngs)

    def __call__(
        self, state: Float[Array, "b n"], goal: Float[Array, "b n"], action: Float[Array, "b a"]
    ) -> Float[Array, "2 b"]:
        """Return the values of actions by each of the two."""
        definition, parameters = nnx.split(self.twins)
        x = jnp.concatenate([self.input.of(GoalObservation(state, goal)), action], axis=-1)
        return jax.vmap(lambda own: nnx.merge(definition, own)(x))(parameters)

    @property
    def flops(self) -> int:
        """FLOPs of one example, for both."""
        return 2 * self.twins.flops


class MLPActor(nnx.Module):
    """OGBench's own policy, without tokens and without loops. It ignores the options of other policies."""

    halting, max_loops, carry_latent = None, 1, False

    def __init__(
        self, size: int, actions: int, hidden: tuple[int, ...], differences: bool = False, *, rngs: nnx.Rngs
    ):
        self.input = _Input(size, differences)
        self.features = MLP(self.input.size, hidden, layer_norm=False, rngs=rngs)
        small = nnx.initializers.variance_scaling(1e-2, "fan_avg", "uniform")
        self.mean = nnx.Linear(hidden[-1], actions, kernel_init=small, precision="highest", rngs=rngs)

    def __call__(self, observation: GoalObservation, *, record: bool = False, **options: Any) -> PolicyOutput:
        """Return the policy of a batch of observations. The whole net counts as one loop."""
        latent = self.features(self.input.of(observation))
        loop = LoopResult.of_fixed_depth(latent, 1, latent[None] if record else None)
        return PolicyOutput(UnitGaussian(self.mean(latent)), loop=loop)

    def to_streaming(self, halting: HaltingRule | None = None) -> StreamablePolicy | None:
        return None

    def flops(self, observation: Any, loops: float) -> float:
        """Return the FLOPs of one decision."""
        return self.features.flops + 2 * self.mean.in_features * self.mean.out_features
