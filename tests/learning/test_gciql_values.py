"""GCIQL's value and critics on a chain whose values are known: every step costs 1 until the goal is there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from helpers import thorough
from looped_actor.algorithms import GCIQLConfig
from looped_actor.algorithms.gciql_trainer import Nets, gciql_trainer
from looped_actor.models import GoalValue, TwinGoalCritics
from looped_actor.offline import GoalSampling
from looped_actor.offline.dataset import from_ogbench
from looped_actor.training.sharding import all_devices

LENGTH, DISCOUNT, HIDDEN = 6, 0.8, (32, 32)


def chain(episodes: int):
    """Episodes that walk from one end to the other; a state is the position, as a one-hot vector."""
    states = np.eye(LENGTH, dtype=np.float32)
    rows = {
        "observations": states[:-1],
        "next_observations": states[1:],
        "actions": np.full((LENGTH - 1, 1), 0.5, np.float32),
        "terminals": np.arange(LENGTH - 1) == LENGTH - 2,
    }
    return from_ogbench({name: np.concatenate([part] * episodes) for name, part in rows.items()})


def value_of(steps: int) -> float:
    """Minus the discounted number of steps."""
    return -(1 - DISCOUNT**steps) / (1 - DISCOUNT)


@pytest.mark.parametrize("n_step", [1, pytest.param(3, marks=thorough)])
def test_values_of_a_chain_are_learned(n_step):
    config = GCIQLConfig(
        batch=64,
        updates_per_iteration=1500,
        learning_rate=3e-3,
        decay_learning_rate=True,
        discount=DISCOUNT,
        n_step=n_step,
        target_rate=0.05,
        hidden=HIDDEN,
    )
    nets = Nets(
        lambda rngs: GoalValue(LENGTH, HIDDEN, rngs=rngs),
        lambda rngs: TwinGoalCritics(LENGTH, 1, HIDDEN, rngs=rngs),
        None,
    )
    # Goals of the same episode only: those of others may lie behind, and are never reached.
    goals = GoalSampling(current=0.2, future=0.8, random=0.0)
    trainer = gciql_trainer(config, goals, chain(4), nets, 1, all_devices(1))
    state, _ = trainer.iterate(trainer.begin(seed=0))
    parameters = state.learner.parameters
    value, critics = (
        nnx.merge(definition, own)
        for definition, own in zip(trainer.learner.net.definitions[:2], parameters[:2], strict=True)
    )
    position, goal = np.triu_indices(LENGTH - 1)
    one_hot = jnp.eye(LENGTH)
    expected = [value_of(steps) for steps in goal - position]
    found = value(one_hot[position], one_hot[goal])
    np.testing.assert_allclose(found, expected, atol=0.2)
    q = critics(one_hot[position], one_hot[goal], jnp.full((len(position), 1), 0.5))
    np.testing.assert_allclose(q, np.stack([expected] * 2), atol=0.2)
    assert int(state.learner.skipped) == 0
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(jnp.isfinite(leaf), True), parameters)
