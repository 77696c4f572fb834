"""A looped actor on an environment of Gymnasium: CartPole, from its four numbers."""

import gymnasium
from gymnasium.vector import AutoresetMode

from looped_actor import (
    ActorCritic,
    CoreConfig,
    LoopedTrunk,
    PolicyKL,
    ReadoutLogits,
    ValueHead,
    VectorTokenizer,
)
from looped_actor.algorithms import PPOConfig
from looped_actor.devices import all_devices
from looped_actor.training import ppo_trainer

ENVS, WIDTH, ITERATIONS = 16, 16, 40
same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
envs = gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="sync", vector_kwargs=same_step)


def build(rngs):
    """A token for each number that is observed, one core that loops, a policy and a value."""
    core = CoreConfig(width=WIDTH, heads=2, layers=1, hidden_multiple=16, convolution=False)
    return ActorCritic(
        VectorTokenizer(4, WIDTH, rngs=rngs),
        LoopedTrunk(core, PolicyKL(max_loops=8), rngs=rngs),
        ReadoutLogits(WIDTH, 2, rngs=rngs),
        ValueHead(WIDTH, rngs=rngs),
    )


config = PPOConfig(
    num_envs=ENVS,
    rollout_steps=64,
    minibatch=256,
    learning_rate=3e-3,
    decay_learning_rate=True,
    discount=0.98,
    reward_scale=0.05,
)
trainer = ppo_trainer(config, envs, build, ITERATIONS, all_devices(1))
state = trainer.begin(seed=0)
for iteration in range(1, ITERATIONS + 1):
    state, metrics = trainer.iterate(state)
    if iteration % 10 == 0:
        steps, length = iteration * trainer.steps_per_iteration, float(metrics.play.episode_length)
        print(f"{steps:6,} steps   episodes last {length:5.1f}   loops {float(metrics.play.loops):.1f}")
