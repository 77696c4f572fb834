"""Gradients inside a core: loop by loop, against the gradient by the whole core."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from core_gradients import core_gradient
from flax import nnx

from looped_actor.algorithms import Weights, make_policy, zero_statistics
from looped_actor.algorithms.imitation import LabelledBatch, imitation_loss
from looped_actor.loop import PolicyKL, empty_carry
from looped_actor.models import CoreConfig, DRCConfig
from looped_actor.models.arms import arm_named
from looped_actor.models.tasks import TASKS
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.teachers import planes_of

CORE = CoreConfig(width=8, heads=1, layers=1)


def make_case(arm):
    """A small policy, and six boards with arbitrary labels."""
    halting = PolicyKL(threshold=0.03, max_loops=4)
    net = arm_named(arm, CORE, halting, drc=DRCConfig(4, 2, 2, 8)).build(TASKS["boxoban"], nnx.Rngs(3))
    definition, parameters, fixed = nnx.split(net, nnx.Param, ...)
    parameters, fixed = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (parameters, fixed))
    observation = planes_of(starter_bank("boxoban").cells(slice(0, 6)), 4)
    optimal = jnp.arange(24).reshape(6, 4) % 5 == 0
    examples = LabelledBatch(
        jnp.asarray(observation, jnp.float64), optimal, loops=jnp.full(6, 4), carry=empty_carry(6)
    )
    return definition, Weights(parameters, fixed, zero_statistics((4,))), examples


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("arm", ["looped", "iso-flops"])
def test_gradients_of_loops_add_up_to_that_of_the_core(arm):
    definition, weights, examples = make_case(arm)
    found = core_gradient(definition, weights, imitation_loss, examples)

    def loss(parameters):
        policy = make_policy(definition, weights._replace(parameters=parameters))
        losses, metrics = imitation_loss(policy, examples)
        return losses.mean(), metrics["loops"]

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


def test_other_nets_have_no_core():
    definition, weights, examples = make_case("drc")
    assert core_gradient(definition, weights, imitation_loss, examples) is None
