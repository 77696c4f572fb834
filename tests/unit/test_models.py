"""The nets: sizes against the paper, one set of parameters for all boards, precision, and FLOPs."""

import dataclasses
import pathlib
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from helpers import relative, thorough
from looped_actor.loop import EarlyExit, FixedLoops, Packed, PolicyKL, StopReason
from looped_actor.models import (
    DEFAULT_INITIAL,
    DRC,
    Actor,
    CellLogits,
    CoreConfig,
    DRCConfig,
    FPRMCore,
    GaussianMeanAndStd,
    GoalObservation,
    GoalValue,
    LoopedTrunk,
    MLPActor,
    PairedTokenizer,
    PlanesTokenizer,
    ReadoutLogits,
    Stack,
    TwinGoalCritics,
    ValueHead,
    drc,
)
from looped_actor.models.arms import arm_named, paper_core
from looped_actor.models.cost import (
    compiled_flops,
    count_parameters,
    surrogate_loss,
    token_count,
    update_memory,
)
from looped_actor.models.layers import GridConvolution
from looped_actor.models.looped import make_initial_latent
from looped_actor.models.tasks import TASKS
from looped_actor.models.tokenizers import cell_geometry
from looped_actor.names import ArmName
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of

SMALL = CoreConfig(width=16, heads=2, layers=1)
ARMS = {name: arm_named(name, paper_core(), PolicyKL()) for name in get_args(ArmName)}
"""As in the paper."""


def arms_of(task):
    """Names of the arms that can learn a task."""
    return [name for name in ARMS if name not in TASKS[task].unfit_arms]


def abstract(task, arm):
    return nnx.eval_shape(lambda: ARMS[arm].build(TASKS[task], nnx.Rngs(0)))


def looped_trunk(config=SMALL, halting=None, *, rngs=None):
    return LoopedTrunk(config, halting, convolution=True, rngs=nnx.Rngs(0) if rngs is None else rngs)


def small_critic(trunk=None, head=None, seed=0):
    rngs = nnx.Rngs(seed)
    trunk = looped_trunk(SMALL, PolicyKL(threshold=1e-3), rngs=rngs) if trunk is None else trunk
    head = ReadoutLogits(16, 4, rngs=rngs) if head is None else head
    return Actor(PlanesTokenizer(4, 16, rngs=rngs), trunk, head, ValueHead(16, rngs=rngs))


def board(batch, rows, columns, planes=4, seed=0):
    return jax.random.bernoulli(jax.random.key(seed), 0.3, (batch, rows, columns, planes)).astype(jnp.float32)


def test_arms_have_the_names_by_which_they_are_made():
    assert {name: arm.name for name, arm in ARMS.items()} == {name: name for name in get_args(ArmName)}
    loops = {name: arm.max_loops for name, arm in ARMS.items()}
    fixed = {"fixed-4": 4, "fixed-8": 8, "fixed-16": 16}
    assert loops == {"looped": 16, "iso-params": 1, "iso-flops": 16, "drc": 3, "mlp": 1, **fixed}
    assert [name for name, arm in ARMS.items() if arm.halting is not None] == ["looped", *fixed]


def test_parameter_counts_at_the_papers_sizes():
    looped, one, stack = (abstract("boxoban", arm) for arm in ("looped", "iso-params", "iso-flops"))
    assert count_parameters(looped) == count_parameters(one) == 527_877
    assert round(count_parameters(looped) / 1e6, 2) == 0.53
    assert count_parameters(stack.trunk) == 16 * count_parameters(looped.trunk)
    assert round(count_parameters(stack) / 1e6, 1) == 8.4
    assert count_parameters(abstract("boxoban", "drc")) == 1_285_637
    for arm in ("fixed-4", "fixed-8", "fixed-16"):
        assert count_parameters(abstract("boxoban", arm)) == 527_877


@pytest.mark.parametrize("task", TASKS)
def test_looped_and_iso_params_have_equal_size_on_every_task(task):
    sizes = {arm: count_parameters(abstract(task, arm)) for arm in arms_of(task)}
    assert sizes["looped"] == sizes["iso-params"]
    assert round(sizes["looped"] / 1e6, 2) == 0.53
    core = count_parameters(abstract(task, "looped").trunk)
    assert sizes["iso-flops"] - sizes["looped"] == 15 * core


def test_the_robots_table_of_the_document():
    """docs/models.md: sizes of all arms for the four worlds, and what the paper says of them."""
    lines = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text().splitlines()
    start = lines.index("| | cube-double | cube-triple | puzzle-3x3 | scene |")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start : start + 8]]
    worlds = rows[0][1:]
    said = {row[0]: [int(cell.replace(",", "")) for cell in row[1:]] for row in rows[2:]}

    def sizes(arm):
        return [count_parameters(abstract(world, arm)) for world in worlds]

    def judges(world):
        value, critics, _ = run_of(preset(world, "paper")).nets
        return sum(count_parameters(nnx.eval_shape(net, nnx.Rngs(0))) for net in (value, critics))

    shapes = [TASKS[world] for world in worlds]
    assert said.pop("scalars of a state") == [shape.size for shape in shapes] == [37, 46, 55, 40]
    tokens = [
        token_count(abstract(world, "looped"), shape.observation(1))
        for world, shape in zip(worlds, shapes, strict=True)
    ]
    assert said.pop("tokens") == tokens == [1 + 2 * 37, 1 + 2 * 46, 1 + 55, 1 + 2 * 40]
    looped = said.pop("`looped`, `iso-params`, `fixed-N`")
    assert looped == sizes("looped") == sizes("iso-params") == sizes("fixed-8")
    assert {round(size / 1e6, 1) for size in looped} == {0.5}
    stacked = said.pop("`iso-flops`")
    assert stacked == sizes("iso-flops")
    assert {round(size / 1e6) for size in stacked} == {8}
    assert said.pop("`mlp`, OGBench's own actor, 3 x 512") == sizes("mlp")
    assert said.pop("value and two critics, 3 x 512, for all arms") == [judges(world) for world in worlds]
    assert not said


def test_drc_layer_table():
    """The table of docs/models.md, layer by layer."""
    net = DRC(DRCConfig(), 4, (10, 10), 4, rngs=nnx.Rngs(0))
    sizes = {
        "encoder": [count_parameters(c) for c in net.encoder],
        "layers": [count_parameters(layer) for layer in net.layers],
        "dense": count_parameters(net.dense),
        "policy": count_parameters(net.policy),
        "value": count_parameters(net.value),
    }
    assert sizes == {
        "encoder": [2_080, 16_416],
        "layers": [148_800] * 3,
        "dense": 819_456,
        "policy": 1_028,
        "value": 257,
    }


@pytest.mark.parametrize("head", [ReadoutLogits, CellLogits])
def test_one_set_of_parameters_plays_every_board_at_every_cap(head):
    model = small_critic(head=head(16, 4, rngs=nnx.Rngs(1)))
    for rows, columns in ((5, 5), (6, 6), (10, 10), (8, 13), (1, 7)):
        for cap in (16, 64):
            rule = PolicyKL(threshold=0.0, max_loops=cap)
            out = nnx.jit(lambda m, o, rule=rule: m(o, halting=rule))(model, board(3, rows, columns))
            assert (out.loop.loops == cap).all()
            assert jnp.isfinite(out.distribution.logits).all()
            actions = 4 if head is ReadoutLogits else 4 * rows * columns
            assert out.distribution.logits.shape == (3, actions)
            assert out.value.shape == (3,)


@pytest.mark.parametrize(
    "task",
    [
        "puzzle-3x3",
        *(pytest.param(name, marks=thorough) for name in ("cube-double", "cube-triple", "scene")),
    ],
)
def test_every_arm_of_every_control_task_decides_and_learns(task):
    """Those of the puzzles are trained in test_training.py."""
    chosen = TASKS[task]
    keys = iter(jax.random.split(jax.random.key(0), 4))
    observation = jax.tree.map(lambda s: jax.random.normal(next(keys), s.shape), chosen.observation(3))
    for name in [name for name in arms_of(task) if name not in ("fixed-8", "fixed-16")]:
        arm = arm_named(name, SMALL, PolicyKL())
        model = nnx.jit(lambda arm=arm: arm.build(chosen, nnx.Rngs(0)))()

        def loss(model, observation):
            out = model(observation, execution=Packed(2))
            return surrogate_loss(out).mean(), out

        gradient, out = nnx.jit(nnx.grad(loss, has_aux=True))(model, observation)
        sizes = jax.tree.map(lambda g: float(jnp.abs(g).max()), gradient)
        assert all(0 < size < np.inf for size in jax.tree.leaves(sizes)), (name, sizes)
        assert out.distribution.mode().shape[0] == 3
        assert (out.loop.loops <= arm.max_loops).all()
        assert (out.loop.stop != StopReason.RUNNING).all()
        if name != "looped":
            assert (out.loop.loops == arm.max_loops).all()


def test_iso_params_is_one_fixed_loop_of_the_same_core():
    looped, stack = looped_trunk(SMALL, FixedLoops(1)), Stack(SMALL, 1, rngs=nnx.Rngs(0))
    one = jax.tree.map(lambda a: a[None], nnx.state(looped.core))
    nnx.update(stack.cores, one)
    stack.start = looped.start
    a, b = small_critic(looped), small_critic(stack)
    observation = board(3, 5, 5)
    assert relative(b(observation).distribution.logits, a(observation).distribution.logits) < 1e-6


def test_a_stack_equals_its_cores_one_after_the_other():
    stack = Stack(SMALL, 3, rngs=nnx.Rngs(0))
    model = small_critic(stack)
    observation = board(2, 4, 4)
    out = model(observation, record=True)
    tokens = model.tokenizer(observation)
    z = jnp.broadcast_to(stack.start[...], tokens.embedding.shape)
    definition, state = nnx.split(stack.cores)
    for i in range(3):
        z = nnx.merge(definition, jax.tree.map(lambda a, i=i: a[i], state))(z, tokens.embedding, (4, 4))
        assert relative(out.loop.latents[i], z) < 1e-5
    weights = jax.tree.leaves(state)[-1]
    assert not jnp.allclose(weights[0], weights[1]), "the copies start apart"


def test_grid_convolution_equals_xlas_depthwise_convolution():
    convolution = GridConvolution(6, rngs=nnx.Rngs(0))
    z = jax.random.normal(jax.random.key(0), (2, 1 + 4 * 5, 6))
    ours = convolution(z, (4, 5))
    theirs = jax.lax.conv_general_dilated(
        z[:, 1:].reshape(2, 4, 5, 6),
        convolution.kernel[...][:, :, None],
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=6,
    )
    assert relative(ours[:, 1:].reshape(theirs.shape), theirs) < 1e-6
    np.testing.assert_array_equal(ours[:, 0], z[:, 0])


def test_bfloat16_computes_coarsely_and_decides_finely():
    fine, coarse = (
        small_critic(looped_trunk(dataclasses.replace(SMALL, compute_dtype=d)))
        for d in ("float32", "bfloat16")
    )
    observation = board(8, 6, 6)
    a, b = (nnx.jit(lambda m, o: m(o))(m, observation) for m in (fine, coarse))
    assert b.loop.latent.dtype == b.loop.divergence.dtype == b.distribution.logits.dtype == jnp.float32
    difference = relative(b.distribution.logits, a.distribution.logits)
    assert 1e-5 < difference < 0.1
    assert (jnp.abs(a.loop.loops - b.loop.loops) <= 1).all()


@pytest.mark.parametrize(
    ("task", "arm", "heads"),
    [
        ("boxoban", "looped", 4),  # logits of the first latent, of each loop and of the last; the value
        ("rush-hour", "looped", 4),
        ("rush-hour", "iso-flops", 2),
        ("boxoban", "drc", 2),
        ("cube-double", "looped", 3),
        ("cube-double", "mlp", 1),
    ],
)
def test_heads_ask_for_full_precision(task, arm, heads):
    """Whatever a TPU or GPU does by default, readouts and values are products of float32."""
    shape = TASKS[task]
    definition, state = nnx.split(abstract(task, arm))
    text = jax.jit(lambda state, seen: nnx.merge(definition, state)(seen)).lower(state, shape.observation(2))
    dots = [line for line in text.as_text().splitlines() if "dot_general" in line]
    precise = [line for line in dots if "HIGHEST" in line]
    assert len(precise) == heads
    assert len(dots) > heads


def test_the_initial_latent_is_not_trained():
    model = small_critic()
    gradient = nnx.jit(nnx.grad(lambda m: surrogate_loss(m(board(2, 4, 4))).mean()))(model)
    assert "start" not in gradient["trunk"]
    start = make_initial_latent(CoreConfig(100_000), DEFAULT_INITIAL, nnx.Rngs(0))[...]
    np.testing.assert_allclose(start.std(), 6, rtol=0.01)
    assert jnp.abs(start).max() < 14, "truncated"


def test_learned_variance_head():
    rngs = nnx.Rngs(0)
    model = Actor(
        PlanesTokenizer(4, 16, rngs=rngs), looped_trunk(rngs=rngs), GaussianMeanAndStd(16, 3, rngs=rngs)
    )
    policy = model(board(2, 4, 4)).distribution
    assert policy.mean.shape == policy.log_std.shape == (2, 3)


def test_geometry_features():
    features = cell_geometry((3, 2))
    np.testing.assert_array_equal(features[0, 0], [-1, -1, 1, 0, 1, 0])
    np.testing.assert_array_equal(features[1, 1], [0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(cell_geometry((1, 1))[0, 0], [0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize("task", ["boxoban", "rush-hour", "scene"])
@pytest.mark.parametrize("arm", ["looped", "iso-params", "drc"])
def test_counted_flops_agree_with_xlas(task, arm, monkeypatch):
    if arm == "drc" and task == "scene":
        pytest.skip("DRC needs a board")
    # XLA counts a convolution without the padding, as we do; the sum of products that CPUs run has it in.
    monkeypatch.setattr(drc, "_convolve", jax.lax.conv_general_dilated)
    model = ARMS[arm].build(TASKS[task], nnx.Rngs(0))
    if arm == "drc":
        model.config = dataclasses.replace(model.config, ticks=1)
    one = TASKS[task].observation(1)
    assert model.flops(one, 1) == pytest.approx(compiled_flops(model, one), rel=0.03)


def test_flops_grow_with_loops_for_the_looped_arm_only():
    one = TASKS["boxoban"].observation(1)
    looped, stack = abstract("boxoban", "looped"), abstract("boxoban", "iso-flops")
    assert looped.flops(one, 16) == pytest.approx(stack.flops(one, 16), rel=1e-3)
    assert looped.flops(one, 4) == pytest.approx(looped.flops(one, 16) / 4, rel=1e-2)
    assert stack.flops(one, 4) == stack.flops(one, 16)


@thorough
def test_an_update_needs_the_memory_of_a_few_chunks_not_of_the_batch():
    model = abstract("boxoban", "looped")
    few, many = (update_memory(model, TASKS["boxoban"].observation(n), Packed(2)) for n in (64, 512))
    latents = 16 * 101 * 128 * 4 * 16  # of eight chunks
    assert latents < few.activations < 3 * latents
    # The order of the examples is all that grows.
    assert many.activations - few.activations < 0.1 * (many.arguments - few.arguments)
    whole = update_memory(model, TASKS["boxoban"].observation(256), EarlyExit())
    assert whole.activations > 16 * latents


def test_caps_end_decisions_earlier():
    """Of six boards, those that would take more loops than their caps stop there; the others as before."""
    model, observation = small_critic(), board(6, 5, 5)
    rule = PolicyKL(threshold=0.003, max_loops=8)
    free = model(observation, halting=rule)
    assert (free.loop.loops > 2).any()
    assert (free.loop.loops < 8).any()
    for execution in (EarlyExit(), Packed(2)):
        capped = model(observation, halting=rule, execution=execution, caps=jnp.full(6, 2))
        np.testing.assert_array_equal(capped.loop.loops, np.minimum(free.loop.loops, 2))
        unequal = jnp.array([2, 3, 4, 8, 9, 2])
        capped = model(observation, halting=rule, execution=execution, caps=unequal)
        np.testing.assert_array_equal(capped.loop.loops, np.minimum(free.loop.loops, unequal))


def test_differences_are_a_third_of_what_is_seen():
    """Nets that see |state - goal| are those without, given it by hand."""
    state, goal = jax.random.normal(jax.random.key(0), (2, 4, 6))
    rows = jnp.stack([state, goal, jnp.abs(state - goal)], axis=1)
    value = GoalValue(6, (8,), differences=True, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(value(state, goal), value.net(rows.reshape(4, 18)))
    critics, action = TwinGoalCritics(6, 2, (8,), differences=True, rngs=nnx.Rngs(0)), jnp.ones((4, 2))
    plain = TwinGoalCritics(9, 2, (8,), rngs=nnx.Rngs(0))  # which sees as many numbers
    nnx.update(plain, nnx.state(critics))
    first, second = jnp.moveaxis(rows.reshape(4, 2, 9), 1, 0)
    np.testing.assert_array_equal(critics(state, goal, action), plain(first, second, action))
    actor = MLPActor(6, 2, (8,), differences=True, rngs=nnx.Rngs(0))
    latent = actor.features(rows.reshape(4, 18))
    np.testing.assert_array_equal(actor(GoalObservation(state, goal)).loop.latent, latent)
    tokenizer = PairedTokenizer(6, 8, differences=True, rngs=nnx.Rngs(0))
    own = tokenizer.encoder(jnp.moveaxis(rows, 1, 2)) + tokenizer.position[...]
    np.testing.assert_array_equal(tokenizer(GoalObservation(state, goal)).embedding[:, 1:], own)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoreConfig(width=10, heads=4), "not divisible"),
        (lambda: CoreConfig(layers=0), "layers is 0"),
        (lambda: CoreConfig(hidden=0), "hidden is 0"),
        (lambda: DRCConfig(ticks=0), "ticks is 0"),
        (lambda: Stack(SMALL, 0, rngs=nnx.Rngs(0)), "copies is 0"),
        (lambda: small_critic(head=ReadoutLogits(8, 4, rngs=nnx.Rngs(0))), "must share one width"),
        (lambda: small_critic()(board(2, 4, 4, planes=3)), "3 planes; this tokenizer was made for 4"),
        (
            lambda: FPRMCore(SMALL, rngs=nnx.Rngs(0))(jnp.zeros((1, 5, 16)), jnp.zeros((1, 5, 16))),
            "pass grid=",
        ),
        (
            lambda: DRC(DRCConfig(), 4, (5, 5), 4, rngs=nnx.Rngs(0))(board(1, 6, 6)),
            "fits one board size",
        ),
        (
            lambda: GoalValue(6, (8,), rngs=nnx.Rngs(0))(jnp.zeros((1, 5)), jnp.zeros((1, 5))),
            "the state has 5 scalars; this net was made for 6",
        ),
        (lambda: ARMS["drc"].build(TASKS["scene"], nnx.Rngs(0)), "DRC needs a board"),
        (lambda: ARMS["mlp"].build(TASKS["boxoban"], nnx.Rngs(0)), "the arm mlp reads vectors"),
    ],
)
def test_mistakes_are_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()
