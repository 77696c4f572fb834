"""Thoughts that are carried on, against a plain loop of calls; and what is learned from them."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from helpers import thorough
from looped_actor import load_policy
from looped_actor.algorithms import PPOBatch, PPOConfig, to_streaming, ppo_loss
from looped_actor.algorithms import make_policy
from looped_actor.algorithms.PPO import PPO
from looped_actor.algorithms.rollout import init_env_state, stream
from looped_actor.envs import VectorEnv
from looped_actor.evaluation.levels import play_levels
from looped_actor.loop import Carried, FixedStart, Memory, Streaming, starting_of
from looped_actor.models.arms import STARTS
from looped_actor.names import StartName
from looped_actor.puzzles.banks import starter_bank
from looped_actor.runs.registry import run_of
from looped_actor.training.fit import to_numbers
from looped_actor.training.sharding import all_devices
from tiny import tiny

ROOT = pathlib.Path(__file__).parents[2]
LEVELS = 6


@functools.cache
def trained():
    return load_policy(ROOT / "results" / "micro_rush_hour").with_start(Carried())


def test_a_policy_that_is_called_step_by_step_plays_what_an_evaluation_plays():
    """With one call for each level and step, and what it returned given to the next."""
    policy = trained()
    env = policy.run.environment(starter_bank("rush-hour"), LEVELS)
    decide = make_policy(policy.run.definition, policy.weights)

    @jax.jit
    def evaluation():
        return play_levels(env, decide, jnp.arange(LEVELS), 8, starting=policy.starting).episodes

    played, fixed = evaluation(), []
    for level in range(LEVELS):
        state, memory, loops = env.start(jnp.int32(level)), None, []
        for _ in range(env.time_limit):
            observation = np.asarray(env.observe(state))
            acted = policy.act(observation, memory=memory)
            fixed.append(int(policy.with_start(FixedStart()).act(observation).loops))
            memory = acted.memory
            loops.append(int(acted.loops))
            state, outcome = env.step(state, jnp.asarray(acted.action))
            if outcome.terminated:
                break
        assert len(loops) == played.length[level]
        assert sum(loops) == played.loops[level]
    assert int(played.loops.sum()) < sum(fixed)  # what is carried saves loops


def test_a_batch_carries_each_episode_and_a_fresh_one_starts_anew():
    policy = trained()
    env = policy.run.environment(starter_bank("rush-hour"), LEVELS)
    boards = np.stack([env.observe(env.start(jnp.int32(level))) for level in range(4)])
    fresh = policy.act(boards)
    assert fresh.memory is not None
    carried = policy.act(boards, memory=fresh.memory)
    assert carried.memory is not None
    assert (carried.loops <= fresh.loops).all()
    assert carried.loops.sum() < fresh.loops.sum()
    restarted = policy.act(boards, memory=carried.memory.restart(np.array([True, False, True, False])))
    np.testing.assert_array_equal(restarted.loops[::2], fresh.loops[::2])
    np.testing.assert_array_equal(restarted.memory.fresh, [False] * 4)
    one = policy.act(boards[1], memory=Memory(*(leaf[1:2] for leaf in carried.memory)))
    assert one.loops == restarted.loops[1]
    # The call of other libraries' helpers has the same state, by another name.
    actions, state = policy.predict(boards, fresh.memory, episode_start=np.zeros(4, bool))
    np.testing.assert_array_equal(actions, carried.action)
    np.testing.assert_array_equal(state.latent, carried.memory.latent)
    with pytest.raises(ValueError, match="must be what the last call for the same 3 episodes returned"):
        policy.act(boards[:3], memory=fresh.memory)


@pytest.mark.parametrize("start", [pytest.param("carried", marks=thorough), "carried-bfloat16"])
def test_what_is_learned_from_is_what_was_thought(start, x64):
    """From what is stored, a policy is computed again as it was: all ratios are 1 before the first update."""
    policy = trained()
    env, definition = policy.run.environment(starter_bank("rush-hour"), 40), policy.run.definition
    weights = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), policy.weights)
    vector, root = VectorEnv(env, 6), jax.random.key_data(jax.random.key(1))

    def batch(weights):
        decide = make_policy(definition, weights)
        first = init_env_state(vector, root)
        memory = STARTS[start].begin(lambda: decide(first.observation).loop.latent)
        opened = to_streaming(definition, weights)
        given = vector, first._replace(memory=memory), opened, root, jnp.int32(0), 5, Streaming(2)
        steps = stream(*given)[1].steps
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), steps)
        nothing = jnp.zeros(len(flat.loops))
        return PPOBatch(
            flat.observation, flat.action, flat.log_prob, nothing, nothing, flat.loops, flat.memory
        )

    @jax.jit
    def learned(weights):
        examples = batch(weights)

        def loss(latent):
            known = examples._replace(memory=examples.memory._replace(latent=latent))
            losses, terms = ppo_loss(make_policy(definition, weights), known, PPOConfig())
            return losses.mean(), terms

        latents = examples.memory.latent.astype(jnp.float64)
        into_past, terms = jax.grad(loss, has_aux=True)(latents)
        return examples, terms, into_past

    examples, terms, into_past = learned(weights)
    assert examples.memory.latent.dtype == (jnp.bfloat16 if "bfloat16" in start else jnp.float64)
    assert bool(examples.memory.fresh[:6].all())
    assert not bool(examples.memory.fresh[6:].all())
    np.testing.assert_allclose(terms.kl, 0, atol=1e-14)
    np.testing.assert_array_equal(terms.loops, examples.loops)
    assert not np.asarray(into_past).any()  # no gradient goes into the past


def test_the_first_update_of_a_run_is_from_where_its_thoughts_started():
    """Its metrics say so, and those of a run that carries nothing do not mention it."""

    def first_iteration(start: StartName):
        config = tiny("rush-hour", start=start, total_steps=128)
        run = run_of(config, mesh=all_devices(1))
        env = run.environment(starter_bank("rush-hour"), 20)
        trainer = PPO(config.ppo, env, run.build, 2, all_devices(1))
        state, metrics = trainer.iterate(trainer.init(seed=0))
        return state, to_numbers(metrics)

    state, told = first_iteration("carried")
    assert told["stored_start_kl"] == pytest.approx(0, abs=1e-10)
    assert told["fresh_start_kl"] >= 0
    assert state.env_state.memory.latent.shape == (16, 37, 8)
    fixed, plain = first_iteration("fixed")
    assert fixed.env_state.memory is None
    assert not {"stored_start_kl", "fresh_start_kl"} & set(plain)


def test_a_window_is_for_those_who_walk():
    windowed = tiny(window=1)
    assert run_of(windowed).environment(starter_bank("boxoban"), 2).radius == 1
    for other in ({"task": "rush-hour"}, {"by": "imitation"}):
        with pytest.raises(ValueError, match="a window is for Boxoban by PPO"):
            tiny(**other, window=1)


def test_what_does_not_loop_carries_nothing():
    with pytest.raises(ValueError, match="the arm iso-flops does not loop: there is no thought to start"):
        tiny(arm="iso-flops", start="carried")
    net = run_of(tiny(arm="iso-flops")).build(nnx.Rngs(0))
    assert starting_of(net) == FixedStart()
    assert starting_of(object()) == FixedStart()
    assert {name: str(start) for name, start in STARTS.items()} == {name: name for name in STARTS}
