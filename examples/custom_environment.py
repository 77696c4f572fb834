"""A world of your own in JAX, all the way: walk around walls to a goal; train, evaluate, save, export.

Run it, kill it at any moment, and run it again: it goes on, to the same bytes.
"""

import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp

import looped_actor
from looped_actor import Outcome, OwnConfig, PPOConfig

SIZE, WIDTH = 4, 16
MOVES = jnp.array([[-1, 0], [0, 1], [1, 0], [0, -1]])


class Place(NamedTuple):
    """One episode: a pytree of arrays."""

    walls: jax.Array
    agent: jax.Array
    goal: jax.Array


@jax.tree_util.register_static
class Walk:
    """One copy of the world, as pure functions. Many copies are run and restarted for you."""

    time_limit, num_actions = 20, 4

    def reset(self, key):
        """A board with random walls; agent and goal stand elsewhere."""
        walls_key, places_key = jax.random.split(key)
        agent, goal = jax.random.choice(places_key, SIZE * SIZE, (2,), replace=False)
        walls = jax.random.bernoulli(walls_key, 0.2, (SIZE * SIZE,)).at[jnp.array([agent, goal])].set(False)
        place = lambda cell: jnp.stack(jnp.divmod(cell, SIZE))  # noqa: E731
        return Place(walls.reshape(SIZE, SIZE), place(agent), place(goal))

    def step(self, state, action):
        """Move, unless there is a wall or the board ends."""
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
    core = looped_actor.CoreConfig(width=WIDTH, heads=2, layers=1, hidden_multiple=16)
    return looped_actor.ActorCritic(
        looped_actor.PlanesTokenizer(3, WIDTH, rngs=rngs),
        looped_actor.LoopedTrunk(core, looped_actor.PolicyKL(max_loops=6), rngs=rngs),
        looped_actor.ReadoutLogits(WIDTH, 4, rngs=rngs),
        looped_actor.ValueHead(WIDTH, rngs=rngs),
    )


env = Walk()
ppo = PPOConfig(num_envs=64, rollout_steps=16, minibatch=256, epochs=2, learning_rate=5e-3, discount=0.95)
config = OwnConfig(task="walk", total_steps=30_720, ppo=ppo, evaluate_every=10, checkpoint_every=5)

if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/walk"
    policy = looped_actor.train(config, folder, env=env, build=build)
    facts = looped_actor.evaluate(policy, env)
    print(f"{facts['success']:.0%} of {facts['episodes']} arrive, mean loops {facts['loops']:.1f}")
    looped_actor.export(policy, f"{folder}/exported", platforms=("cpu",))
    again = looped_actor.load_policy(folder, build)  # as another process would
    print(again.act(env.observe(env.reset(jax.random.key(0)))))
