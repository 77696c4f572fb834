"""One update of GCIQL with an MLP actor, against OGBench's reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from helpers import relative
from looped_actor.algorithms import GCIQL, GCIQLConfig, Nets
from looped_actor.models import GoalValue, MLPActor, TwinGoalCritics
from looped_actor.offline import Dataset, EpisodeIndex, GoalSampling
from looped_actor.offline.batches import GoalBatch
from looped_actor.training.fit import to_numbers
from looped_actor.training.sharding import all_devices
from looped_actor.utils.tensors import named_leaves

SIZE, ACTIONS, HIDDEN = 9, 5, (32, 32)
BUILD = Nets(
    lambda rngs: GoalValue(SIZE, HIDDEN, rngs=rngs),
    lambda rngs: TwinGoalCritics(SIZE, ACTIONS, HIDDEN, rngs=rngs),
    lambda rngs: MLPActor(SIZE, ACTIONS, HIDDEN, rngs=rngs),
)


NET_NAMES = {
    "value": "modules_value/value_net",
    "critics": "modules_critic/value_net",
    "target_critics": "modules_target_critic/value_net",
    "actor": "modules_actor/actor_net",
}


def reference_name(name):
    """A name of ours as Flax Linen has it in OGBench."""
    net, *path, leaf = name.removesuffix(".value").split(".")
    if path == ["mean"]:
        return f"modules_actor/mean_net/{leaf}"
    if path[-1] == "out":
        return f"{NET_NAMES[net]}/Dense_{len(HIDDEN)}/{leaf}"
    kind = {"layers": "Dense", "norms": "LayerNorm"}[path[-2]]
    return f"{NET_NAMES[net]}/{kind}_{path[-1]}/{leaf}"


def put_in(tree, file, group, prefix=""):
    """The reference's numbers in a pytree of ours."""
    named = named_leaves(tree)
    leaves = [jnp.asarray(file[f"{group}/{reference_name(prefix + name)}"]) for name in named]
    for name, leaf, ours in zip(named, leaves, named.values(), strict=True):
        assert leaf.shape == ours.shape, name
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


@pytest.fixture(scope="module")
def update(golden):
    """The reference's file, and a state before and after one update of ours."""
    file = golden("gciql_ogbench_mlp.npz")
    given = {key: file[f"batch/{key}"] for key in ("observations", "actions", "masks", "rewards")}
    np.testing.assert_array_equal(given["rewards"], -given["masks"])
    batch = GoalBatch(
        state=given["observations"],
        action=given["actions"],
        next_state=file["batch/next_observations"],
        value_goal=file["batch/value_goals"],
        actor_goal=file["batch/actor_goals"],
        reached=given["masks"] == 0,
        steps=given["masks"].astype(int),
    )
    assert batch.reached.any()
    config = GCIQLConfig(
        batch=64,
        updates_per_iteration=1,
        learning_rate=float(file["lr"]),
        max_gradient_norm=1e9,  # the reference does not clip
        discount=float(file["discount"]),
        expectile=float(file["expectile"]),
        target_rate=float(file["tau"]),
        bc_weight=float(file["alpha"]),
        hidden=HIDDEN,
    )
    index = EpisodeIndex(np.zeros(1, np.int32), np.zeros(2, np.int32))
    data = Dataset(np.zeros((2, SIZE), np.float32), np.zeros((2, ACTIONS), np.float32), index)
    trainer = GCIQL(config, GoalSampling(), data, BUILD, 1, all_devices(1), on_disk=True)
    state = trainer.init(0)
    parameters = put_in(state.learner.parameters, file, "param")
    target = put_in(state.target_critics, file, "param", "target_critics.")
    state = state._replace(learner=state.learner._replace(parameters=parameters), target_critics=target)
    batch = jax.tree.map(jnp.asarray, batch)
    after, metrics = trainer._iterate_on_batches(state, jax.tree.map(lambda a: a[None], batch))
    everywhere = PartitionSpec()
    gradient = jax.shard_map(
        lambda state, batch: trainer._gradient(state.learner.parameters, state.target_critics, state, batch),
        mesh=trainer.mesh,
        in_specs=(everywhere, everywhere),
        out_specs=everywhere,
        check_vma=False,
    )
    return file, after, to_numbers(trainer, metrics), jax.jit(gradient)(state, batch)


def test_losses_and_statistics(update):
    file, _, metrics, gradient = update
    expected = {
        "loss": "total",
        "value_loss": "value/value_loss",
        "critic_loss": "critic/critic_loss",
        "q_loss": "actor/q_loss",
        "action_error": "actor/mse",
        "value": "value/v_mean",
        "q_of_policy": "actor/q_mean",
    }
    for ours, theirs in expected.items():
        np.testing.assert_allclose(metrics[ours], file[f"loss/{theirs}"], rtol=1e-4, err_msg=ours)
    behaviour = float(file["alpha"]) * metrics["behaviour_loss"]
    np.testing.assert_allclose(behaviour, file["loss/actor/bc_loss"], rtol=1e-4)
    np.testing.assert_allclose(-metrics["behaviour_loss"], file["loss/actor/bc_log_prob"], rtol=1e-4)
    np.testing.assert_allclose(gradient.loss, file["loss/total"], rtol=1e-4)


def test_gradients(update):
    file, _, _, gradient = update
    found = named_leaves(gradient.gradient)
    expected = named_leaves(put_in(gradient.gradient, file, "grad"))
    assert len(found) == 26
    for name in found:
        assert relative(found[name], expected[name]) < 1e-4, name


def test_parameters_after_the_update(update):
    file, after, _, _ = update
    found = named_leaves(after.learner.parameters) | named_leaves({"target_critics": after.target_critics})
    expected = named_leaves(put_in(after.learner.parameters, file, "after_one_update"))
    expected |= named_leaves(
        {"target_critics": put_in(after.target_critics, file, "after_one_update", "target_critics.")}
    )
    for name in found:
        assert relative(found[name], expected[name]) < 1e-4, name
    before = put_in(after.target_critics, file, "param", "target_critics.")
    moved = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), after.target_critics, before)
    assert max(jax.tree.leaves(moved)) > 0, "the target must move"
