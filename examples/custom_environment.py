"""A custom environment in JAX: walk around walls to a goal. Train, evaluate, save and export a policy.

Run it, kill it at any moment, and run it again: it continues, and ends in the same bytes.
"""

import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp

import looped_actor
from looped_actor import CustomConfig, Outcome, PPOConfig

SIZE, WIDTH = 4, 16
MOVES = jnp.array([[-1, 0], [0, 1], [1, 0], [0, -1]])


class State(NamedTuple):
    """State of one episode: a pytree of arrays."""

    walls: jax.Array
    agent: jax.Array
    goal: jax.Array


@jax.tree_util.register_static
class Walk:
    """One copy of the environment, as pure functions. Batching and resets are done for you."""

    time_limit, num_actions = 20, 4

    def reset(self, key):
        """Draw a board with random walls, and free cells for agent and goal."""
        walls_key, cells_key = jax.random.split(key)
        agent, goal = jax.random.choice(cells_key, SIZE * SIZE, (2,), replace=False)
        walls = jax.random.bernoulli(walls_key, 0.2, (SIZE * SIZE,)).at[jnp.array([agent, goal])].set(False)
        position = lambda cell: jnp.stack(jnp.divmod(cell, SIZE))  # noqa: E731
        return State(walls.reshape(SIZE, SIZE), position(agent), position(goal))

    def step(self, state, action):
        """Move, unless there is a wall or the board ends."""
        target = jnp.clip(state.agent + MOVES[action], 0, SIZE - 1)
        agent = jnp.where(state.walls[tuple(target)], state.agent, target)
        at_goal = (agent == state.goal).all()
        return state._replace(agent=agent), Outcome(at_goal - 0.05, terminated=at_goal, success=at_goal)

    def observe(self, state):
        """Return the planes walls, agent and goal."""
        empty = jnp.zeros((SIZE, SIZE), bool)
        marks = [empty.at[tuple(cell)].set(True) for cell in (state.agent, state.goal)]
        return jnp.stack([state.walls, *marks], axis=-1).astype(jnp.uint8)


def build(rngs):
    """Return the net: a token for each cell, one looped core, a policy and a value."""
    core = looped_actor.CoreConfig(width=WIDTH, heads=2, layers=1)
    return looped_actor.Actor(
        looped_actor.PlanesTokenizer(3, WIDTH, rngs=rngs),
        looped_actor.LoopedTrunk(core, looped_actor.PolicyKL(max_loops=6), rngs=rngs),
        looped_actor.ReadoutLogits(WIDTH, 4, rngs=rngs),
        looped_actor.ValueHead(WIDTH, rngs=rngs),
    )


env = Walk()
ppo = PPOConfig(num_envs=64, rollout_steps=16, minibatch=256, epochs=2, learning_rate=5e-3, discount=0.95)
config = CustomConfig(task="walk", total_steps=30_720, algorithm=ppo, evaluate_every=10, checkpoint_every=5)

if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/walk"
    policy = looped_actor.train(config, folder, env=env, build=build)
    results = looped_actor.evaluate(policy, env)
    print(f"{results['success']:.0%} of {results['episodes']} succeed, mean loops {results['loops']:.1f}")
    looped_actor.export(policy, f"{folder}/exported", platforms=("cpu",))
    loaded = looped_actor.load_policy(folder, build)  # as another process would
    print(loaded.act(env.observe(env.reset(jax.random.key(0)))))
