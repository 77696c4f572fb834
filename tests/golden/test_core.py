"""The core, its halting and its readout against vectors made by an independent implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from helpers import cast, relative
from looped_actor.loop import Categorical, EarlyExit, FrozenScan, Packed, PolicyKL, UnitGaussian, run_loop
from looped_actor.models import CoreConfig, FPRMCore
from looped_actor.models.layers import rms_norm

FILES = ["core_grid_categorical.npz", "core_tokens_gaussian.npz", "core_paper_size.npz"]
EXECUTIONS = [FrozenScan(), EarlyExit(), Packed(microbatch=5)]
PRECISIONS = {"float32": 1e-4, "float64": 1e-9}


def load_core(vectors: dict, dtype) -> FPRMCore:
    width = vectors["z0"].shape[0]
    hidden = vectors["layer_0.down"].shape[0]
    config = CoreConfig(
        width=width,
        heads=int(vectors["heads"]),
        layers=sum(name.endswith(".qkv") for name in vectors),
        hidden=hidden,
    )
    core = cast(FPRMCore(config, convolution="conv" in vectors, rngs=nnx.Rngs(0)), dtype)
    core.alpha_1_logit[...] = jnp.asarray(vectors["alpha_1_logit"], dtype)
    core.alpha_2_logit[...] = jnp.asarray(vectors["alpha_2_logit"], dtype)
    if core.convolution is not None:
        core.convolution.kernel[...] = jnp.asarray(vectors["conv"], dtype)
    for i, (attention, feed_forward) in enumerate(zip(core.attention, core.feed_forward, strict=True)):
        for module, name in (
            (attention.qkv, "qkv"),
            (attention.out, "out"),
            (feed_forward.gate_up, "gate_up"),
            (feed_forward.down, "down"),
        ):
            assert module.kernel[...].shape == vectors[f"layer_{i}.{name}"].shape
            module.kernel[...] = jnp.asarray(vectors[f"layer_{i}.{name}"], dtype)
    return core


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("file", FILES)
def test_core_and_halting_match_the_golden_vectors(golden, file, precision):
    vectors = golden(file)
    with jax.enable_x64(precision == "float64"):
        dtype, tolerance = jnp.dtype(precision), PRECISIONS[precision]
        core = load_core(vectors, dtype)
        rows, columns = (int(n) for n in vectors["grid"])
        grid = (rows, columns) if rows else None
        x = jnp.asarray(vectors["x"], dtype)
        z0 = jnp.broadcast_to(jnp.asarray(vectors["z0"], dtype), x.shape)
        kernel = jnp.asarray(vectors["readout_kernel"], dtype)
        bias = jnp.asarray(vectors["readout_bias"], dtype)
        family = UnitGaussian if "gaussian" in file else Categorical

        def readout(z, x):
            return family(rms_norm(z[:, 0]) @ kernel + bias)

        def decoded(z):
            policy = readout(z, x)
            return policy.log_probabilities if isinstance(policy, Categorical) else policy.mean

        assert relative(core(z0, x, grid), vectors["core_once"]) < tolerance

        for i, tau in enumerate(vectors["taus"]):
            for execution in EXECUTIONS:
                halting = PolicyKL(float(tau), min_loops=2, max_loops=16)
                run = jax.jit(
                    lambda x, halting=halting, execution=execution: run_loop(
                        lambda z, x: core(z, x, grid), readout, z0, x, halting=halting, execution=execution
                    )
                )
                result = run(x)
                np.testing.assert_array_equal(result.loops, vectors[f"tau{i}.loops"])
                assert relative(result.latent, vectors[f"tau{i}.latent"]) < tolerance
                assert relative(decoded(result.latent), vectors[f"tau{i}.decoded"]) < tolerance
                last = vectors[f"tau{i}.kl"][vectors[f"tau{i}.loops"] - 1, np.arange(len(x))]
                np.testing.assert_allclose(
                    result.divergence, last, rtol=1e-3 if precision == "float32" else 1e-7
                )
