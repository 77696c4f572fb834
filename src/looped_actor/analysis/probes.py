"""Attentive probes: small readers of all tokens of a latent, many of them trained at once.

A probe has a few heads. Each looks at every token, weighs them by one learned vector, and takes their mean;
a layer of units reads what all heads took, and names a class. All probes of one loop, of every target and
every seed, see the same minibatches, in one program.
"""

import functools
import json
import os
import pathlib
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from looped_actor.puzzles.boxoban.plans import NONE
from looped_actor.utils.checks import above_zero, at_least_one
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import FileError, read_tensors, reading, write_whole
from looped_actor.utils.processes import Progress, no_progress

FORMAT = "looped-actor probes 1"


@dataclass(frozen=True)
class ProbeConfig:
    """How probes are made and trained."""

    heads: int = 4
    hidden: int = 64
    """Units that read what the heads took."""
    seeds: int = 3
    """Probes of each kind; they begin from different weights."""
    epochs: int = 40
    """Rounds over the levels to learn from. Of each probe the round that was best on the validation levels
    counts."""
    batch: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        at_least_one(self, "heads", "hidden", "seeds", "epochs", "batch")
        above_zero(self, "learning_rate")
        if not self.weight_decay >= 0:
            raise UserError(f"weight_decay is {self.weight_decay}; it must be at least 0")


class Probe(NamedTuple):
    """The weights of a probe, or of many with leading axes."""

    look: Float[Array | np.ndarray, "*p d k"]
    """What each head looks for."""
    read: Float[Array | np.ndarray, "*p kd u"]
    read_bias: Float[Array | np.ndarray, "*p u"]
    name: Float[Array | np.ndarray, "*p u c"]
    name_bias: Float[Array | np.ndarray, "*p c"]


def new_probe(key: Key[Array, ""], width: int, classes: int, config: ProbeConfig) -> Probe:
    """Random weights."""
    keys = jax.random.split(key, 3)

    def weights(key: Array, rows: int, columns: int) -> Array:
        return jax.random.normal(key, (rows, columns)) / np.sqrt(rows)

    heads, hidden = config.heads, config.hidden
    return Probe(
        weights(keys[0], width, heads),
        weights(keys[1], heads * width, hidden),
        jnp.zeros(hidden),
        weights(keys[2], hidden, classes),
        jnp.zeros(classes),
    )


def probe_logits(probe: Probe, latents: Float[Array, "b t d"]) -> Float[Array, "b c"]:
    """What one probe makes of some latents. Tokens are scaled to unit length, as the policy's heads do."""
    scale = jax.lax.rsqrt(jnp.mean(latents**2, axis=-1, keepdims=True) + 1e-5)
    tokens = latents * scale
    attention = jax.nn.softmax(tokens @ probe.look, axis=1)
    taken = jnp.einsum("btk,btd->bkd", attention, tokens).reshape(len(latents), -1)
    return jax.nn.gelu(taken @ probe.read + probe.read_bias) @ probe.name + probe.name_bias


class Split(NamedTuple):
    """Which levels to learn from, to choose by, and to report."""

    train: Int[np.ndarray, " a"]
    validation: Int[np.ndarray, " b"]
    test: Int[np.ndarray, " c"]


def split_levels(count: int, seed: int = 0) -> Split:
    """70, 10 and 20 percent of the levels, by chance."""
    if count < 10:
        raise UserError(f"{count} levels are too few to be split in 70/10/20; give 10 at least")
    order = np.random.default_rng(seed).permutation(count)
    first, second = round(0.7 * count), round(0.8 * count)
    return Split(np.sort(order[:first]), np.sort(order[first:second]), np.sort(order[second:]))


class Probed(NamedTuple):
    """How often the probes of one place name a right class, on the test levels."""

    probes: Probe
    """Leading axes: target, seed."""
    correct: Int[np.ndarray, "j s"]
    tested: Int[np.ndarray, " j"]
    """Test levels that have the target."""


def train_probes(
    latents: Shaped[np.ndarray, "n t d"],
    targets: Int[np.ndarray, "n j"],
    right: Bool[np.ndarray, "n j c"],
    split: Split,
    config: ProbeConfig,
    progress: Progress = no_progress,
) -> Probed:
    """Train a probe for each target and seed, together.

    Args:
      latents: of each level; may be a memory map.
      targets: classes to learn; `NONE` where a level does not have the target.
      right: which classes count as right when a probe is scored.
      split: of the levels.
      config: how.
      progress: told about rounds.
    """
    kinds = targets.shape[1]
    # The seed of a probe is that of its weights: equal for all targets, so that they differ in these alone.
    keys = jnp.stack([jax.random.key(seed) for seed in range(config.seeds)])
    one = functools.partial(new_probe, width=latents.shape[2], classes=right.shape[2], config=config)
    probes = jax.tree.map(lambda a: jnp.repeat(a[None], kinds, axis=0), jax.vmap(one)(keys))
    optimiser = _optimiser(config, len(split.train))
    state = jax.vmap(jax.vmap(optimiser.init))(probes)
    best, best_score = probes, jnp.full((kinds, config.seeds), -1.0)
    learn, chance = _learner(optimiser), np.random.default_rng(0)
    for epoch in range(config.epochs):
        order = chance.permutation(split.train)
        for first in range(0, len(order), config.batch):
            rows = np.resize(order[first : first + config.batch], config.batch)
            probes, state = learn(probes, state, _rows(latents, rows), jnp.asarray(targets[rows]))
        correct, tested = _score(probes, latents, right, split.validation, config)
        score = correct / np.maximum(tested, 1)[:, None]
        best, best_score = _better(probes, score, best, best_score)
        progress(epoch + 1, config.epochs)
    correct, tested = _score(best, latents, right, split.test, config)
    return Probed(jax.tree.map(np.asarray, best), correct, tested)


def _better(probes: Probe, score: Any, best: Probe, best_score: Any) -> tuple[Probe, Any]:
    """Whichever of two versions of each probe scores higher."""
    better = score > best_score

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - 2)), new, old)

    return jax.tree.map(choose, probes, best), jnp.where(better, score, best_score)


def _optimiser(config: ProbeConfig, levels: int) -> optax.GradientTransformation:
    steps = config.epochs * -(-levels // config.batch)
    rate = optax.cosine_decay_schedule(config.learning_rate, steps)
    return optax.adamw(rate, weight_decay=config.weight_decay)


def _learner(optimiser: optax.GradientTransformation) -> Any:
    def loss(probe: Probe, latents: Array, target: Int[Array, " b"]) -> Float[Array, ""]:
        there = target != NONE
        losses = optax.softmax_cross_entropy_with_integer_labels(
            probe_logits(probe, latents), jnp.maximum(target, 0)
        )
        return jnp.where(there, losses, 0).sum() / jnp.maximum(there.sum(), 1)

    def one(probe: Probe, state: Any, latents: Array, target: Array) -> tuple[Probe, Any]:
        gradient = jax.grad(loss)(probe, latents, target)
        change, state = optimiser.update(gradient, state, probe)
        return Probe(*optax.apply_updates(probe, change)), state  # type: ignore[misc]

    over_seeds = jax.vmap(one, in_axes=(0, 0, None, None))
    over_targets = jax.vmap(over_seeds, in_axes=(0, 0, None, 1))
    return jax.jit(over_targets, donate_argnums=1)


def _rows(latents: np.ndarray, rows: np.ndarray) -> Float[Array, "b t d"]:
    return jnp.asarray(np.asarray(latents[rows]), jnp.float32)


@jax.jit
def names_right(
    probes: Probe, latents: Float[Array, "b t d"], right: Bool[Array, "b j c"]
) -> Bool[Array, "j s b"]:
    """Whether each probe names a class that is right for each level."""

    def one(probe: Probe, right: Bool[Array, "b c"]) -> Bool[Array, " b"]:
        named = jnp.argmax(probe_logits(probe, latents), axis=-1)
        return jnp.take_along_axis(right, named[:, None], axis=1)[:, 0]

    over_seeds = jax.vmap(one, in_axes=(0, None))
    return jax.vmap(over_seeds, in_axes=(0, 1))(probes, right)


def _score(
    probes: Probe, latents: np.ndarray, right: np.ndarray, levels: np.ndarray, config: ProbeConfig
) -> tuple[np.ndarray, np.ndarray]:
    """How many levels each probe reads right, and how many have its target."""
    correct = np.zeros(probes.look.shape[:2], np.int64)
    for first in range(0, len(levels), config.batch):
        rows = levels[first : first + config.batch]
        filled = np.resize(rows, config.batch)
        found = names_right(probes, _rows(latents, filled), jnp.asarray(right[filled]))
        correct += np.asarray(found)[:, :, : len(rows)].sum(axis=-1)
    return correct, right[levels].any(axis=2).sum(axis=0)


class ProbeSet(NamedTuple):
    """Probes of several places as they are kept: for replays, and for whoever asks later."""

    probes: Probe
    """Leading axes: place, target, seed."""
    places: tuple[int, ...]
    pushes: tuple[int, ...]
    boxes: int


def write_probes(probes: ProbeSet, config: ProbeConfig, path: pathlib.Path) -> None:
    """Write probes as safetensors."""
    about = {
        "format": FORMAT,
        "places": list(probes.places),
        "pushes": list(probes.pushes),
        "boxes": probes.boxes,
        "config": asdict(config),
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in probes.probes._asdict().items()}
    write_whole(path, safetensors.numpy.save(arrays, metadata={"probes": json.dumps(about, sort_keys=True)}))


def read_probes(path: str | os.PathLike) -> ProbeSet:
    """Read probes. Nothing in the file is executed."""
    with reading("file of probes", path, lambda problem: FileError(f"{path}: {problem}")):
        said, arrays = read_tensors(path)
        about = json.loads(said["probes"])
        if about["format"] != FORMAT:
            raise UserError(f"format {about['format']!r} instead of {FORMAT!r}")
        probes = Probe(**arrays)
        return ProbeSet(probes, tuple(about["places"]), tuple(about["pushes"]), int(about["boxes"]))
