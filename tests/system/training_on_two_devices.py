"""Training on two CPU devices, compared with one. test_many_devices.py runs this in a new process."""

import jax
import numpy as np

from looped_actor.algorithms import GCIQL, PPO
from looped_actor.offline import from_ogbench
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.catalogue import game_named
from looped_actor.runs.registry import run_of
from looped_actor.training.fit import to_numbers
from looped_actor.training.sharding import all_devices
from looped_actor.utils.tensors import named_leaves
from tiny import tiny, tiny_robot

jax.config.update("jax_enable_x64", True)
assert jax.device_count() == 2


def ppo(mesh):
    run = run_of(tiny())
    env = game_named("boxoban").environment(starter_bank("boxoban").on_device(), run.config.time_limit)
    return PPO(run.config.algorithm, env, run.build, 3, mesh, dtype=float)


def gciql(mesh):
    run = run_of(tiny_robot())
    rng = np.random.default_rng(0)
    data = from_ogbench(
        {
            "observations": rng.normal(size=(84, 37)).astype(np.float32),
            "actions": rng.uniform(-1, 1, (84, 5)).astype(np.float32),
            "valids": np.arange(84) % 21 < 20,
        }
    )
    return GCIQL(run.config.algorithm, run.config.goals, data, run.nets, 3, mesh, dtype=float)


for make in (ppo, gciql):
    ends = []
    for devices in (1, 2):
        trainer = make(all_devices(devices))
        state, metrics = trainer.iterate(trainer.init(seed=0))
        for _ in range(2):
            state, metrics = jax.block_until_ready(trainer.iterate(state))
        ends.append((named_leaves(jax.device_get(state)), to_numbers(trainer, metrics)))
    (one, numbers), (two, same) = ends
    for name, leaf in one.items():
        if leaf.dtype.kind in "iub":
            assert (two[name] == leaf).all(), name
        else:
            np.testing.assert_allclose(two[name], leaf, rtol=1e-8, atol=1e-10, err_msg=name)
    for name, number in numbers.items():
        if not name.endswith(("executed", "utilisation")):  # how a batch is cut depends on the devices
            np.testing.assert_allclose(same[name], number, rtol=1e-8, atol=1e-10, err_msg=name)
    print(make.__name__, "agrees")
