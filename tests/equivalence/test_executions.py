"""Every execution against `FrozenScan`, and `FrozenScan` against a Python loop and finite differences."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from helpers import cast, relative
from looped_actor.loop import (
    Categorical,
    DiagonalGaussian,
    EarlyExit,
    FixedLoops,
    FrozenScan,
    LatentResidual,
    Packed,
    PolicyKL,
    StopReason,
    UnitGaussian,
    run_loop,
)
from looped_actor.models import CoreConfig, FPRMCore
from looped_actor.models.layers import rms_norm

PRECISIONS = {"float32": 5e-5, "float64": 1e-10}
"""Relative. Nine loops of a core of gain above 1 can turn a rounding of float32 into 1.3e-5."""
TINY = CoreConfig(width=8, heads=2, layers=1)
GRID = (2, 3)
MAX_LOOPS = 9


def make_case(seed: int, batch: int, scale: float, family, dtype) -> dict:
    """Weights and inputs of a tiny core. `scale` spreads how fast its examples settle."""
    core = cast(FPRMCore(TINY, rngs=nnx.Rngs(seed)), dtype)
    definition, state = nnx.split(core)
    keys = jax.random.split(jax.random.key(seed), 4)
    tokens, width = 1 + GRID[0] * GRID[1], TINY.width
    outputs = 6 if family is DiagonalGaussian else 3
    weights = {
        "core": jax.tree.map(lambda a: a * scale, state),
        "head": jax.random.normal(keys[0], (width, outputs), dtype),
        "z0": 3 * jax.random.normal(keys[1], (width,), dtype),
    }
    sizes = jnp.logspace(-1, 1, batch, dtype=dtype)[:, None, None]
    x = sizes * jax.random.normal(keys[2], (batch, tokens, width), dtype)
    cotangent = jax.random.normal(keys[3], x.shape, dtype)
    return {"definition": definition, "weights": weights, "x": x, "cotangent": cotangent, "family": family}


def read(case, weights, z):
    outputs = rms_norm(z[:, 0]) @ weights["head"]
    if case["family"] is DiagonalGaussian:
        return DiagonalGaussian(*jnp.split(outputs, 2, axis=-1))
    return case["family"](outputs)


def run(case, weights, x, expected_loops, *, halting, execution, record=False, caps=None):
    core = nnx.merge(case["definition"], weights["core"])
    return run_loop(
        lambda z, x: core(z, x, GRID),
        lambda z, x: read(case, weights, z),
        jnp.broadcast_to(weights["z0"], x.shape),
        x,
        halting=halting,
        execution=execution,
        expected_loops=expected_loops,
        caps=caps,
        record=record,
    )


def solve(case, halting, execution, expected_loops=None, record=False, caps=None):
    """The result, and the gradient of a loss on its latent with respect to weights and inputs."""

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
    def gradient(weights, x):
        how = {"halting": halting, "execution": execution, "record": record, "caps": caps}
        result = run(case, weights, x, expected_loops, **how)
        return jnp.sum(result.latent * case["cotangent"]), result

    return gradient(case["weights"], case["x"])[::-1]


def assert_same(actual, expected, tolerance):
    (result, gradient), (oracle, oracle_gradient) = actual, expected
    np.testing.assert_array_equal(result.loops, oracle.loops)
    np.testing.assert_array_equal(result.stop, oracle.stop)
    assert relative(result.latent, oracle.latent) < tolerance
    # A divergence grows with the square of a distance, so its root is what rounding touches evenly; and
    # the standard deviations drawn here reach down to e^-8, which magnifies the rounding of a mean.
    close = 100 * tolerance
    np.testing.assert_allclose(np.sqrt(result.divergence), np.sqrt(oracle.divergence), rtol=close, atol=close)
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(oracle_gradient), strict=True):
        assert relative(ours, theirs) < tolerance
    if oracle.latents is not None:
        assert relative(result.latents, oracle.latents) < tolerance


@functools.cache
def divergences_of(family, rule, dtype):
    """A compiled function to all divergences of a case, `[loops, b]`, were nobody to halt."""

    def divergences(case_state, x):
        case = {"definition": nnx.split(FPRMCore(TINY, rngs=nnx.Rngs(0)))[0], "family": family}
        latents = run(
            case, case_state, x, None, halting=FixedLoops(MAX_LOOPS), execution=FrozenScan(), record=True
        ).latents
        assert latents is not None
        latents = jnp.concatenate([jnp.broadcast_to(case_state["z0"], x.shape)[None], latents])
        seen = [rule.observe(z, x, lambda z, x: read(case, case_state, z)) for z in latents]
        return jnp.stack([rule.divergence(a, b) for a, b in itertools.pairwise(seen)])

    return jax.jit(divergences)


def clear_threshold(case, rule, quantile: float) -> float:
    """A threshold near a quantile of the divergences, with a gap around it: rounding cannot decide."""
    values = divergences_of(case["family"], rule, case["x"].dtype)(case["weights"], case["x"])
    values = np.sort(np.log(np.maximum(np.asarray(values, np.float64).ravel(), 1e-30)))
    values = np.concatenate([[values[0] - 9], values, [values[-1] + 9]])
    gaps = np.diff(values)
    first = int(quantile * (len(gaps) - 1))
    widest = first + int(gaps[first : first + 8].argmax())
    return float(np.exp((values[widest] + values[widest + 1]) / 2))


RULES = [
    PolicyKL(max_loops=MAX_LOOPS),
    PolicyKL(max_loops=MAX_LOOPS, min_loops=1, reverse=True),
    LatentResidual(max_loops=MAX_LOOPS, min_loops=4),
]


@given(
    precision=st.sampled_from(["float64", "float64", "float32"]),
    seed=st.integers(0, 2**16),
    batch=st.sampled_from([1, 5, 7]),
    chunk=st.sampled_from([1, 2, 3, 50]),
    scale=st.floats(0.2, 3),
    family=st.sampled_from([Categorical, UnitGaussian, DiagonalGaussian]),
    rule=st.sampled_from(RULES),
    quantile=st.floats(0, 1),
    expectation=st.sampled_from(["none", "right", "wrong"]),
)
def test_every_execution_equals_the_oracle(
    precision, seed, batch, chunk, scale, family, rule, quantile, expectation
):
    with jax.enable_x64(precision == "float64"):
        case = make_case(seed, batch, scale, family, jnp.dtype(precision))
        halting = dataclasses.replace(rule, threshold=clear_threshold(case, rule, quantile))
        oracle = solve(case, halting, FrozenScan(), record=True)
        assert (oracle[0].stop != StopReason.RUNNING).all()
        assert oracle[0].executed == halting.max_loops * batch

        early = solve(case, halting, EarlyExit(), record=True)
        assert_same(early, oracle, PRECISIONS[precision])
        assert early[0].executed == oracle[0].loops.max() * batch

        shuffled = jax.random.uniform(jax.random.key(seed), (batch,))
        expected = {"none": None, "right": oracle[0].loops, "wrong": shuffled}[expectation]
        packed = solve(case, halting, Packed(chunk), expected, record=True)
        assert_same(packed, oracle, PRECISIONS[precision])


@pytest.mark.parametrize(
    ("halting", "loops", "stop"),
    [
        (PolicyKL(threshold=1e9, min_loops=3, max_loops=8), 3, StopReason.CONVERGED),
        (PolicyKL(threshold=0.0, max_loops=8), 8, StopReason.CAP),
        (FixedLoops(5), 5, StopReason.CAP),
    ],
)
@pytest.mark.parametrize("execution", [FrozenScan(), EarlyExit(), Packed(3)])
def test_batches_that_all_stop_together(halting, loops, stop, execution):
    case = make_case(0, 7, 1.0, Categorical, jnp.float32)
    result, _ = solve(case, halting, execution)
    assert (result.loops == loops).all()
    assert (result.stop == stop).all()


@pytest.mark.parametrize("execution", [FrozenScan(), EarlyExit(), Packed(3)])
def test_an_example_with_a_cap_of_its_own_is_as_in_a_batch_that_has_it(x64, execution):
    case = make_case(3, 7, 1.5, Categorical, jnp.float64)
    rule, caps = PolicyKL(threshold=1e-3, max_loops=MAX_LOOPS), np.array([1, 2, 3, 5, 8, 9, 40])
    found = result, _ = solve(case, rule, execution, caps=jnp.asarray(caps), record=True)
    reasons = set()
    for row, cap in enumerate(np.minimum(caps, MAX_LOOPS)):
        shorter = dataclasses.replace(rule, min_loops=min(2, int(cap)), max_loops=int(cap))
        whole, _ = solve(case, shorter, FrozenScan())
        assert result.loops[row] == whole.loops[row] <= cap
        assert result.stop[row] == whole.stop[row]
        assert relative(result.latent[row], whole.latent[row]) < PRECISIONS["float64"]
        reasons.add(int(result.stop[row]))
    assert reasons == {StopReason.CONVERGED, StopReason.CAP}
    oracle = solve(case, rule, FrozenScan(), caps=jnp.asarray(caps), record=True)
    assert_same(found, oracle, 1e-10)
    with pytest.raises(ValueError, match="one integer for each of the 7 examples"):
        solve(case, rule, execution, caps=jnp.ones(7))


@pytest.mark.parametrize("execution", [FrozenScan(), EarlyExit(), Packed(3)])
def test_gradients_are_those_of_the_executed_loops(x64, execution):
    """Against a plain Python loop over each example's own number of loops, and finite differences."""
    case = make_case(3, 7, 1.5, Categorical, jnp.float64)
    halting = PolicyKL(threshold=1e-3, max_loops=MAX_LOOPS)
    result, gradient = solve(case, halting, execution)
    assert len(set(result.loops.tolist())) >= 3, "the case should have examples of several depths"

    def by_hand(weights, x):
        core = nnx.merge(case["definition"], weights["core"])
        z = jnp.broadcast_to(weights["z0"], x.shape)
        for loop in range(1, MAX_LOOPS + 1):
            z = jnp.where((loop <= result.loops)[:, None, None], core(z, x, GRID), z)
        return jnp.sum(z * case["cotangent"])

    by_autodiff = jax.jit(jax.grad(by_hand, argnums=(0, 1)))(case["weights"], case["x"])
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(by_autodiff), strict=True):
        assert relative(ours, theirs) < 1e-10

    def loss(arguments):
        weights, x = arguments
        out = run(case, weights, x, None, halting=halting, execution=execution)
        return jnp.sum(out.latent * case["cotangent"]), out.loops

    loss = jax.jit(loss)
    arguments = (case["weights"], case["x"])
    for seed in range(4):
        leaves, structure = jax.tree.flatten(arguments)
        keys = jax.random.split(jax.random.key(seed), len(leaves))
        direction = [
            jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)
        ]
        moved = [
            jax.tree.unflatten(structure, [a + s * 1e-6 * d for a, d in zip(leaves, direction, strict=True)])
            for s in (1, -1)
        ]
        (up, up_loops), (down, down_loops) = map(loss, moved)
        assert (up_loops == result.loops).all()
        assert (down_loops == result.loops).all()
        slope = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), direction, strict=True))
        np.testing.assert_allclose((up - down) / 2e-6, slope, rtol=1e-6)


def exploding(weights, x):
    """A step that settles for most examples, and overflows for those with a positive growth."""
    return lambda z, x: jnp.tanh(z @ weights["w"] + x["input"]) + x["growth"][:, None] * z**3


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("execution", [FrozenScan(), EarlyExit(), Packed(3), Packed(4)])
def test_an_example_that_turns_non_finite_harms_nobody(precision, execution):
    tolerance = PRECISIONS[precision]
    with jax.enable_x64(precision == "float64"):
        dtype = jnp.dtype(precision)
        keys = jax.random.split(jax.random.key(1), 5)
        weights = {
            "w": 0.2 * jax.random.normal(keys[0], (6, 6), dtype),
            "head": jax.random.normal(keys[1], (6, 3), dtype),
        }
        inputs = jax.random.normal(keys[2], (8, 6), dtype)
        # Examples 1 and 4 overflow after some loops, 6 in the very first.
        growth = jnp.zeros(8, dtype).at[jnp.array([1, 4])].set(jnp.array([2.0, 30.0], dtype))
        inputs = inputs.at[6].set(jnp.nan)
        cotangent = jax.random.normal(keys[3], (8, 6), dtype)
        # Not the policy: it saturates, and so converges, before its latent overflows.
        halting = LatentResidual(threshold=0.05, max_loops=40)

        @functools.partial(jax.jit, static_argnums=0)
        @functools.partial(jax.grad, argnums=(1, 2), has_aux=True)
        def gradient(chosen, weights, inputs):
            rows = jnp.array(chosen)
            result = run_loop(
                exploding(weights, inputs),
                lambda z, x: Categorical(z @ weights["head"]),
                jnp.ones((len(chosen), 6), dtype),
                {"input": inputs[rows], "growth": growth[rows]},
                halting=halting,
                execution=execution,
            )
            return jnp.sum(result.latent * cotangent[rows]), result

        everyone, healthy = tuple(range(8)), (0, 2, 3, 5, 7)
        (all_weights, all_inputs), together = gradient(everyone, weights, inputs)
        broken = together.stop == StopReason.NON_FINITE
        assert broken.nonzero()[0].tolist() == [1, 4, 6]
        assert jnp.isfinite(together.latent).all()
        assert together.loops[6] == 0
        assert (together.latent[6] == 1).all(), "it keeps its last finite latent"
        assert 0 < together.loops[4] < together.loops[1] < 14
        assert (together.stop[jnp.array([0, 2, 3, 5, 7])] == StopReason.CONVERGED).all()

        # Neighbours: the same values, and the same gradients, as without the broken examples.
        (alone_weights, alone_inputs), alone = gradient(healthy, weights, inputs)
        rows = jnp.array(healthy)
        np.testing.assert_array_equal(together.loops[rows], alone.loops)
        assert relative(together.latent[rows], alone.latent) < tolerance
        assert relative(all_inputs[rows], alone_inputs[rows]) < tolerance

        # And the broken ones: the gradient of the finite loops that they did execute, no NaN.
        expected = alone_weights["w"]
        for row in (1, 4):

            def finite_loops(w, row=row):
                z = jnp.ones((1, 6), dtype)
                step = exploding({"w": w}, None)
                for _ in range(int(together.loops[row])):
                    z = step(z, {"input": inputs[row : row + 1], "growth": growth[row : row + 1]})
                return jnp.sum(z * cotangent[row])

            expected = expected + jax.grad(finite_loops)(weights["w"])
        assert jnp.isfinite(expected).all()
        assert relative(all_weights["w"], expected) < tolerance
        assert (all_inputs[6] == 0).all()


@pytest.mark.parametrize("asked", [3, 12])
def test_early_exit_computes_no_loop_beyond_the_deepest(asked):
    """Counted on the host: n loops forward, and n again (with their gradient) backward."""
    calls = []

    def step(z, x):
        jax.debug.callback(lambda: calls.append(1))
        return 0.5 * z + x

    def loss(x):
        result = run_loop(
            step,
            lambda z, x: UnitGaussian(z),
            jnp.zeros((4, 2)),
            x,
            halting=FixedLoops(asked) if asked == 3 else PolicyKL(1e-5, max_loops=64),
            execution=EarlyExit(),
        )
        return result.latent.sum(), result.loops

    x = jnp.linspace(0.1, 4, 8).reshape(4, 2)
    _, loops = jax.jit(loss)(x)
    jax.effects_barrier()
    assert loops.max() == asked
    assert len(calls) == asked

    calls.clear()
    jax.block_until_ready(jax.jit(jax.grad(loss, has_aux=True))(x))
    jax.effects_barrier()
    assert len(calls) == 2 * asked


def test_a_step_may_close_over_anything_traced():
    """Floats get gradients; integers and random keys just work, inside chunks too."""

    def loss(scale, table, index, key, execution):
        def step(z, x):
            noise = jax.random.normal(key, (3,))
            return jnp.tanh(z * scale + table[index] + noise + x["a"]) + 0.1 * x["b"][:, None]

        x = {"a": jnp.ones((7, 3)), "b": jnp.arange(7)}
        out = run_loop(step, lambda z, x: Categorical(z * scale), jnp.zeros((7, 3)), x, execution=execution)
        return out.latent.sum()

    arguments = (jnp.float32(0.5), jnp.arange(12.0).reshape(4, 3) / 10, jnp.int32(2), jax.random.key(0))
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=4)
    oracle = gradient(*arguments, FrozenScan())
    for execution in (EarlyExit(), Packed(3)):
        for ours, theirs in zip(gradient(*arguments, execution), oracle, strict=True):
            assert relative(ours, theirs) < 1e-5
    assert jnp.abs(oracle[1][2]).min() > 0
    assert (oracle[1][:2] == 0).all()
