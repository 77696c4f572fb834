"""Iterates stay bounded for any weights. The bound is derived in the docstring of `FPRMCore`."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from looped_actor.loop import FixedLoops, StopReason, UnitGaussian, run_loop
from looped_actor.models import CoreConfig, FPRMCore

LOOPS = 1000
BATCH, GRID = 3, (2, 3)


def sublayer_bound(core: FPRMCore) -> float:
    """G: what no sublayer's output exceeds in any channel, whatever it reads.

    A normalised h has norm at most sqrt(d), so n = norm(h) satisfies |n . w| <= sqrt(d) |w|.
    Attention averages values, |v_j| <= sqrt(d) |V_j|, and maps them: |o_c| <= sum_j |O_jc| sqrt(d) |V_j|.
    SwiGLU has |silu(g) u| <= |g| |u| <= d |gate_j| |up_j|: |o_c| <= sum_j |D_jc| d |gate_j| |up_j|.
    """
    d = core.config.width
    bounds = []
    for attention, feed_forward in zip(core.attention, core.feed_forward, strict=True):
        values = attention.qkv.kernel[...][:, 2 * d :]
        reach = np.sqrt(d) * jnp.linalg.norm(values, axis=0)
        bounds.append(reach @ jnp.abs(attention.out.kernel[...]))
        gate, up = jnp.split(feed_forward.gate_up.kernel[...], 2, axis=1)
        reach = d * jnp.linalg.norm(gate, axis=0) * jnp.linalg.norm(up, axis=0)
        bounds.append(reach @ jnp.abs(feed_forward.down.kernel[...]))
    return float(jnp.max(jnp.stack(bounds)))


def convolution_gain(core: FPRMCore) -> float:
    """k: the sum of the absolute weights of a channel, at least 1 for the readout token that passes."""
    if core.convolution is None:
        return 1.0
    return max(1.0, float(jnp.abs(core.convolution.kernel[...]).sum(axis=(0, 1)).max()))


@jax.jit
def iterate(core: FPRMCore, z0, x):
    """The largest entry of the latent after every one of 1,000 loops."""

    def body(z, _):
        z = core(z, x, GRID)
        return z, jnp.abs(z).max()

    return jax.lax.scan(body, z0, None, length=LOOPS)[1]


def draw(seed: int, convolution: bool, weight: float, logits: tuple[float, float], kernel: float = 1.0):
    core = FPRMCore(CoreConfig(width=8, heads=2), convolution=convolution, rngs=nnx.Rngs(seed))
    definition, state = nnx.split(core)
    core = nnx.merge(definition, jax.tree.map(lambda a: weight * a, state))
    core.alpha_1_logit[...] = jnp.full(8, logits[0])
    core.alpha_2_logit[...] = jnp.full(8, logits[1])
    if core.convolution is not None:
        core.convolution.kernel[...] = kernel * core.convolution.kernel[...] / weight
    keys = jax.random.split(jax.random.key(seed))
    shape = (BATCH, 1 + GRID[0] * GRID[1], 8)
    return core, 6 * jax.random.normal(keys[0], shape), 10 * jax.random.normal(keys[1], shape)


seeds = st.integers(0, 2**16)
weights = st.sampled_from([0.01, 1.0, 10.0, 1000.0])
logits = st.tuples(st.floats(-12, 12), st.floats(-12, 12))


@given(seeds, weights, logits)
def test_bounded_for_any_weights_without_convolution(seed, weight, logits):
    core, z0, x = draw(seed, False, weight, logits)
    bound = max(float(jnp.abs(z0).max()), float(jnp.abs(x).max()) + sublayer_bound(core))
    sizes = iterate(core, z0, x)
    assert jnp.isfinite(sizes).all()
    assert sizes.max() <= bound * 1.001


@given(seeds, weights, logits, st.floats(0.1, 4))
def test_bounded_with_a_convolution_whose_gain_the_retention_absorbs(seed, weight, logits, kernel):
    core, z0, x = draw(seed, True, weight, logits, kernel)
    alpha_1, _, alpha_2, beta_2 = (float(s.max()) for s in core.scaling)
    rho = alpha_2 * alpha_1**core.config.sublayers * convolution_gain(core)
    if rho >= 0.99:  # bring the retention down to where the bound exists
        core.alpha_2_logit[...] = jnp.full(8, -np.log(rho / 0.49 / alpha_2 - 1))
        alpha_1, _, alpha_2, beta_2 = (float(s.max()) for s in core.scaling)
        rho = alpha_2 * alpha_1**core.config.sublayers * convolution_gain(core)
    assert rho < 1
    input_size = float(jnp.abs(x).max())
    injected = beta_2 * (alpha_1**core.config.sublayers * input_size + sublayer_bound(core))
    bound = float(jnp.abs(z0).max()) + injected / (1 - rho)
    sizes = iterate(core, z0, x)
    assert jnp.isfinite(sizes).all()
    assert sizes.max() <= bound * 1.001


def test_a_convolution_beyond_that_gain_diverges_and_is_reported():
    """The limit of the claim: the coupling does not cover the convolution. The loop says so, and stops."""
    core, z0, x = draw(0, True, 1.0, (8.0, 8.0), kernel=20.0)
    assert not jnp.isfinite(iterate(core, z0, x)).all()
    result = run_loop(
        lambda z, x: core(z, x, GRID), lambda z, x: UnitGaussian(z[:, 0]), z0, x, halting=FixedLoops(LOOPS)
    )
    assert (result.stop == StopReason.NON_FINITE).all()
    assert jnp.isfinite(result.latent).all()


def test_where_training_starts_there_is_room():
    core = FPRMCore(CoreConfig(), rngs=nnx.Rngs(0))
    alpha_1, _, alpha_2, _ = core.scaling
    np.testing.assert_allclose(alpha_1, 0.75, rtol=1e-6)
    np.testing.assert_allclose(alpha_2, 0.25, rtol=1e-6)
    gain = jnp.abs(core.convolution.kernel[...]).sum(axis=(0, 1)).max()
    assert (alpha_2 * alpha_1**4).max() * gain < 0.5
