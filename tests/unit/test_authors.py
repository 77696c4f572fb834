"""Choices of the authors' code that the paper does not mention, as a recipe: each does what its name says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from looped_actor.algorithms import (
    PPO,
    RECIPES,
    Imitation,
    MinibatchLearner,
    OnlineState,
    PPOConfig,
    Recipe,
    RunningStatistics,
    make_policy,
    zero_statistics,
)
from looped_actor.algorithms.ppo import advantages
from looped_actor.algorithms.rollout import EnvState, Rollout, Transition
from looped_actor.envs import VectorState
from looped_actor.loop import PolicyKL, empty_carry
from looped_actor.models import AUTHORS_INITIAL, InitialWeights
from looped_actor.models.arms import arm_named, paper_core
from looped_actor.models.tasks import TASKS
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.catalogue import game_named
from looped_actor.runs.puzzle import check_bank
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from tiny import tiny

TRUNCATED = 0.8796
"""Deviation of a normal distribution that is cut off at two deviations."""


def drawn(task, arm, initial):
    """Names, shapes and deviations of all tensors of a net of the paper's width."""
    net = arm_named(arm, paper_core(), PolicyKL(max_loops=3)).build(TASKS[task], nnx.Rngs(7), initial)
    flat = nnx.to_flat_state(nnx.state(net))
    return {".".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in flat}


def puzzle_deviations(ours):
    """Of the paper's net for Boxoban: width 128, 512 hidden units, 10 numbers of a cell."""
    cut, width, hidden = 1.0 if ours else TRUNCATED, 128, 512
    return {
        "policy.decoder.kernel": ((width, 4), width**-0.5),
        "value.decoder.kernel": ((width, 1), width**-0.5),
        "tokenizer.encoder.kernel": ((10, width), 10**-0.5),
        "tokenizer.readout": ((width,), TRUNCATED * width**-0.5 if ours else 0.02),
        "trunk.start": ((width,), 6 * cut),
        "convolution.kernel": ((3, 3, width), 1 / 3 if ours else 3**-1.5),
        "attention.0.qkv.kernel": ((width, 3 * width), cut * width**-0.5),
        "attention.1.out.kernel": ((width, width), cut * width**-0.5),
        "feed_forward.0.gate_up.kernel": ((width, 2 * hidden), cut * width**-0.5),
        "feed_forward.1.down.kernel": ((hidden, width), cut * hidden**-0.5),
    }


def robot_deviations(ours):
    """Of the paper's net for cube-double: states and goals of 37 numbers, 5 actions."""
    token = TRUNCATED * 128**-0.5 if ours else 0.02
    return {
        "tokenizer.encoder.kernel": ((1, 128), 1.0 if ours else (2 / 129) ** 0.5),
        "tokenizer.position": ((37, 128), token),
        "tokenizer.role": ((2, 128), token),
        "policy.decoder.kernel": ((128, 5), 128**-0.5 if ours else (0.01 * 2 / 133) ** 0.5),
    }


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(
    ("task", "arm", "expected"),
    [
        ("boxoban", "looped", puzzle_deviations),
        ("boxoban", "iso-flops", puzzle_deviations),
        ("cube-double", "looped", robot_deviations),
    ],
)
def test_every_tensor_begins_as_it_should(task, arm, expected, ours):
    found = drawn(task, arm, InitialWeights() if ours else AUTHORS_INITIAL)
    copies = (3,) if arm == "iso-flops" else ()
    for ending, (shape, deviation) in expected(ours).items():
        ((name, tensor),) = [(name, tensor) for name, tensor in found.items() if name.endswith(ending)]
        assert tensor.shape == (copies if "cores" in name else ()) + shape, name
        # Four deviations of the estimate itself, which is wide for a vector of 128 numbers.
        assert tensor.std() == pytest.approx(deviation, rel=4 / (2 * tensor.size) ** 0.5), name
    biases = [tensor for name, tensor in found.items() if name.endswith("bias")]
    assert not any(tensor.any() for tensor in biases)


def test_one_start_for_all_seeds():
    starts = [
        arm_named(arm, paper_core(), PolicyKL())
        .build(TASKS["boxoban"], nnx.Rngs(seed), InitialWeights(shared_latent=True))
        .trunk.start[...]
        for arm, seed in (("looped", 0), ("looped", 1), ("iso-params", 2))
    ]
    assert (starts[0] == starts[1]).all()
    assert (starts[0] == starts[2]).all()
    assert paper_core().width == 128
    with pytest.raises(ValueError, match="token_std is 0; it must be positive"):
        InitialWeights(token_std=0)


@pytest.mark.parametrize("devices", [1, 2])
def test_whole_time_steps_are_shuffled(devices):
    def learner_of(minibatch):
        config = PPOConfig(num_envs=4, rollout_steps=6, minibatch=minibatch, epochs=3)
        return MinibatchLearner(config, lambda rngs: None, iterations=1, recipe=Recipe(shuffle="steps"))

    rows, found = 4 // devices, []
    for device in range(devices):
        copies = jnp.arange(device * rows, (device + 1) * rows)
        envs = VectorState(states=None, copy=copies, episode=None, statistics=None, level_key=None)
        state = OnlineState(
            learner=None,
            fixed=None,
            statistics=None,
            env_state=EnvState(envs, observation=None, loops=None, carry=empty_carry(rows)),
            iteration=jnp.int32(1),
            root=jnp.zeros(2, jnp.uint32),
        )
        chosen = np.asarray(learner_of(8).minibatches(state))
        assert chosen.shape == (9, 2 * rows)
        found.append(chosen // rows)
        environments = chosen % rows
        for update in environments:
            assert sorted(update) == sorted([*range(rows)] * 2)
        for epoch in chosen.reshape(3, -1):
            assert sorted(epoch) == [*range(6 * rows)]
    steps = [[set(update) for update in own] for own in found]
    assert all(len(update) == 2 for own in steps for update in own)
    assert all(own == steps[0] for own in steps)  # the same time steps on all devices
    assert len({tuple(epoch) for epoch in found[0].reshape(3, -1).tolist()}) > 1
    with pytest.raises(ValueError, match="minibatches of 6 are not whole time steps of 4 environments"):
        learner_of(6)


def environment():
    return game_named("rush-hour").environment(starter_bank("rush-hour").on_device(), 20)


def trainer_of(iterations=4, *, config=None, **details):
    """PPO by a recipe in which these details differ from this project's."""
    config = config or tiny("rush-hour", time_limit=20)
    build, recipe = run_of(config).build, Recipe(**details)
    return PPO(config.algorithm, environment(), build, iterations, all_devices(1), recipe=recipe)


def test_hard_resets_bring_environments_into_phase():
    trainer = trainer_of(hard_resets=2)
    state, lengths = trainer.init(seed=0), []
    for _ in range(4):
        state, _ = trainer.iterate(state)
        lengths.append(np.asarray(state.env_state.envs.statistics.length))
    assert [bool(own.any()) for own in lengths] == [True, False, True, False]
    assert (np.asarray(state.env_state.envs.episode) >= 3).all()


def test_the_authors_update_statistics_between_acting_and_learning(monkeypatch):
    """The first rollout acts on raw boards; the value after its last step has the updated statistics."""
    bootstraps = []

    def recorded(reward, value, bootstrap, *rest, **options):
        jax.debug.callback(lambda values: bootstraps.append(np.asarray(values)), bootstrap)
        return advantages(reward, value, bootstrap, *rest, **options)

    monkeypatch.setattr("looped_actor.algorithms.ppo.advantages", recorded)
    trainer = trainer_of(statistics_before_learning=True, cell_statistics=True)
    first = trainer.init(seed=0)
    boards = jnp.asarray(first.env_state.observation, jnp.float32)
    assert first.statistics.seen == 0
    np.testing.assert_array_equal(first.statistics.normalize(boards), boards)
    weights = jax.tree.map(jnp.copy, first.weights)
    state, _ = trainer.iterate(first)
    jax.effects_barrier()
    # The first boards once, as acted on.
    assert state.statistics.seen == trainer.config.num_envs * trainer.config.rollout_steps
    (bootstrap,) = bootstraps
    for statistics, same in ((state.statistics, True), (weights.statistics, False)):
        decide = make_policy(trainer.learner.definition, weights._replace(statistics=statistics))
        values = np.asarray(decide(state.env_state.observation).value)
        assert np.allclose(bootstrap, values, rtol=1e-4, atol=1e-5) == same


def test_without_that_the_first_boards_count():
    trainer = trainer_of(cell_statistics=True)
    state = trainer.init(seed=0)
    envs = trainer.config.num_envs
    assert state.statistics.seen == envs
    state, _ = trainer.iterate(state)
    assert state.statistics.seen == envs * (1 + trainer.config.rollout_steps)


def test_every_cell_is_scaled_by_its_own_statistics():
    boards = np.random.default_rng(0).integers(0, 2, (50, 3, 4, 2)).astype(np.float32)
    boards[:, 0] = 1  # a border: it never changes
    statistics: RunningStatistics = zero_statistics((3, 4, 2)).update(jnp.asarray(boards))
    deviation = np.maximum(boards.std(axis=0), 1e-6)
    expected = (boards - boards.mean(axis=0)) / deviation
    np.testing.assert_allclose(statistics.normalize(jnp.asarray(boards)), expected, rtol=1e-4, atol=1e-4)
    one = zero_statistics(2).update(jnp.asarray(boards))
    assert one.mean.shape == (2,)


def test_a_policy_of_cells_plays_boards_of_one_size():
    spec = run_of(tiny("rush-hour", recipe="authors")).spec
    assert spec.statistics_shape == (5, 5, 7)
    assert spec.plays_one_size
    weights = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), spec.weights_like)
    policy = Policy(spec, weights)
    assert policy.act(np.zeros((2, 5, 5, 7), np.uint8)).action.shape == (2,)
    with pytest.raises(ValueError, match=r"shape \(2, 6, 6, 7\) is not what this policy reads"):
        policy.act(np.zeros((2, 6, 6, 7), np.uint8))
    with pytest.raises(ValueError, match="plays boards of one size only"):
        check_bank(spec, starter_bank("rush-hour"))


def test_a_timeout_may_count_as_an_end():
    """Before a true end nothing is expected of what follows; before a time-out, as the configuration says."""
    reward, value, bootstrap = jnp.ones((2, 2)), jnp.full((2, 2), 10.0), jnp.full(2, 10.0)
    terminated, truncated = (
        jnp.array([[True, False], [False, False]]),
        jnp.array([[False, True], [False, False]]),
    )
    targets = {}
    changes = {"discount": 0.5, "gae_lambda": 1.0, "reward_scale": 1.0}
    config = tiny("rush-hour", **{f"algorithm__{name}": value for name, value in changes.items()})
    for bootstraps in (True, False):
        steps = dict.fromkeys(Transition._fields) | {"reward": reward, "value": value}
        steps = Transition(**steps | {"terminated": terminated, "truncated": truncated})
        rollout = Rollout(steps, bootstrap, loops=jnp.zeros(1, int), executed=jnp.zeros(1, int))
        trainer = trainer_of(config=config, bootstrap_timeouts=bootstraps)
        found = trainer._targets(trainer.init(seed=0), trainer.init(seed=0).env_state, rollout)
        targets[bootstraps] = np.asarray(found.value_target[0])
    np.testing.assert_allclose(targets[True], [1, 10])  # the second teaches nothing: its value is its target
    np.testing.assert_allclose(targets[False], [1, 1])


@pytest.mark.parametrize("detail", [{"hard_resets": 2}, {"shuffle": "steps"}])
def test_imitation_has_none_of_these(detail):
    config, game = tiny("rush-hour", by="imitation"), game_named("rush-hour")
    with pytest.raises(ValueError, match="these are options of PPO"):
        Imitation(
            config.algorithm,
            environment(),
            run_of(config).build,
            4,
            all_devices(1),
            teacher=game.teacher(),
            recipe=Recipe(**detail),
        )


def test_a_configuration_names_the_whole_recipe():
    run = run_of(tiny(recipe="authors"), mesh=all_devices(1))
    trainer = run.trainer_on(starter_bank("boxoban").on_device())
    assert trainer.recipe == RECIPES["authors"]
    assert trainer.recipe.initial == AUTHORS_INITIAL
    assert trainer.recipe != Recipe() == RECIPES["default"]
    ours, theirs = (
        [run_of(tiny(recipe=recipe, seed=seed)).spec.init_weights(seed).fixed for seed in (0, 1)]
        for recipe in ("default", "authors")
    )
    assert not (ours[0]["trunk"]["start"][...] == ours[1]["trunk"]["start"][...]).any()
    np.testing.assert_array_equal(theirs[0]["trunk"]["start"][...], theirs[1]["trunk"]["start"][...])
    with pytest.raises(ValueError, match="hard_resets is -1; it must be at least 0"):
        Recipe(hard_resets=-1)
