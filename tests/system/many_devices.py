"""The gradient of the loop on eight CPU devices. test_many_devices.py runs this in a new process."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from helpers import relative
from looped_actor import (
    Actor,
    CoreConfig,
    EarlyExit,
    FrozenScan,
    LoopedTrunk,
    Packed,
    PlanesTokenizer,
    PolicyKL,
    ReadoutLogits,
    ValueHead,
)

assert jax.device_count() == 8
rngs = nnx.Rngs(0)
config = CoreConfig(width=16, heads=2, layers=1)
model = Actor(
    PlanesTokenizer(4, 16, rngs=rngs),
    LoopedTrunk(config, PolicyKL(threshold=3e-3), rngs=rngs),
    ReadoutLogits(16, 4, rngs=rngs),
    ValueHead(16, rngs=rngs),
)
definition, trained, fixed = nnx.split(model, nnx.Param, ...)
batch = jax.random.bernoulli(jax.random.key(0), 0.3, (64, 5, 5, 4)).astype(jnp.float32)


def loss(trained, batch, execution):
    """Return a sum over examples: the parts of a batch then add up to the whole."""
    output = nnx.merge(definition, trained, fixed)(batch, execution=execution)
    assert output.value is not None
    return (output.value**2).sum() + output.distribution.entropy().sum(), output.loop.loops


def gradient(execution):
    return jax.jit(jax.grad(functools.partial(loss, execution=execution), has_aux=True))


oracle, loops = gradient(FrozenScan())(trained, batch)
assert len(set(loops.tolist())) >= 3, loops


def check(name, actual, actual_loops):
    """Compare gradient and loops with those of the frozen scan on one device."""
    assert (jax.device_get(actual_loops) == jax.device_get(loops)).all(), name
    for found, expected in zip(jax.tree.leaves(actual), jax.tree.leaves(oracle), strict=True):
        assert relative(found, expected) < 1e-5, name
    print(name, "agrees")


mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
rows, everywhere = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), ()))
sharded, replicated = jax.device_put(batch, rows), jax.device_put(trained, everywhere)

# The compiler shards the loop: one program, all devices loop until the deepest example stops.
for execution in (FrozenScan(), EarlyExit()):
    found = jax.block_until_ready(gradient(execution)(replicated, sharded))
    check(f"{execution} over 8 devices", *found)


# Each device packs its own examples; only gradients are exchanged.
@jax.jit
@functools.partial(
    jax.shard_map,
    mesh=mesh,
    in_specs=(PartitionSpec(), PartitionSpec("data")),
    out_specs=(PartitionSpec(), PartitionSpec("data")),
    check_vma=False,
)
def packed_gradient(trained, batch):
    found, loops = jax.grad(functools.partial(loss, execution=Packed(microbatch=3)), has_aux=True)(
        trained, batch
    )
    return jax.lax.psum(found, "data"), loops


check("Packed on each of 8 devices", *jax.block_until_ready(packed_gradient(replicated, sharded)))
