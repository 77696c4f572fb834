"""Adaptive depth in a training loop of your own: a looped actor learns which way to go on a 5x5 board."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from looped_actor import Actor, CoreConfig, LoopedTrunk, Packed, PlanesTokenizer, PolicyKL, ReadoutLogits

WIDTH, rngs = 32, nnx.Rngs(0)
actor = Actor(
    PlanesTokenizer(planes=2, width=WIDTH, rngs=rngs),
    LoopedTrunk(CoreConfig(width=WIDTH, heads=2, hidden_multiple=32), PolicyKL(max_loops=8), rngs=rngs),
    ReadoutLogits(WIDTH, 4, rngs=rngs),
)
optimizer = nnx.Optimizer(actor, optax.adam(3e-3), wrt=nnx.Param)


def boards(key, count=64):
    """An agent and a goal on each board; the label is a step down, up, right or left towards it."""
    place = jax.random.randint(key, (count, 2, 2), 0, 5)
    planes = jax.nn.one_hot(place[..., 0], 5)[..., None] * jax.nn.one_hot(place[..., 1], 5)[..., None, :]
    down, right = (place[:, 1] - place[:, 0]).T
    return planes.transpose(0, 2, 3, 1), jnp.where(
        down != 0, jnp.where(down > 0, 0, 1), jnp.where(right > 0, 2, 3)
    )


@nnx.jit
def update(actor, optimizer, key):
    """One step of imitation. `Packed` turns early halting into time saved."""

    def loss(actor):
        out = actor(observation, execution=Packed())
        return -out.distribution.log_prob(label).mean(), out.loop.loops.mean()

    observation, label = boards(key)
    (value, loops), gradient = nnx.value_and_grad(loss, has_aux=True)(actor)
    optimizer.update(actor, gradient)
    return value, loops


for step in range(101):
    value, loops = update(actor, optimizer, jax.random.key(step))
    if step % 25 == 0:
        print(f"step {step:3d}   loss {value:.3f}   mean loops {loops:.1f}")
