"""A world of your own in JAX: walk around walls to a goal. PPO trains a looped actor on it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from looped_actor import (
    ActorCritic,
    CoreConfig,
    LoopedTrunk,
    PlanesTokenizer,
    PolicyKL,
    ReadoutLogits,
    ValueHead,
)
from looped_actor.algorithms import PPOConfig
from looped_actor.devices import all_devices
from looped_actor.envs import Outcome
from looped_actor.training import ppo_trainer

SIZE, WIDTH, ITERATIONS = 4, 16, 30
MOVES = jnp.array([[-1, 0], [0, 1], [1, 0], [0, -1]])


class Place(NamedTuple):
    """One episode: a pytree of arrays."""

    walls: jax.Array
    agent: jax.Array
    goal: jax.Array


@jax.tree_util.register_static
class Walk:
    """One copy of the world, as pure functions. `VectorEnv` runs many of it, and starts them anew."""

    time_limit, num_actions = 20, 4

    def reset(self, key):
        """A board with walls here and there; agent and goal stand elsewhere."""
        walls_key, places_key = jax.random.split(key)
        agent, goal = jax.random.choice(places_key, SIZE * SIZE, (2,), replace=False)
        walls = jax.random.bernoulli(walls_key, 0.2, (SIZE * SIZE,)).at[jnp.array([agent, goal])].set(False)
        place = lambda cell: jnp.stack(jnp.divmod(cell, SIZE))  # noqa: E731
        return Place(walls.reshape(SIZE, SIZE), place(agent), place(goal))

    def step(self, state, action):
        """Go, unless there is a wall or the board ends."""
        there = jnp.clip(state.agent + MOVES[action], 0, SIZE - 1)
        agent = jnp.where(state.walls[tuple(there)], state.agent, there)
        arrived = (agent == state.goal).all()
        return state._replace(agent=agent), Outcome(arrived - 0.05, terminated=arrived, success=arrived)

    def observe(self, state):
        """Planes: walls, agent, goal."""
        empty = jnp.zeros((SIZE, SIZE), bool)
        marks = [empty.at[tuple(cell)].set(True) for cell in (state.agent, state.goal)]
        return jnp.stack([state.walls, *marks], axis=-1).astype(jnp.uint8)


def build(rngs):
    """A token for each cell, one core that loops, a policy and a value."""
    core = CoreConfig(width=WIDTH, heads=2, layers=1, hidden_multiple=16)
    return ActorCritic(
        PlanesTokenizer(3, WIDTH, rngs=rngs),
        LoopedTrunk(core, PolicyKL(max_loops=6), rngs=rngs),
        ReadoutLogits(WIDTH, 4, rngs=rngs),
        ValueHead(WIDTH, rngs=rngs),
    )


config = PPOConfig(num_envs=64, rollout_steps=16, minibatch=256, epochs=2, learning_rate=5e-3, discount=0.95)
trainer = ppo_trainer(config, Walk(), build, ITERATIONS, all_devices(1))
state = trainer.begin(seed=0)
for iteration in range(1, ITERATIONS + 1):
    state, metrics = trainer.iterate(state)
    if iteration % 10 == 0:
        steps, success = iteration * trainer.steps_per_iteration, float(metrics.play.success)
        print(f"{steps:6,} steps   {success:4.0%} arrive   mean loops {float(metrics.play.loops):.1f}")
