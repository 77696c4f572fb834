"""GCIQL's value and critics on a chain with known values: every step costs 1 until the goal is reached."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from helpers import thorough
from looped_actor.algorithms import GCIQL, GCIQLConfig, Nets
from looped_actor.models import GoalValue, TwinGoalCritics
from looped_actor.offline import GoalSampling, from_ogbench
from looped_actor.training.sharding import all_devices

LENGTH, DISCOUNT, HIDDEN = 6, 0.8, (32, 32)


def make_chain(episodes: int):
    """Return episodes from one end to the other. A state is the position as a one-hot vector."""
    states = np.eye(LENGTH, dtype=np.float32)
    rows = {
        "observations": states[:-1],
        "next_observations": states[1:],
        "actions": np.full((LENGTH - 1, 1), 0.5, np.float32),
        "terminals": np.arange(LENGTH - 1) == LENGTH - 2,
    }
    return from_ogbench({name: np.concatenate([part] * episodes) for name, part in rows.items()})


def value_at(steps: int) -> float:
    """Return minus the discounted number of steps."""
    return -(1 - DISCOUNT**steps) / (1 - DISCOUNT)


@pytest.mark.parametrize("n_step", [1, pytest.param(3, marks=thorough)])
def test_gciql_learns_the_values_of_a_chain(n_step):
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
    trainer = GCIQL(
        config=config,
        # Goals of the same episode only: those of other episodes may lie behind, and are never reached.
        goals=GoalSampling(current=0.2, future=0.8, random=0.0),
        dataset=make_chain(4),
        build=Nets(
            value=lambda rngs: GoalValue(LENGTH, HIDDEN, rngs=rngs),
            critics=lambda rngs: TwinGoalCritics(LENGTH, 1, HIDDEN, rngs=rngs),
            actor=None,
        ),
        iterations=1,
        mesh=all_devices(1),
    )
    state, _ = trainer.iterate(trainer.init(seed=0))
    parameters = state.learner.parameters
    value, critics = (
        nnx.merge(definition, own)
        for definition, own in zip(trainer.definitions[:2], parameters[:2], strict=True)
    )
    position, goal = np.triu_indices(LENGTH - 1)
    one_hot = jnp.eye(LENGTH)
    expected = [value_at(steps) for steps in goal - position]
    found = value(one_hot[position], one_hot[goal])
    np.testing.assert_allclose(found, expected, atol=0.2)
    q = critics(one_hot[position], one_hot[goal], jnp.full((len(position), 1), 0.5))
    np.testing.assert_allclose(q, np.stack([expected] * 2), atol=0.2)
    assert int(state.learner.skipped) == 0
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(jnp.isfinite(leaf), True), parameters)
