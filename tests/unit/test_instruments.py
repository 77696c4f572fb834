"""Gradients inside a core: loop by loop, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from looped_actor.algorithms import LabelledBatch, Weights, capped, imitation_loss, zero_statistics
from looped_actor.algorithms import make_policy
from looped_actor.algorithms.instruments import core_gradient
from looped_actor.loop import PolicyKL
from looped_actor.models import CoreConfig, DRCConfig
from looped_actor.models.arms import arm_named
from looped_actor.models.tasks import TASKS
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.teachers import planes_of
from looped_actor.runs.registry import run_of
from looped_actor.training.fit import to_numbers
from looped_actor.training.sharding import all_devices
from tiny import tiny

CORE = CoreConfig(width=8, heads=1, layers=1, hidden_multiple=8)


def case(arm):
    """A small policy, and six boards with moves that are as good as any."""
    halting = PolicyKL(threshold=0.03, max_loops=4)
    net = arm_named(arm, halting, drc=DRCConfig(4, 2, 2, 8)).build(TASKS["boxoban"], CORE, nnx.Rngs(3))
    definition, parameters, fixed = nnx.split(net, nnx.Param, ...)
    parameters, fixed = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (parameters, fixed))
    seen = planes_of(starter_bank("boxoban").cells(slice(0, 6)), 4)
    optimal = jnp.arange(24).reshape(6, 4) % 5 == 0
    examples = LabelledBatch(jnp.asarray(seen, jnp.float64), optimal, jnp.full(6, 4))
    return definition, Weights(parameters, fixed, zero_statistics((4,))), examples


@pytest.mark.parametrize("arm", ["looped", "iso-flops"])
def test_gradients_of_loops_add_up_to_that_of_the_core(arm, x64):
    definition, weights, examples = case(arm)
    found = core_gradient(definition, weights, imitation_loss, examples)

    def loss(parameters):
        decide = make_policy(definition, weights._replace(parameters=parameters))
        losses, terms = imitation_loss(decide, examples)
        return losses.mean(), terms.loops

    gradient, loops = jax.grad(loss, has_aux=True)(weights.parameters)
    trunk = gradient["trunk"]
    whole = optax.tree.norm(trunk["core"] if arm == "looped" else trunk["cores"])
    np.testing.assert_allclose(found.core_gradient, whole, rtol=1e-10)
    apart = np.sqrt((np.asarray(found.core_gradient_of_loop) ** 2).sum())
    np.testing.assert_allclose(found.core_gradient_apart, apart, rtol=1e-10)
    assert found.core_gradient_of_loop.shape == (4,)
    if arm == "looped":
        assert len(set(loops.tolist())) > 1, "examples should be of several depths"
        assert not np.isclose(apart, whole)
    else:
        assert np.isclose(apart, whole)


def test_other_nets_have_no_core(x64):
    assert core_gradient(*case("drc")[:2], imitation_loss, case("drc")[2]) is None


def trainer_of(**changes):
    config = tiny("rush-hour", time_limit=20, **changes)
    run = run_of(config, mesh=all_devices(1)).puzzle
    return run.learning_on(run.environment(starter_bank("rush-hour"), 20))


def test_caps_are_drawn_at_random_and_gradients_measured():
    told = {}
    for least in (1, None):
        trainer = trainer_of(ppo__min_cap=least, ppo__measure_gradients=bool(least), halting__threshold=0.0)
        state = trainer.init(seed=0)
        caps = trainer.learner.net.caps(state)
        state, metrics = trainer.iterate(state)
        told[least] = to_numbers(metrics)
        assert told[least]["loops"] == 4  # play has the cap of the rule
        if least is None:
            assert caps is None
        else:
            assert set(caps.tolist()) <= {1, 2, 3, 4}
            assert len(set(caps.tolist())) > 1
            assert caps.tolist() != trainer.learner.net.caps(state).tolist()  # another iteration
    assert told[1]["loss"] != told[None]["loss"]
    assert "clipped_updates" not in told[None]
    assert told[1]["clipped_updates"] * 8 == round(told[1]["clipped_updates"] * 8)  # of eight updates
    assert [name for name in told[1] if name.startswith("core_gradient_of")] == [
        f"core_gradient_of_loop_{loop}" for loop in range(1, 5)
    ]
    assert told[1]["core_gradient_apart"] > 0


def test_caps_must_be_of_loops():
    with pytest.raises(
        ValueError, match="min_cap is 5: caps are of an arm that loops, and at most max_loops"
    ):
        tiny(by="imitation", imitation__min_cap=5)
    with pytest.raises(ValueError, match="min_cap is 2: caps are of an arm that loops"):
        tiny("rush-hour", "iso-flops", ppo__min_cap=2)


def test_a_capped_policy_thinks_no_longer(x64):
    definition, weights, examples = case("looped")
    decide = make_policy(definition, weights)
    free, held = decide(examples.observation), capped(decide, jnp.int32(2))(examples.observation)
    assert (held.loop.loops == np.minimum(free.loop.loops, 2)).all()
    assert (free.loop.loops > 2).any()
