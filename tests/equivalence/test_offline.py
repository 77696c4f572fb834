"""GCIQL's fast paths against plain computations of the same results."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from helpers import relative
from looped_actor.algorithms import GCIQL, CriticParams, make_policy
from looped_actor.algorithms.gciql import GCIQLConfig, actor_loss, critic_loss, value_loss
from looped_actor.loop import FrozenScan, PolicyKL, Streaming
from looped_actor.models import CoreConfig, GoalObservation
from looped_actor.models.arms import arm_named
from looped_actor.offline import GoalSampling, from_ogbench
from looped_actor.offline.batches import BatchSampling, GoalBatch
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from looped_actor.utils.tensors import named_leaves

CORE, HALTING = CoreConfig(width=8, heads=1, layers=1), PolicyKL(max_loops=6, threshold=0.01)
CONFIG = replace(
    preset("cube-double", "micro"),
    algorithm=replace(
        preset("cube-double", "micro").algorithm, batch=12, hidden=(8,), updates_per_iteration=3
    ),
)
UNCLIPPED = replace(CONFIG.algorithm, max_gradient_norm=1e9)
VALUE_METRICS = {"value_loss", "value"}
CRITIC_METRICS = {"critic_loss", "q"}
ACTOR_METRICS = {
    "q_loss",
    "behaviour_loss",
    "action_error",
    "q_of_policy",
    "loops",
    "executed_loops",
    "utilisation",
}


def make_nets(arm="looped"):
    arm = None if arm is None else arm_named(arm, CORE, HALTING, mlp=(256, 256, 256))
    return run_of(replace(CONFIG, arm=arm)).nets


def make_dataset(episodes=3, states=9):
    rng = np.random.default_rng(0)
    rows = episodes * states
    return from_ogbench(
        {
            "observations": rng.normal(size=(rows, 37)).astype(np.float32),
            "actions": rng.uniform(-1, 1, (rows, 5)).astype(np.float32),
            "valids": np.arange(rows) % states < states - 1,
        }
    )


def make_trainer(arm="looped", config=CONFIG.algorithm, **options):
    return GCIQL(
        config=config,
        goals=GoalSampling(),
        dataset=make_dataset(),
        build=make_nets(arm),
        iterations=1,
        mesh=all_devices(1),
        dtype=jnp.float64,
        **options,
    )


def assert_close(one, other):
    one, other = named_leaves(one), named_leaves(other)
    assert one.keys() == other.keys()
    for name, leaf in one.items():
        np.testing.assert_allclose(leaf, other[name], rtol=1e-5, atol=1e-8, err_msg=name)


def select(metrics, names):
    return {name: metrics[name] for name in names}


def test_training_from_disk_is_training_from_the_devices(x64):
    """The same draws and rows in two programs, whose sums may round differently."""
    on_device, on_disk = make_trainer("mlp"), make_trainer("mlp", on_disk=True)
    one, other = on_device.init(0), on_disk.init(0)
    for _ in range(3):
        one, first = on_device.iterate(one)
        other, second = on_disk.iterate(other)
        assert_close(first, second)
    prefetched = on_disk._host_batches._prefetched
    assert [iteration for _, iteration in prefetched] == [3], (
        "only the batches of the next iteration are prefetched"
    )
    assert_close(one, other)
    one, _ = on_device.iterate(one)
    prefetched.clear()  # as after resuming
    assert_close(one, on_disk.iterate(other)[0])


@pytest.mark.parametrize("arm", ["mlp", "looped"])
def test_an_actor_learns_from_given_critics_as_from_critics_that_learn(x64, arm):
    """In the first update, from the same critics, batch and actor. After it, the critics differ."""
    config = replace(UNCLIPPED, updates_per_iteration=1)

    def learn(**options):
        trainer = make_trainer(arm, config, **options)
        state = trainer.init(0)
        return state, *trainer.iterate(state)

    start, together, metrics = learn()
    before = start.learner.parameters
    same, alone, alone_metrics = learn(critics=CriticParams(before.value, before.critics))
    assert_close(same, start)
    assert_close(alone.learner.parameters.actor, together.learner.parameters.actor)
    assert_close(select(alone_metrics, ACTOR_METRICS), select(metrics, ACTOR_METRICS))
    assert not (VALUE_METRICS | CRITIC_METRICS) & alone_metrics.keys()
    for name in ("value", "critics"):
        after = named_leaves(getattr(alone.learner.parameters, name))
        for leaf, array in named_leaves(getattr(before, name)).items():
            np.testing.assert_array_equal(after[leaf], array)
    assert relative(*(jax.tree.leaves(s.learner.parameters.critics)[0] for s in (together, alone))) > 1e-6


def test_critics_learn_alone_as_together_with_an_actor(x64):
    assert make_nets(None).actor is None

    def learn(arm):
        trainer = make_trainer(arm, UNCLIPPED)
        return trainer.iterate(trainer.init(0))

    (together, metrics), (alone, alone_metrics) = learn("looped"), learn(None)
    names = VALUE_METRICS | CRITIC_METRICS
    assert_close(select(alone_metrics, names), select(metrics, names))
    assert not ACTOR_METRICS & alone_metrics.keys()
    assert_close(alone.target_critics, together.target_critics)
    assert_close(alone.learner.parameters.value, together.learner.parameters.value)
    assert_close(alone.learner.parameters.critics, together.learner.parameters.critics)


def target_of(row, goal, last, n_step):
    """Return the target of one example, computed step by step, for V = -1 - 0.1 row."""
    cost, step = 0.0, 0
    while step < n_step and row + step <= last:
        if row + step == goal:
            return -cost
        cost, step = cost + 0.9**step, step + 1
    return -cost - 0.9**step * (1 + 0.1 * (row + step))


@pytest.mark.parametrize("n_step", [1, 4])
def test_targets_of_several_steps_are_those_computed_step_by_step(n_step, x64):
    rows = np.arange(40)
    table = {"observations": rows[:, None].astype(float), "actions": np.zeros((40, 5))}
    dataset = from_ogbench(table | {"valids": rows % 10 < 9})
    sampling = BatchSampling(
        batch=500, updates=1, goals=GoalSampling(), discount=0.9, steps=n_step, dtype=jnp.float64
    )
    sampled = sampling.rows(dataset.index, jnp.zeros(2, jnp.uint32), jnp.int32(0), jnp.arange(500))
    batch = sampling.gather(jnp.asarray(dataset.states), jnp.asarray(dataset.actions), sampled)
    losses, _ = critic_loss(
        lambda state, goal, action: jnp.zeros((2, len(state))),
        lambda state, goal: -1 - 0.1 * state[:, 0],
        batch,
        GCIQLConfig(discount=0.9, n_step=n_step),
    )
    expected = [
        target_of(row, goal, dataset.index.last_rows[row], n_step)
        for row, goal in zip(*map(np.asarray, (sampled.row, sampled.value_goal)), strict=True)
    ]
    np.testing.assert_allclose(-np.sqrt(losses / 2), expected, atol=1e-12)
    assert batch.reached.sum() > (150 if n_step > 1 else 90)
    assert (sampled.next_row - sampled.row < n_step).any() == (n_step > 1)  # some episodes end before that


@pytest.fixture(scope="module")
def update():
    """A trainer, a state and a batch of twelve examples of different depths, in double precision."""
    with jax.enable_x64(True):
        trainer = make_trainer()

        def states(number):  # from small to large, which makes for different depths
            scale = jnp.linspace(0.02, 4, 12)[:, None]
            return scale * jax.random.normal(jax.random.key(number), (12, 37), jnp.float64)

        batch = GoalBatch(
            state=states(0),
            action=jnp.tanh(states(1)[:, :5]),
            next_state=states(2),
            value_goal=states(3),
            actor_goal=states(4),
            reached=jnp.arange(12) % 4 == 0,
            steps=jnp.arange(12) % 4,
        )
        yield trainer, trainer.init(3), batch


def plain_loss(trainer, state, batch, parameters):
    """Return all three losses of a whole batch, with every loop computed, and the loops of its examples."""
    definitions, config = trainer.definitions, trainer.config
    value = nnx.merge(definitions.value, parameters.value)
    critics = nnx.merge(definitions.critics, parameters.critics)
    fixed_value = nnx.merge(definitions.value, jax.lax.stop_gradient(parameters.value))
    fixed_critics = nnx.merge(definitions.critics, jax.lax.stop_gradient(parameters.critics))
    target = nnx.merge(definitions.critics, state.target_critics)
    weights = state.weights._replace(parameters=parameters.actor)
    policy = make_policy(definitions.actor, weights, execution=FrozenScan())
    observation = GoalObservation(batch.state, batch.actor_goal)
    parts = (
        value_loss(value, target, batch, config),
        critic_loss(critics, fixed_value, batch, config),
        actor_loss(policy, fixed_critics, observation, batch, config),
    )
    return sum(losses.mean() for losses, _ in parts), parts[2][1]["loops"]


def test_the_gradient_in_microbatches_is_that_of_the_whole_batch(update):
    with jax.enable_x64(True):
        trainer, state, batch = update
        replicated = PartitionSpec()
        gradient = jax.shard_map(
            lambda state, batch: trainer._gradient(
                state.learner.parameters, state.target_critics, state, batch
            ),
            mesh=trainer.mesh,
            in_specs=(replicated, replicated),
            out_specs=replicated,
            check_vma=False,
        )
        found = jax.jit(gradient)(state, batch)
        (loss, loops), expected = jax.jit(
            jax.value_and_grad(lambda p: plain_loss(trainer, state, batch, p), has_aux=True)
        )(state.learner.parameters)
        assert len(set(loops.tolist())) > 1, "the examples should have different depths"
        np.testing.assert_allclose(found.loss, loss, rtol=1e-10)
        np.testing.assert_allclose(found.metrics["loops"], loops.mean(), rtol=1e-12)
        expected = named_leaves(expected)
        for name, leaf in named_leaves(found.gradient).items():
            assert relative(leaf, expected[name]) < 1e-9, name


def test_decisions_of_a_stream_are_those_of_a_batch(update):
    with jax.enable_x64(True):
        trainer, state, batch = update
        net = nnx.merge(trainer.definitions.actor, state.weights.parameters, state.weights.fixed)
        observation = GoalObservation(batch.state, batch.actor_goal)
        waiting = jnp.arange(12) != 5
        streamed = jax.jit(lambda o: Streaming(3).decide(net.to_streaming(), o, waiting))(observation)
        whole = net(observation, execution=FrozenScan())
        rows = np.flatnonzero(waiting)
        np.testing.assert_array_equal(streamed.output.loops[rows], whole.loop.loops[rows])
        mean = streamed.output.decision.distribution.mean
        np.testing.assert_allclose(mean[rows], whole.distribution.mean[rows], rtol=1e-10)
        assert int(streamed.loops) == int(whole.loop.loops[rows].sum())
        assert int(streamed.output.loops[5]) == 0, "a row that does not wait takes no loops"


def test_the_value_that_minimises_the_loss_is_the_expectile():
    """Where the value is a constant, its loss is smallest at the expectile of the critics."""
    q = jnp.asarray(np.random.default_rng(0).normal(size=500).astype(np.float32))
    nothing = jnp.zeros((500, 1))
    batch = GoalBatch(
        state=nothing,
        action=nothing,
        next_state=nothing,
        value_goal=nothing,
        actor_goal=nothing,
        reached=jnp.zeros(500, bool),
        steps=jnp.ones(500, int),
    )
    config = GCIQLConfig(expectile=0.9)

    def loss(v):
        value = lambda s, g: jnp.full(500, v)  # noqa: E731
        critics = lambda s, g, a: jnp.stack([q, q + 1])  # noqa: E731
        return value_loss(value, critics, batch, config)[0].mean()

    candidates = jnp.linspace(-3, 3, 2001)
    best = float(candidates[jnp.argmin(jax.vmap(loss)(candidates))])
    above, below = np.maximum(q - best, 0).sum(), np.maximum(best - q, 0).sum()
    assert 0.9 * above == pytest.approx(0.1 * below, rel=0.02)
