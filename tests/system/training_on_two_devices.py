"""Run by test_many_devices.py in a process of its own: training on two CPU devices is that on one."""

import jax
import numpy as np

from looped_actor.algorithms.GCIQL import GCIQL
from looped_actor.algorithms.PPO import PPO
from looped_actor.offline import from_ogbench
from looped_actor.puzzles.banks import starter_bank
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training.fit import to_numbers
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import replace_fields
from looped_actor.utils.tensors import named_leaves
from tiny import WORLD_CHANGES, tiny

jax.config.update("jax_enable_x64", True)
assert jax.device_count() == 2


def ppo(mesh):
    run = run_of(tiny()).puzzle
    env = run.environment(starter_bank("boxoban"))
    return PPO(run.config.ppo, env, run_of(run.config).build, 3, mesh, dtype=float)


def gciql(mesh):
    config = replace_fields(preset("cube-double", "micro", "looped"), WORLD_CHANGES)
    chance = np.random.default_rng(0)
    data = from_ogbench(
        {
            "observations": chance.normal(size=(84, 37)).astype(np.float32),
            "actions": chance.uniform(-1, 1, (84, 5)).astype(np.float32),
            "valids": np.arange(84) % 21 < 20,
        }
    )
    return GCIQL(config.gciql, config.goals, data, run_of(config).nets, 3, mesh, dtype=float)


for make in (ppo, gciql):
    ends = []
    for devices in (1, 2):
        trainer = make(all_devices(devices))
        state, metrics = trainer.iterate(trainer.init(seed=0))
        for _ in range(2):
            state, metrics = jax.block_until_ready(trainer.iterate(state))
        ends.append((named_leaves(jax.device_get(state)), to_numbers(jax.device_get(metrics))))
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
