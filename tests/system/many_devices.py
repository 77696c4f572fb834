"""Run by test_many_devices.py in a process of its own, with eight CPU devices."""

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
config = CoreConfig(width=16, heads=2, layers=1, hidden_multiple=16)
model = Actor(
    PlanesTokenizer(4, 16, rngs=rngs),
    LoopedTrunk(config, PolicyKL(threshold=3e-3), rngs=rngs),
    ReadoutLogits(16, 4, rngs=rngs),
    ValueHead(16, rngs=rngs),
)
definition, trained, fixed = nnx.split(model, nnx.Param, ...)
batch = jax.random.bernoulli(jax.random.key(0), 0.3, (64, 5, 5, 4)).astype(jnp.float32)


def loss(trained, batch, execution):
    """A sum over examples, so that the parts of a batch add up to the whole."""
    out = nnx.merge(definition, trained, fixed)(batch, execution=execution)
    return (out.value**2).sum() + out.distribution.entropy().sum(), out.loop.loops


def gradient(execution):
    return jax.jit(jax.grad(functools.partial(loss, execution=execution), has_aux=True))


oracle, loops = gradient(FrozenScan())(trained, batch)
assert len(set(loops.tolist())) >= 3, loops


def check(name, actual, actual_loops):
    assert (jax.device_get(actual_loops) == jax.device_get(loops)).all(), name
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(oracle), strict=True):
        assert relative(ours, theirs) < 1e-5, name
    print(name, "agrees")


mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
by_example, everywhere = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), ()))
sharded, replicated = jax.device_put(batch, by_example), jax.device_put(trained, everywhere)

# The compiler shards the loop: one program, all devices loop until the deepest example stops.
for execution in (FrozenScan(), EarlyExit()):
    found = jax.block_until_ready(gradient(execution)(replicated, sharded))
    check(f"{execution} over 8 devices", *found)


# Each device packs its own examples and loops as long as they need; only gradients are exchanged.
@jax.jit
@functools.partial(
    jax.shard_map,
    mesh=mesh,
    in_specs=(PartitionSpec(), PartitionSpec("data")),
    out_specs=(PartitionSpec(), PartitionSpec("data")),
    check_vma=False,
)
def packed_on_each(trained, batch):
    found, loops = jax.grad(functools.partial(loss, execution=Packed(3)), has_aux=True)(trained, batch)
    return jax.lax.psum(found, "data"), loops


check("Packed on each of 8 devices", *jax.block_until_ready(packed_on_each(replicated, sharded)))
