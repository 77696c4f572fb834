"""Bad arguments get answers that a person can act on; odd ones get the right result."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_actor.loop import (
    Carry,
    Categorical,
    EarlyExit,
    FixedLoops,
    FrozenScan,
    LatentResidual,
    Packed,
    PolicyKL,
    StopReason,
    UnitGaussian,
    empty_carry,
    run_loop,
    zero_carry,
)
from looped_actor.loop.packing import MAX_MICROBATCHES_TOGETHER, even_microbatches

Z0, X = jnp.zeros((4, 3)), jnp.ones((4, 3))


def halve(z, x):
    return 0.5 * z + x


def read(z, x):
    return UnitGaussian(z)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"z0": jnp.zeros(())}, "batch axis"),
        ({"z0": jnp.zeros((0, 3))}, "at least one example"),
        ({"z0": jnp.zeros((4, 3), jnp.int32)}, "floating type"),
        ({"x": jnp.ones((3, 3))}, "x has shape \\(3, 3\\), but z0 has 4 examples"),
        ({"x": {"a": X, "mask": jnp.ones(2)}}, "x\\['mask'\\] has shape \\(2,\\)"),
        ({"expected_loops": jnp.ones(5)}, "expected_loops has shape \\(5,\\)"),
        ({"step": lambda z, x: z[:, :2]}, "must return a latent like z0"),
        ({"step": lambda z, x: z.astype(jnp.bfloat16)}, "must return a latent like z0"),
        ({"step": lambda z, x: (z, x)}, "must return a latent like z0"),
    ],
)
def test_wrong_shapes_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        run_loop(**({"step": halve, "readout": read, "z0": Z0, "x": X} | arguments))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolicyKL(threshold=-1.0), "threshold is -1.0"),
        (lambda: PolicyKL(threshold=float("nan")), "threshold is nan"),
        (lambda: PolicyKL(min_loops=0), "1 <= min_loops <= max_loops"),
        (lambda: LatentResidual(min_loops=9, max_loops=8), "1 <= min_loops <= max_loops"),
        (lambda: FixedLoops(0), "at least 1"),
        (lambda: Packed(0), "at least 1"),
    ],
)
def test_wrong_rules_are_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_halting_at_the_first_loop_that_satisfies_it():
    """z_l = 2 (1 - 2^-l) x: the policy moves by 2^-l x in loop l, so its KL is 3 (2^-l)^2 / 2."""
    x = jnp.array([1.0, 0.5, 0.25, 0.0])[:, None] * X
    result = run_loop(halve, read, Z0, x, halting=PolicyKL(threshold=1.5 * 0.25**4 * 1.01))
    # A move of x 2^(1-l) in loop l is at most 2^-4 from loop 5 on for x = 1, 4 for 1/2, 3 for 1/4.
    np.testing.assert_array_equal(result.loops, [5, 4, 3, 2])
    assert (result.stop == StopReason.CONVERGED).all()
    np.testing.assert_allclose(result.latent[:, 0], 2 * (1 - 0.5**result.loops) * x[:, 0], rtol=1e-6)


def test_latent_residual_is_the_rule_of_fprm():
    """The largest change of a token relative to that token, whatever the size of the others."""
    rule = LatentResidual()
    assert rule.threshold == 0.1
    before = jnp.zeros((3, 2, 2)).at[:, 0].set(100.0)
    now = before.at[0, 1].set(jnp.array([0.5, -1.0]))  # a small token changes wholly
    now = now.at[1, 0].set(jnp.array([100.0, 125.0]))  # a large token by a fifth of its largest channel
    np.testing.assert_allclose(rule.divergence(before, now), [1.0, 0.2, 0.0], rtol=1e-6)
    # A latent without tokens is one token.
    np.testing.assert_allclose(rule.divergence(before[:, 0], now[:, 0]), [0.0, 0.2, 0.0], rtol=1e-6)


def test_the_direction_of_the_divergence():
    """KL(p_0 || p_1) against KL(p_1 || p_0), at the first loop."""
    z0, target = jnp.zeros((1, 2)), jnp.array([[2.0, 0.0]])
    p0, p1 = Categorical(z0), Categorical(target)
    for reverse, expected in ((False, p0.kl(p1)), (True, p1.kl(p0))):
        rule = PolicyKL(threshold=1e9, min_loops=1, reverse=reverse)
        result = run_loop(lambda z, x: x, lambda z, x: Categorical(z), z0, target, halting=rule)
        np.testing.assert_allclose(result.divergence, expected, rtol=1e-6)
        assert result.loops[0] == 1


def test_a_readout_may_use_the_input():
    mask = jnp.array([[0.0, -jnp.inf, 0.0]] * 4)
    result = run_loop(
        lambda z, x: 0.5 * z + x["e"],
        lambda z, x: Categorical(z + x["mask"]),
        Z0,
        {"e": X, "mask": mask},
        execution=Packed(3),
    )
    assert (result.stop == StopReason.CONVERGED).all()


@pytest.mark.parametrize("execution", [FrozenScan(), EarlyExit(), Packed(3)])
def test_a_policy_that_is_not_a_number_stops_its_example(execution):
    """The latent stays finite, but what is read from it does not: it is kept at the loop before."""

    def fragile(z, x):
        return UnitGaussian(jnp.sqrt(3.2 - z))

    result = run_loop(
        lambda z, x: z + x, fragile, Z0, X * jnp.array([1.0, 0.1, 0.0, 2.0])[:, None], execution=execution
    )
    np.testing.assert_array_equal(result.stop == StopReason.NON_FINITE, [True, False, False, True])
    np.testing.assert_array_equal(result.latent[:, 0][jnp.array([0, 3])], [3.0, 2.0])
    np.testing.assert_array_equal(result.loops[jnp.array([0, 3])], [3, 1])


def test_a_cap_above_that_of_training_only_adds_loops():
    rule = PolicyKL(threshold=1e-12, max_loops=4)
    short = run_loop(halve, read, Z0, X, halting=rule, record=True)
    long = run_loop(halve, read, Z0, X, halting=dataclasses.replace(rule, max_loops=64), record=True)
    assert short.latents is not None
    assert long.latents is not None
    assert long.latents.shape[0] == 64
    np.testing.assert_allclose(long.latents[:4], short.latents)
    assert (long.loops > short.loops).all()


def test_a_batch_of_loops_may_be_mapped():
    """vmap over a stack of batches, as an ensemble does."""
    xs = jnp.stack([X, 2 * X, 0.1 * X])
    one_by_one = [run_loop(halve, read, Z0, x) for x in xs]
    together = jax.vmap(lambda x: run_loop(halve, read, Z0, x))(xs)
    for i, single in enumerate(one_by_one):
        np.testing.assert_array_equal(together.loops[i], single.loops)
        np.testing.assert_allclose(together.latent[i], single.latent)


def test_microbatches_leave_little_to_be_padded():
    for batch, wish in itertools.product((1, 3, 7, 64, 100, 128, 257, 1024), (1, 2, 6, 9, 16, 100)):
        size, count = even_microbatches(batch, wish)
        part = size * count
        assert 1 <= size <= wish
        assert 1 <= count <= MAX_MICROBATCHES_TOGETHER
        padding = -batch % part
        assert padding <= 0.1 * batch + 1, (batch, wish)
        if batch % 64 == 0 and wish >= 2:
            assert padding == 0


def test_a_carry_starts_from_the_last_latent_except_in_new_episodes():
    z0 = jnp.full((3, 2), 5.0)
    carry = zero_carry(jax.eval_shape(lambda: z0))
    assert not carry.is_empty
    np.testing.assert_array_equal(carry.initial_latent(z0), z0)  # all episodes begin
    latent = jnp.arange(6.0).reshape(3, 2)
    carry = carry.update(latent, jnp.array([False, True, False]))
    np.testing.assert_array_equal(carry.initial_latent(z0), [[0, 1], [5, 5], [4, 5]])
    carry = carry.restart(np.array([True, False, False]))
    np.testing.assert_array_equal(carry.reset, [True, True, False])
    np.testing.assert_array_equal(carry.initial_latent(z0), [[5, 5], [5, 5], [4, 5]])
    carry = carry.update(latent)  # no episode ended
    np.testing.assert_array_equal(carry.initial_latent(z0), latent)


def test_an_empty_carry_changes_nothing_but_its_flags():
    z0, carry = jnp.full((3, 2), 5.0), empty_carry(3)
    assert carry.is_empty
    assert carry.latent.shape == (3, 0)
    assert carry.initial_latent(z0) is z0
    after = carry.update(2 * z0, jnp.array([False, True, False]))
    assert after.is_empty
    np.testing.assert_array_equal(after.reset, [False, True, False])
    assert after.initial_latent(z0) is z0
    assert after.restart(np.ones(3, bool)).is_empty
    # Both kinds are pytrees of two arrays, rows first, so that rows are chosen and written in the same way.
    for one in (carry, zero_carry(z0)):
        assert [leaf.shape[0] for leaf in jax.tree.leaves(one)] == [3, 3]


def test_gradients_stop_at_a_carry():
    def loss(z0, latent):
        carry = Carry(latent, jnp.array([True, False]))
        return (carry.initial_latent(z0) ** 2).sum()

    into_z0, into_latent = jax.grad(loss, argnums=(0, 1))(jnp.ones((2, 2)), jnp.ones((2, 2)))
    np.testing.assert_array_equal(into_z0, [[2, 2], [0, 0]])
    np.testing.assert_array_equal(into_latent, jnp.zeros((2, 2)))


def test_a_carry_keeps_the_type_of_its_latent():
    carry = zero_carry(jax.ShapeDtypeStruct((2, 3), jnp.float32))
    carry = carry.update(jnp.ones((2, 3), jnp.bfloat16))
    assert carry.latent.dtype == jnp.float32
    assert carry.initial_latent(jnp.zeros((2, 3), jnp.bfloat16)).dtype == jnp.bfloat16
