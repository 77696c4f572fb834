"""The convolution that CPUs run against XLA's own: values and gradients."""

import jax
import jax.numpy as jnp
import pytest

from helpers import relative
from looped_actor.models.drc import shifted_products


@pytest.mark.parametrize("size", [1, 3, 4])
def test_shifted_products_are_a_same_convolution(x64, size):
    keys = jax.random.split(jax.random.key(size), 2)
    board = jax.random.normal(keys[0], (3, 5, 6, 4))
    kernel = jax.random.normal(keys[1], (size, size, 4, 2))

    def xlas(board, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(board, kernel, (1, 1), "SAME", dimension_numbers=layout)

    def value_and_gradients(convolve):
        def loss(board, kernel):
            return jnp.sin(convolve(board, kernel)).sum()

        return convolve(board, kernel), *jax.grad(loss, (0, 1))(board, kernel)

    for fast, plain in zip(value_and_gradients(shifted_products), value_and_gradients(xlas), strict=True):
        assert relative(fast, plain) < 1e-12
