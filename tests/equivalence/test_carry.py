"""Carried latents, against a plain loop of calls; and learning with them."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_actor import load_policy
from looped_actor.algorithms import PPO, PPOConfig, init_carry, make_policy, to_streaming
from looped_actor.algorithms.ppo import PPOBatch, ppo_loss
from looped_actor.algorithms.rollout import init_env_state, stream_rollout
from looped_actor.envs import VectorEnv
from looped_actor.evaluation.levels import play_levels
from looped_actor.loop import Carry, Streaming
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.catalogue import game_named
from looped_actor.runs.registry import run_of
from looped_actor.training.fit import to_numbers
from looped_actor.training.sharding import all_devices
from tiny import tiny

ROOT = pathlib.Path(__file__).parents[2]
LEVELS = 6


@functools.cache
def trained():
    return load_policy(ROOT / "results" / "micro_rush_hour").with_carry(True)


def environment(count, time_limit=40):
    return game_named("rush-hour").environment(starter_bank("rush-hour").on_device(count), time_limit)


def test_a_policy_that_is_called_step_by_step_plays_what_an_evaluation_plays():
    """With one call for each level and step, and what it returned given to the next."""
    policy = trained()
    env = environment(LEVELS)
    decide = make_policy(policy.spec.definition, policy.weights)

    @jax.jit
    def evaluation():
        return play_levels(env, decide, jnp.arange(LEVELS), 8, carry_latent=policy.carry_latent).episodes

    played, fixed = evaluation(), []
    for level in range(LEVELS):
        state, carry, loops = env.reset_to(jnp.int32(level)), None, []
        for _ in range(env.time_limit):
            observation = np.asarray(env.observe(state))
            action = policy.act(observation, carry=carry)
            fixed.append(int(policy.with_carry(False).act(observation).loops))
            carry = action.carry
            loops.append(int(action.loops))
            state, outcome = env.step(state, jnp.asarray(action.action))
            if outcome.terminated:
                break
        assert len(loops) == played.length[level]
        assert sum(loops) == played.loops[level]
    assert int(played.loops.sum()) < sum(fixed)  # carried latents save loops


def test_a_batch_carries_each_episode_and_a_fresh_one_starts_anew():
    policy = trained()
    env = environment(LEVELS)
    boards = np.stack([env.observe(env.reset_to(jnp.int32(level))) for level in range(4)])
    fresh = policy.act(boards)
    carried = policy.act(boards, carry=fresh.carry)
    assert (carried.loops <= fresh.loops).all()
    assert carried.loops.sum() < fresh.loops.sum()
    restarted = policy.act(boards, carry=carried.carry.restart(np.array([True, False, True, False])))
    np.testing.assert_array_equal(restarted.loops[::2], fresh.loops[::2])
    np.testing.assert_array_equal(restarted.carry.reset, [False] * 4)
    one = policy.act(boards[1], carry=Carry(*(leaf[1:2] for leaf in carried.carry)))
    assert one.loops == restarted.loops[1]
    # The call of other libraries' helpers has the same state, by another name.
    actions, state = policy.predict(boards, fresh.carry, episode_start=np.zeros(4, bool))
    np.testing.assert_array_equal(actions, carried.action)
    np.testing.assert_array_equal(state.latent, carried.carry.latent)
    with pytest.raises(ValueError, match="must be that of the last call for the same 3 episodes"):
        policy.act(boards[:3], carry=fresh.carry)


def test_learning_starts_from_the_stored_latents(x64):
    """From the stored carries, a policy is computed again as it was: all ratios are 1 before an update."""
    policy = trained()
    env, definition = environment(40), policy.spec.definition
    weights = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), policy.weights)
    vector, root = VectorEnv(env, 6), jax.random.key_data(jax.random.key(1))

    def batch(weights):
        first = init_env_state(vector, root)
        first = first._replace(carry=init_carry(definition, weights, first.observation, True))
        streamable = to_streaming(definition, weights)
        steps = stream_rollout(vector, first, streamable, root, jnp.int32(0), 5, Streaming(2))[1].steps
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), steps)
        zeros = jnp.zeros(len(flat.loops))
        return PPOBatch(
            observation=flat.observation,
            action=flat.action,
            log_prob=flat.log_prob,
            advantage=zeros,
            value_target=zeros,
            loops=flat.loops,
            carry=flat.carry,
        )

    @jax.jit
    def learned(weights):
        examples = batch(weights)

        def loss(latent):
            known = examples._replace(carry=examples.carry._replace(latent=latent))
            losses, metrics = ppo_loss(make_policy(definition, weights), known, PPOConfig())
            return losses.mean(), metrics

        into_past, metrics = jax.grad(loss, has_aux=True)(examples.carry.latent)
        return examples, metrics, into_past

    examples, metrics, into_past = learned(weights)
    assert examples.carry.latent.dtype == jnp.float64
    assert bool(examples.carry.reset[:6].all())
    assert not bool(examples.carry.reset[6:].all())
    np.testing.assert_allclose(metrics["kl"], 0, atol=1e-14)
    np.testing.assert_array_equal(metrics["loops"], examples.loops)
    assert not np.asarray(into_past).any()  # no gradient goes into the past


def test_the_first_update_of_a_run_starts_from_the_stored_latents():
    """Its metrics say so, and those of a run that carries nothing do not have them."""

    def first_iteration(carries):
        config = tiny("rush-hour", arm__carry_latent=carries, total_steps=128)
        run = run_of(config, mesh=all_devices(1))
        env = environment(20, config.time_limit)
        trainer = PPO(config.algorithm, env, run.build, 2, all_devices(1))
        state, metrics = trainer.iterate(trainer.init(seed=0))
        return state, to_numbers(trainer, metrics)

    state, carried = first_iteration(True)
    assert carried["stored_start_kl"] == pytest.approx(0, abs=1e-10)
    assert carried["fresh_start_kl"] >= 0
    assert state.env_state.carry.latent.shape == (16, 37, 8)
    fixed, plain = first_iteration(False)
    assert fixed.env_state.carry.is_empty
    assert not {"stored_start_kl", "fresh_start_kl"} & set(plain)


def test_nets_that_do_not_loop_carry_nothing():
    stacked = run_of(tiny(arm="iso-flops"))
    assert not stacked.spec.net.carry_latent
    policy = load_policy(ROOT / "results" / "micro_rush_hour")
    other = type(policy)(stacked.spec, stacked.spec.init_weights())
    with pytest.raises(ValueError, match="iso-flops does not loop: there is no latent to carry"):
        other.with_carry(True)
