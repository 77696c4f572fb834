"""Imitation: its loss, its minibatches and its iterations, against the obvious ones."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import thorough
from looped_actor.algorithms import ImitationConfig
from looped_actor.algorithms.imitation import MAX_GROUPS, LabelledBatch, imitation_loss
from looped_actor.algorithms.online import shuffle_examples
from looped_actor.loop import Categorical, empty_carry
from looped_actor.loop.rng import Stream, addressed_key
from looped_actor.runs.folder import begin_run
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from tiny import tiny


class Loop(NamedTuple):
    loops: jax.Array
    weighted_loop_cost: float = 0.0


class Now(NamedTuple):
    distribution: Categorical
    loop: Loop


def test_the_loss_is_the_cross_entropy_to_the_set():
    logits = jax.random.normal(jax.random.key(0), (4, 3))
    optimal = jnp.array([[1, 0, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0]], bool)

    def loss(logits):
        def policy(observation, *, expected_loops=None, carry=None):
            return Now(Categorical(logits), Loop(jnp.ones(4, jnp.int32)))

        batch = LabelledBatch(logits, optimal, jnp.ones(4, jnp.int32), empty_carry(4))
        return imitation_loss(policy, batch)

    found, metrics = loss(logits)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = [-np.log(chances[i][np.asarray(optimal[i])].sum()) for i in range(3)]
    np.testing.assert_allclose(found, [*expected, 0.0], atol=1e-6)
    right = [optimal[i, int(np.argmax(chances[i]))] for i in range(4)]
    np.testing.assert_array_equal(metrics["accuracy"], np.asarray(right, np.float32))
    gradient = jax.grad(lambda logits: loss(logits)[0].sum())(logits)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient[3]).max() == 0  # an example without a label has no gradient


def test_minibatches_take_what_is_usable_and_all_of_it():
    config = ImitationConfig(num_envs=8, rollout_steps=6, minibatch=8, epochs=3)
    usable = np.random.default_rng(0).uniform(size=(6, 8)) < 0.4
    usable[0, ::2] = True  # every group of two has some
    key, groups = addressed_key(jax.random.key_data(jax.random.key(3)), Stream.SHUFFLE, 5), 4

    def chosen(devices):
        """Minibatches as lists of (step, environment), put together from the parts of each device."""
        parts = []
        for copies in np.split(np.arange(8), devices):
            own = jnp.asarray(usable[:, copies].reshape(-1))
            updates = shuffle_examples(config, groups, jnp.asarray(copies, jnp.int32), key, own)
            places = [(step, env) for step in range(6) for env in copies]
            parts.append([[places[r] for r in rows] for rows in updates.tolist()])
        return [sorted(itertools.chain(*together)) for together in zip(*parts, strict=True)]

    one = chosen(1)
    assert all(usable[step, env] for batch in one for step, env in batch)
    assert {place for batch in one for place in batch} == {tuple(p) for p in np.argwhere(usable).tolist()}
    for group in range(groups):
        times = [sum(place[1] // 2 == group for place in batch) for batch in one]
        assert set(times) == {2}
    assert chosen(2) == chosen(4) == one


@pytest.mark.parametrize("task", ["boxoban", pytest.param("rush-hour", marks=thorough)])
def test_the_solver_plays_its_share_and_lost_games_begin_anew(task, tmp_path):
    config = begin_run(tiny(task, by="imitation", time_limit=12), tmp_path / "run")
    trainer = run_of(config, tmp_path / "run", all_devices(1)).trainer
    state = trainer.init(0)
    solvers = np.arange(16) % 2 == 1
    for _ in range(2):
        given = trainer._solver_actions(state)
        env_state, rollout = trainer._collect_jit(trainer.vector, state, given)
        steps = jax.device_get(rollout.steps)
        given = np.asarray(given)
        assert (given[:, ~solvers] == -1).all()
        assert (given[0, solvers] >= 0).any()
        assert (steps.action == given)[given >= 0].all()
        flat = steps.observation.reshape(-1, *steps.observation.shape[2:])
        labels = trainer.teacher.label(flat)
        optimal = labels.optimal.reshape(*steps.action.shape, -1)
        followed = np.take_along_axis(optimal, steps.action[..., None], -1)[..., 0]
        assert followed[given >= 0].all()  # the solver's actions are optimal by its own labels
        lost = trainer.teacher.label(np.asarray(env_state.observation)).remaining < 0
        after, metrics = trainer.iterate(state)
        same = (np.asarray(after.env_state.envs.episode) == np.asarray(env_state.envs.episode)).tolist()
        assert same == (~lost).tolist()
        assert trainer.teacher.label(np.asarray(after.env_state.observation)).remaining.min() >= 0
        assert float(metrics["advised"]) == pytest.approx((labels.remaining > 0).mean())
        done = (steps.terminated | steps.truncated) & ~solvers
        assert float(metrics["episodes"]) == done.sum()
        state = after
    assert trainer.learner.groups == 16 <= MAX_GROUPS
