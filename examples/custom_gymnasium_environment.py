"""An environment of Gymnasium, CartPole: train, evaluate, save and export a policy.

Run it, kill it at any moment, and run it again: it continues from its newest checkpoint.
"""

import sys

import gymnasium
from gymnasium.vector import AutoresetMode

import looped_actor
from looped_actor import CustomConfig, PPOConfig

ENVS, WIDTH = 16, 16


def env():
    """Return a vector environment. It is called once for training and once for evaluation."""
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
    return gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="sync", vector_kwargs=same_step)


def build(rngs):
    """Return the net: a token for each scalar of the observation, one looped core, a policy and a value."""
    core = looped_actor.CoreConfig(width=WIDTH, heads=2, layers=1)
    return looped_actor.Actor(
        looped_actor.VectorTokenizer(4, WIDTH, rngs=rngs),
        looped_actor.LoopedTrunk(core, looped_actor.PolicyKL(max_loops=8), convolution=False, rngs=rngs),
        looped_actor.ReadoutLogits(WIDTH, 2, rngs=rngs),
        looped_actor.ValueHead(WIDTH, rngs=rngs),
    )


ppo = PPOConfig(
    num_envs=ENVS,
    rollout_steps=64,
    minibatch=256,
    learning_rate=3e-3,
    decay_learning_rate=True,
    discount=0.98,
    reward_scale=0.05,
)
config = CustomConfig(
    task="CartPole", total_steps=40_960, algorithm=ppo, episodes=32, evaluate_every=10, checkpoint_every=5
)

if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/cart_pole"
    policy = looped_actor.train(config, folder, env=env, build=build)
    results = looped_actor.evaluate(policy, gymnasium.make("CartPole-v1"), count=20)
    print(f"mean episode length {results['mean_steps']:.0f} steps, mean loops {results['loops']:.1f}")
    looped_actor.export(policy, f"{folder}/exported", platforms=("cpu",))
    loaded = looped_actor.load_policy(folder, build)  # as another process would
    observation, _ = gymnasium.make("CartPole-v1").reset(seed=0)
    print(loaded.act(observation))
