"""Imitation on a game whose optimal actions are known, some states having two."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from looped_actor import (
    Actor,
    CoreConfig,
    LoopedTrunk,
    PlanesTokenizer,
    PolicyKL,
    ReadoutLogits,
    ValueHead,
)
from looped_actor.algorithms import Imitation, ImitationConfig, make_policy
from looped_actor.envs import Outcome
from looped_actor.envs.teacher import SolverLabels
from looped_actor.training.sharding import all_devices

CELLS, WIDTH = 6, 16


class Walk(NamedTuple):
    player: Int[Array, ""]
    goal: Int[Array, ""]


@jax.tree_util.register_static
class Ring:
    """A ring of cells: action 0 steps backwards, 1 forwards, until the player is at the goal."""

    time_limit, num_actions = 8, 2

    def reset(self, key) -> Walk:
        player, distance = jax.random.split(key)
        player = jax.random.randint(player, (), 0, CELLS)
        return Walk(player, (player + jax.random.randint(distance, (), 1, CELLS)) % CELLS)

    def observe(self, state: Walk) -> Float[Array, "1 n 2"]:
        cells = jnp.arange(CELLS)
        return jnp.stack([cells == state.player, cells == state.goal], -1)[None].astype(jnp.float32)

    def step(self, state: Walk, action: Int[Array, ""]) -> tuple[Walk, Outcome]:
        after = Walk((state.player + 2 * action - 1) % CELLS, state.goal)
        there = after.player == after.goal
        return after, Outcome(jnp.where(there, 1.0, -0.1), there, there)


def optimal(player: int, goal: int) -> list[bool]:
    """Backwards, forwards: both where the goal is opposite, neither where it is reached."""
    forwards = (goal - player) % CELLS
    if forwards == 0:
        return [False, False]
    return [forwards >= CELLS - forwards, forwards <= CELLS - forwards]


class RingTeacher:
    """The plain rule above, for a batch of observations."""

    def label(self, observation) -> SolverLabels:
        players, goals = np.asarray(observation)[:, 0].argmax(axis=1).T
        table = [optimal(*pair) for pair in zip(players.tolist(), goals.tolist(), strict=True)]
        forwards = (goals - players) % CELLS
        return SolverLabels(np.array(table), np.minimum(forwards, CELLS - forwards))

    def demonstrate(self, observation, steps: int):
        labels = self.label(observation)
        way = np.where(np.arange(steps) < labels.remaining[:, None], labels.optimal[:, 1:], -1)
        return way.astype(np.int32)


def build(rngs):
    core = CoreConfig(width=WIDTH, heads=2, layers=1)
    return Actor(
        PlanesTokenizer(2, WIDTH, rngs=rngs),
        LoopedTrunk(core, PolicyKL(max_loops=4), convolution=True, rngs=rngs),
        ReadoutLogits(WIDTH, 2, rngs=rngs),
        ValueHead(WIDTH, rngs=rngs),
    )


def test_every_optimal_action_is_learned():
    config = ImitationConfig(num_envs=32, rollout_steps=8, minibatch=64, epochs=2, learning_rate=5e-3)
    trainer = Imitation(config, Ring(), build, 40, all_devices(1), teacher=RingTeacher())
    state = trainer.init(seed=0)
    for _ in range(40):
        state, _ = trainer.iterate(state)
    states = [pair for pair in itertools.product(range(CELLS), repeat=2) if pair[0] != pair[1]]
    boards = jnp.stack([Ring().observe(Walk(jnp.int32(p), jnp.int32(g))) for p, g in states])
    decision = make_policy(trainer.learner.definition, state.weights)(boards)
    probability = np.exp(np.asarray(decision.distribution.log_probabilities))
    best = np.array([optimal(*pair) for pair in states])
    assert best.all(axis=1).sum() == CELLS  # the opposite cells, where either way is as short
    assert ((probability * best).sum(axis=1) > 0.9).all()
