"""Rollouts of environments in JAX, on the devices."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Int, UInt32

from looped_actor.algorithms import Acting, acting_policy
from looped_actor.collectors.base import EXPERIENCE, PLAYERS, Experience
from looped_actor.collectors.rollouts import Players, new_players, play, stream
from looped_actor.devices import on_every_device, shardings
from looped_actor.envs import Environment, VectorEnv
from looped_actor.loop import OpenLoop, Streaming


@dataclass(frozen=True)
class EnvironmentCollector:
    """Plays copies of an environment in JAX, on the devices.

    Args:
      env: what to play.
      num_envs: copies, over all devices.
      rollout_steps: steps of each copy in an iteration.
      mesh: the devices.
      acting: streamed, or in step. What does not loop is always played in step.
    """

    env: Environment
    num_envs: int
    rollout_steps: int
    mesh: Mesh
    acting: Acting = field(default_factory=Streaming)
    on_host: bool = field(default=False, init=False)
    spec: Any = field(default=EXPERIENCE, init=False)

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of a rollout."""
        return self.num_envs * self.rollout_steps

    @property
    def world(self) -> VectorEnv:
        """The environments on all devices."""
        return self._world

    @functools.cached_property
    def _world(self) -> VectorEnv:
        return on_every_device(self.mesh, VectorEnv(self.env, self.num_envs))

    def begin(self, world: VectorEnv, root: UInt32[Array, "2"], seed: int) -> Players:
        """All environments at the start of their first episode, spread over the devices."""
        return jax.jit(new_players, out_shardings=shardings(self.mesh, PLAYERS))(
            world, on_every_device(self.mesh, root)
        )

    def collect(
        self,
        definition: nnx.GraphDef,
        world: VectorEnv,
        state: Any,
        given: Int[Array, "t b"] | None = None,
    ) -> Experience:
        """A rollout of this device's environments, by the policy or where they are given by other actions."""
        when = (state.root, state.iteration * self.rollout_steps, self.rollout_steps)
        policy = acting_policy(definition, state.weights, self.acting)
        if isinstance(policy, OpenLoop):
            assert isinstance(self.acting, Streaming)
            players, rollout = stream(world, state.players, policy, *when, self.acting, given)
        else:
            players, rollout = play(world, state.players, policy, *when, given)
        counts = {"asked": rollout.asked[None], "executed": rollout.executed[None]}
        return Experience(players, rollout._replace(**counts))

    def resume(self, state: Any, seed: int) -> Any:
        """As it is: the state holds all there is."""
        return state

    def prefetch(self, state: Any) -> None:
        """Nothing is collected on the host."""
