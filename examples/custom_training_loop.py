"""Adaptive depth in a custom training loop: a looped actor learns on a 5x5 board which way the goal is."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from looped_actor import Actor, CoreConfig, LoopedTrunk, Packed, PlanesTokenizer, PolicyKL, ReadoutLogits

WIDTH, rngs = 32, nnx.Rngs(0)
actor = Actor(
    PlanesTokenizer(planes=2, width=WIDTH, rngs=rngs),
    LoopedTrunk(CoreConfig(width=WIDTH, heads=2), PolicyKL(max_loops=8), rngs=rngs),
    ReadoutLogits(WIDTH, 4, rngs=rngs),
)
optimizer = nnx.Optimizer(actor, optax.adam(3e-3), wrt=nnx.Param)


def draw_batch(key, count=64):
    """Draw boards with an agent and a goal. The label is a step down, up, right or left towards the goal."""
    cells = jax.random.randint(key, (count, 2, 2), 0, 5)
    planes = jax.nn.one_hot(cells[..., 0], 5)[..., None] * jax.nn.one_hot(cells[..., 1], 5)[..., None, :]
    down, right = (cells[:, 1] - cells[:, 0]).T
    vertical, horizontal = jnp.where(down > 0, 0, 1), jnp.where(right > 0, 2, 3)
    return planes.transpose(0, 2, 3, 1), jnp.where(down != 0, vertical, horizontal)


@nnx.jit
def update(actor, optimizer, key):
    """Apply one gradient of the cross-entropy. `Packed` turns early halting into saved time."""

    def loss_fn(actor):
        output = actor(observation, execution=Packed())
        return -output.distribution.log_prob(label).mean(), output.loop.loops.mean()

    observation, label = draw_batch(key)
    (loss, loops), gradient = nnx.value_and_grad(loss_fn, has_aux=True)(actor)
    optimizer.update(actor, gradient)
    return loss, loops


for step in range(101):
    loss, loops = update(actor, optimizer, jax.random.key(step))
    if step % 25 == 0:
        print(f"step {step:3d}   loss {loss:.3f}   mean loops {loops:.1f}")
