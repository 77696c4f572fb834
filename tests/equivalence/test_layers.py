"""Layers that are written for a kind of hardware against the plain ones: values and gradients."""

import types

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from helpers import cast, relative
from looped_actor.models import CoreConfig, FPRMCore, layers
from looped_actor.models.drc import shifted_products


def assert_same(fast, plain, inputs):
    def value_and_gradients(layer):
        def loss(*inputs):
            return jnp.sin(layer(*inputs)).sum()

        return layer(*inputs), *jax.grad(loss, (0, 1))(*inputs)

    for ours, theirs in zip(value_and_gradients(fast), value_and_gradients(plain), strict=True):
        assert relative(ours, theirs) < 1e-12


@pytest.mark.parametrize("size", [1, 3, 4])
def test_shifted_products_are_a_same_convolution(x64, size):
    keys = jax.random.split(jax.random.key(size), 2)
    board = jax.random.normal(keys[0], (3, 5, 6, 4))
    kernel = jax.random.normal(keys[1], (size, size, 4, 2))

    def xlas(board, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(board, kernel, (1, 1), "SAME", dimension_numbers=layout)

    assert_same(shifted_products, xlas, (board, kernel))


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_heads_have_the_gradient_that_jax_takes(x64, monkeypatch, platform):
    monkeypatch.setattr(layers, "target_device", lambda: types.SimpleNamespace(platform=platform))
    keys = jax.random.split(jax.random.key(0), 2)
    tokens, kernel = jax.random.normal(keys[0], (3, 5, 8)), jax.random.normal(keys[1], (8, 24))

    def plain(tokens, kernel):
        queries_keys_values = jnp.split(tokens @ kernel, 3, axis=-1)
        return jnp.stack([part.reshape(3, 5, 2, 4).swapaxes(1, 2) for part in queries_keys_values])

    assert_same(lambda tokens, kernel: layers.in_heads(tokens, kernel, 2), plain, (tokens, kernel))


@pytest.mark.parametrize("convolution", [False, True])
def test_a_loop_has_jacobian_vector_products(x64, convolution):
    """Forward mode against central differences and against reverse mode."""
    config = CoreConfig(width=8, heads=2, layers=1)
    core = cast(FPRMCore(config, convolution=convolution, rngs=nnx.Rngs(0)), jnp.float64)
    z, x, tangent, cotangent = jax.random.normal(jax.random.key(1), (4, 2, 7, 8))

    def loop(z):
        return core(z, x, grid=(2, 3))

    value, along = jax.jvp(loop, (z,), (tangent,))
    step = 1e-6
    assert relative(along, (loop(z + step * tangent) - loop(z - step * tangent)) / (2 * step)) < 1e-8
    _, pull = jax.vjp(loop, z)
    forward, reverse = jnp.vdot(cotangent, along), jnp.vdot(pull(cotangent)[0], tangent)
    assert float(forward) == pytest.approx(float(reverse), rel=1e-12)
    assert relative(value, loop(z)) == 0
