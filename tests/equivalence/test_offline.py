"""Offline learning: the fast ways against the obvious ones."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from helpers import relative
from looped_actor.algorithms import GCIQLConfig, GoalBatch, actor_loss, critic_loss, value_loss
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.algorithms.gciql_trainer import Judges, gciql_trainer
from looped_actor.loop import FrozenScan, Streaming
from looped_actor.models import GoalObservation
from looped_actor.offline import GoalSampling, from_ogbench
from looped_actor.offline.batches import Draws
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import replaced
from looped_actor.utils.tensors import named_leaves

CONFIG = replaced(
    preset("cube-double", "micro"),
    {
        "core.width": 8,
        "core.heads": 1,
        "core.hidden_multiple": 8,
        "halting.max_loops": 6,
        "halting.threshold": 0.01,
        "gciql.batch": 12,
        "gciql.hidden": [8],
        "gciql.updates_per_iteration": 3,
    },
)


def dataset(episodes=3, states=9):
    chance = np.random.default_rng(0)
    rows = episodes * states
    made = {
        "observations": chance.normal(size=(rows, 37)).astype(np.float32),
        "actions": chance.uniform(-1, 1, (rows, 5)).astype(np.float32),
        "valids": np.arange(rows) % states < states - 1,
    }
    return from_ogbench(made)


def trainer(arm="looped", **options):
    nets = run_of(replace(CONFIG, arm=arm)).nets
    return gciql_trainer(CONFIG.gciql, GoalSampling(), dataset(), nets, 1, all_devices(1), **options)


def assert_close(one, other):
    for name, leaf in named_leaves(one).items():
        np.testing.assert_allclose(leaf, named_leaves(other)[name], rtol=1e-5, atol=1e-8, err_msg=name)


def test_data_on_disk_teaches_what_data_on_the_devices_does(x64):
    """The same draws and rows by two programs, whose sums may round differently."""
    on_device, mapped = trainer("mlp", dtype=jnp.float64), trainer("mlp", mapped=True, dtype=jnp.float64)
    one, other = on_device.begin(0), mapped.begin(0)
    for _ in range(3):
        one, first = on_device.iterate(one)
        other, second = mapped.iterate(other)
        assert_close(first, second)
    assert list(mapped.collector._ahead) == [3], "fetched ahead: the next iteration's batches, and no other"
    assert_close(one, other)
    one, _ = on_device.iterate(one)
    mapped.collector._ahead.clear()  # as after a resumption
    assert_close(one, mapped.iterate(other)[0])


@pytest.mark.parametrize("arm", ["mlp", "looped"])
def test_an_actor_from_critics_that_are_given_learns_as_beside_them(x64, arm):
    """The first update from the same critics, batch and actor; beyond it critics that learn move on."""
    unclipped = replace(CONFIG.gciql, updates_per_iteration=1, max_gradient_norm=1e9)
    nets, mesh = run_of(replace(CONFIG, arm=arm)).nets, all_devices(1)

    def learned(**options):
        own = gciql_trainer(unclipped, GoalSampling(), dataset(), nets, 1, mesh, dtype=jnp.float64, **options)
        begun = own.begin(0)
        return begun, *own.iterate(begun)

    begun, together, metrics = learned()
    before = begun.learner.parameters
    same, alone, alone_metrics = learned(given=Judges(before.value, before.critics))
    assert_close(same, begun)
    assert_close(alone.learner.parameters.actor, together.learner.parameters.actor)
    assert_close(alone_metrics.actor, metrics.actor)
    assert (alone_metrics.value, alone_metrics.critics) == (None, None)
    for name in ("value", "critics"):
        after = named_leaves(getattr(alone.learner.parameters, name))
        for leaf, was in named_leaves(getattr(before, name)).items():
            np.testing.assert_array_equal(after[leaf], was)
    assert relative(*(jax.tree.leaves(s.learner.parameters.critics)[0] for s in (together, alone))) > 1e-6


def test_critics_that_learn_alone_do_as_beside_an_actor(x64):
    unclipped = replace(CONFIG.gciql, max_gradient_norm=1e9)
    nets, options = run_of(CONFIG).nets, {"dtype": jnp.float64}
    both = run_of(replace(CONFIG, learn="critics")).nets
    assert both.actor is None

    def learned(nets):
        own = gciql_trainer(unclipped, GoalSampling(), dataset(), nets, 1, all_devices(1), **options)
        return own.iterate(own.begin(0))

    (beside, metrics), (alone, alone_metrics) = learned(nets), learned(both)
    assert_close(alone_metrics.value, metrics.value)
    assert_close(alone_metrics.critics, metrics.critics)
    assert alone_metrics.actor is None
    assert_close(alone.target_critics, beside.target_critics)
    assert_close(alone.learner.parameters.value, beside.learner.parameters.value)
    assert_close(alone.learner.parameters.critics, beside.learner.parameters.critics)


def walked(row, goal, last, steps):
    """The target of one example, step by step: of a value that is less by a tenth with every row."""
    cost, step = 0.0, 0
    while step < steps and row + step <= last:
        if row + step == goal:
            return -cost
        cost, step = cost + 0.9**step, step + 1
    return -cost - 0.9**step * (1 + 0.1 * (row + step))


@pytest.mark.parametrize("steps", [1, 4])
def test_targets_of_several_steps_are_those_of_a_walk(steps, x64):
    rows = np.arange(40)
    table = {"observations": rows[:, None].astype(float), "actions": np.zeros((40, 5))}
    made = from_ogbench(table | {"valids": rows % 10 < 9})
    draws = Draws(500, 1, GoalSampling(), 0.9, steps, jnp.float64)
    drawn = draws.rows(made.index, jnp.zeros(2, jnp.uint32), jnp.int32(0), jnp.arange(500))
    examples = draws.gather(jnp.asarray(made.states), jnp.asarray(made.actions), drawn)
    losses, _ = critic_loss(
        lambda state, goal, action: jnp.zeros((2, len(state))),
        lambda state, goal: -1 - 0.1 * state[:, 0],
        examples,
        GCIQLConfig(discount=0.9, n_step=steps),
    )
    expected = [
        walked(row, goal, made.index.last[row], steps)
        for row, goal in zip(*map(np.asarray, (drawn.row, drawn.value_goal)), strict=True)
    ]
    np.testing.assert_allclose(-np.sqrt(losses / 2), expected, atol=1e-12)
    assert examples.reached.sum() > (150 if steps > 1 else 90)
    assert (drawn.later - drawn.row < steps).any() == (steps > 1)  # some episodes end before that


@pytest.fixture(scope="module")
def batch():
    """Twelve examples, and a state, in double precision."""
    with jax.enable_x64(True):
        own = trainer(dtype=jnp.float64)

        def states(number):  # from small to large, which makes for different depths
            scale = jnp.linspace(0.02, 4, 12)[:, None]
            return scale * jax.random.normal(jax.random.key(number), (12, 37), jnp.float64)

        made = GoalBatch(
            state=states(0),
            action=jnp.tanh(states(1)[:, :5]),
            later_state=states(2),
            value_goal=states(3),
            actor_goal=states(4),
            reached=jnp.arange(12) % 4 == 0,
            steps=jnp.arange(12) % 4,
        )
        yield own, own.begin(3), made


def obvious(own, state, batch, parameters):
    """All three losses of a whole batch, in one piece, every loop computed."""
    value = nnx.merge(own.learner.net.definitions.value, parameters.value)
    critics = nnx.merge(own.learner.net.definitions.critics, parameters.critics)
    held_value = nnx.merge(own.learner.net.definitions.value, jax.lax.stop_gradient(parameters.value))
    held_critics = nnx.merge(own.learner.net.definitions.critics, jax.lax.stop_gradient(parameters.critics))
    target = nnx.merge(own.learner.net.definitions.critics, state.target_critics)
    weights = state.weights._replace(parameters=parameters.actor)
    decide = deciding(own.learner.net.definitions.actor, weights, execution=FrozenScan())
    observation = GoalObservation(batch.state, batch.actor_goal)
    parts = (
        value_loss(value, target, batch, own.learner.config),
        critic_loss(critics, held_value, batch, own.learner.config),
        actor_loss(decide, held_critics, observation, batch, own.learner.config),
    )
    return sum(losses.mean() for losses, _ in parts), parts[2][1].loops


def test_thinking_first_gives_the_gradient_of_the_whole_batch(batch):
    with jax.enable_x64(True):
        own, state, examples = batch
        everywhere = PartitionSpec()
        gradient = jax.shard_map(
            lambda state, batch: own.learner._gradient(
                state.learner.parameters, state.target_critics, state, batch
            ),
            mesh=own.mesh,
            in_specs=(everywhere, everywhere),
            out_specs=everywhere,
            check_vma=False,
        )
        found = jax.jit(gradient)(state, examples)
        (loss, loops), expected = jax.jit(
            jax.value_and_grad(lambda p: obvious(own, state, examples, p), has_aux=True)
        )(state.learner.parameters)
        assert len(set(loops.tolist())) > 1, "the check wants examples of different depths"
        np.testing.assert_allclose(found.loss, loss, rtol=1e-10)
        np.testing.assert_allclose(found.terms.actor.loops, loops.mean(), rtol=1e-12)
        wanted = named_leaves(expected)
        for name, leaf in named_leaves(found.gradient).items():
            assert relative(leaf, wanted[name]) < 1e-9, name


def test_rows_that_think_in_a_stream_decide_as_in_a_batch(batch):
    with jax.enable_x64(True):
        own, state, examples = batch
        net = nnx.merge(own.learner.net.definitions.actor, state.weights.parameters, state.weights.fixed)
        observation = GoalObservation(examples.state, examples.actor_goal)
        waiting = jnp.arange(12) != 5
        streamed = jax.jit(lambda o: Streaming(3).think(net.as_open_loop(), o, waiting))(observation)
        whole = net(observation, execution=FrozenScan())
        rows = np.flatnonzero(waiting)
        np.testing.assert_array_equal(streamed.thoughts.loops[rows], whole.loop.loops[rows])
        mean = streamed.thoughts.decision.distribution.mean
        np.testing.assert_allclose(mean[rows], whole.distribution.mean[rows], rtol=1e-10)
        assert int(streamed.asked) == int(whole.loop.loops[rows].sum())
        assert int(streamed.thoughts.loops[5]) == 0, "a row that does not wait does not think"


def test_the_expectile_is_one():
    """Where the value can only be one number, its loss is smallest at the expectile of the critics."""
    q = jnp.asarray(np.random.default_rng(0).normal(size=500).astype(np.float32))
    no = jnp.zeros((500, 1))
    batch = GoalBatch(no, no, no, no, no, jnp.zeros(500, bool), jnp.ones(500, int))
    config = GCIQLConfig(expectile=0.9)

    def loss(v):
        value = lambda s, g: jnp.full(500, v)  # noqa: E731
        critics = lambda s, g, a: jnp.stack([q, q + 1])  # noqa: E731
        return value_loss(value, critics, batch, config)[0].mean()

    levels = jnp.linspace(-3, 3, 2001)
    best = float(levels[jnp.argmin(jax.vmap(loss)(levels))])
    above, below = np.maximum(q - best, 0).sum(), np.maximum(best - q, 0).sum()
    assert 0.9 * above == pytest.approx(0.1 * below, rel=0.02)
