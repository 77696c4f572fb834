"""Steps per second of the puzzles, relative to Jumanji's Sokoban: 1,024 copies, new levels from a full bank.

python benchmarks/envs.py --boxoban unfiltered-train.levels --rush-hour rush-hour-train.levels --out
results/worlds.json

All take turns in one process; the fastest turn of each counts. Actions are drawn before. Every step computes
the observation and passes it on, as for a policy; rewards and ends are returned.
"""

import argparse
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jumanji.environments.routing.sokoban.env import Sokoban
from jumanji.environments.routing.sokoban.generator import Generator
from jumanji.environments.routing.sokoban.types import State
from jumanji.wrappers import VmapAutoResetWrapper

from looped_actor.envs import VectorEnv
from looped_actor.planning.timing import take_turns
from looped_actor.puzzles.banks import LevelBank, open_bank
from looped_actor.puzzles.boxoban.env import Boxoban
from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.rush_hour.env import RushHour
from looped_actor.reproduction.record import write_record


class BankGenerator(Generator):
    """Draws levels as Jumanji does, from a bank instead of text files."""

    def __init__(self, bank: LevelBank):
        fixed, variable = [], []
        for first in range(0, len(bank), 50_000):
            cells = bank.cells(slice(first, first + 50_000))
            fixed.append(((cells & Cell.WALL) != 0) * 1 + ((cells & Cell.TARGET) != 0) * 2)
            variable.append(((cells & Cell.PLAYER) != 0) * 3 + ((cells & Cell.BOX) != 0) * 4)
        self._fixed = jnp.asarray(np.concatenate(fixed).astype(np.uint8))
        self._variable = jnp.asarray(np.concatenate(variable).astype(np.uint8))

    def __call__(self, rng_key):
        key, draw = jax.random.split(rng_key)
        index = jax.random.randint(draw, (), 0, self._fixed.shape[0])
        variable = self._variable[index]
        agent = self.get_agent_coordinates(variable)
        return State(
            key=key,
            fixed_grid=self._fixed[index],
            variable_grid=variable,
            agent_location=agent,
            step_count=jnp.int32(0),
        )


def make_ours(env: Any, copies: int) -> tuple[int, Callable]:
    """Return the number of actions, and a function that steps copies of an environment."""
    vector = VectorEnv(env, copies)
    state, observation = jax.jit(VectorEnv.reset)(vector, jax.random.key(0))

    @jax.jit
    def rollout(vector, state, actions):
        def step(carry, actions):
            state, timestep = vector.step(carry[0], actions)
            return (state, timestep.observation), (timestep.reward, timestep.terminated, timestep.truncated)

        return jax.lax.scan(step, (state, observation), actions)

    # As in training, copies are at different points of their episodes, and some end at every step.
    length = jnp.arange(copies, dtype=jnp.int32) * 7 % env.time_limit
    state = state._replace(statistics=state.statistics._replace(length=length))
    return env.num_actions, lambda actions: rollout(vector, state, actions)


def make_jumanji(bank: LevelBank, copies: int) -> tuple[int, Callable]:
    """Return the same of Jumanji's Sokoban."""
    env = VmapAutoResetWrapper(Sokoban(generator=BankGenerator(bank)))
    state, first = jax.jit(env.reset)(jax.random.split(jax.random.key(0), copies))
    state = state.replace(step_count=jnp.arange(copies, dtype=jnp.int32) * 7 % 120)

    @jax.jit
    def rollout(state, actions):
        def step(carry, actions):
            state, timestep = env.step(carry[0], actions)
            return (state, timestep.observation), (timestep.reward, timestep.step_type)

        return jax.lax.scan(step, (state, first.observation), actions)

    return 4, lambda actions: rollout(state, actions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--boxoban", required=True, help="a bank of 10x10 levels with four boxes")
    parser.add_argument("--rush-hour", required=True, help="a bank of Rush Hour levels")
    parser.add_argument("--copies", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=64, help="steps of a turn")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    boxoban, rush_hour = open_bank(options.boxoban), open_bank(options.rush_hour)
    contestants = {
        "jumanji_sokoban": make_jumanji(boxoban, options.copies),
        "boxoban": make_ours(Boxoban(boxoban.on_device()), options.copies),
        "rush_hour": make_ours(RushHour(rush_hour.on_device()), options.copies),
    }
    shape, turns = (options.steps, options.copies), {}
    for name, (num_actions, rollout) in contestants.items():
        actions = jax.random.randint(jax.random.key(0), shape, 0, num_actions)
        turns[name] = functools.partial(rollout, actions)
        jax.block_until_ready(turns[name]())  # compiles
    seconds = take_turns(turns, options.rounds).seconds
    rates = {name: options.copies * options.steps / best for name, best in seconds.items()}
    base = rates["jumanji_sokoban"]
    write_record(
        options.out,
        {
            "copies": options.copies,
            "levels": {"boxoban": len(boxoban), "rush_hour": len(rush_hour)},
            "million_steps_per_second": {name: round(rate / 1e6, 2) for name, rate in rates.items()},
            "relative_to_jumanji": {name: round(rate / base, 2) for name, rate in rates.items()},
        },
    )


if __name__ == "__main__":
    main()
