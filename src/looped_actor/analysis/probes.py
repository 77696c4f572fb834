"""Probes of plans: can the pushes of an optimal solution of Boxoban be read from the latents of a policy?

Levels are solved, latents of their first states are recorded, and a small attentive probe is trained for each
push and each loop, and for the input embedding as a control. All probes of one loop are trained together.
"""

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, Shaped, UInt8

from looped_actor.analysis.drawing import (
    FAINT,
    INK,
    RUN_COLUMNS,
    CaptionedFigure,
    FigureKind,
    label_of,
    new_axes,
    shades,
)
from looped_actor.analysis.latents import INPUT, Latents, LatentsRecorder, select_loops
from looped_actor.analysis.options import ProbeOptions
from looped_actor.analysis.study import (
    Analysis,
    ProgressFactory,
    name_policies,
    require_loops,
    run_columns,
    silent,
)
from looped_actor.analysis.tables import Row, distinct, rows_where
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.banks import LevelBank, open_bank
from looped_actor.puzzles.boxoban.plans import NONE, guess_accuracy, push_targets, right_pushes
from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.search import SolveStatus
from looped_actor.puzzles.solutions import solve_bank
from looped_actor.puzzles.teachers import planes_of
from looped_actor.runs.puzzle import find_test_levels
from looped_actor.utils.checks import above_zero, at_least_one
from looped_actor.utils.codec import key_of
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import FileError, read_tensors, reading, write_whole
from looped_actor.utils.processes import Progress, default_workers, no_progress

FORMAT = "looped-actor probes 1"
NODE_LIMIT = 3_000_000
"""States after which the search for a solution gives up; such levels are left out."""


# The analysis


def analyze_probes(
    policies: Sequence[Policy], options: ProbeOptions, mesh: Mesh, progress: ProgressFactory = silent
) -> str:
    """Probe the latents of Boxoban policies for the pushes of optimal solutions."""
    analysis, rows = Analysis(PROBES, options.out, mesh, progress), list[Row]()
    config = ProbeConfig(seeds=options.seeds, epochs=options.epochs, batch=options.batch)
    for number, (name, policy) in enumerate(name_policies(policies).items()):
        if policy.config.task != "boxoban":
            raise UserError(f"{policy.folder} is of {policy.config.task}: plans are pushes of Boxoban")
        loops = select_loops(require_loops(policy).max_loops, options.loops)
        banks = [open_bank(path) for path in options.levels] or [find_test_levels(policy)]
        plans = _find_plans(analysis, banks, options)
        latents = _record_latents(analysis, name, policy, loops, plans, f"latents-{number}")
        trained = []
        for place in latents.info.places:
            result = _train_or_load(analysis, name, latents, place, plans, config)
            rows += _result_rows(run_columns(name, policy.config), place, result, plans)
            trained.append(result.probes)
        if 1 in plans.pushes:
            rows.append(_guess_row(run_columns(name, policy.config), plans))
        stacked = jax.tree.map(lambda *arrays: np.stack(arrays), *trained)
        probes = ProbeSet(
            probes=stacked, places=latents.info.places, pushes=plans.pushes, boxes=plans.classes // 4
        )
        write_probes(probes, config, options.out / f"probes-{number}.safetensors")
    return analysis.finish(rows)


class _Plans(NamedTuple):
    """Levels that were solved, and the pushes to read."""

    cells: UInt8[np.ndarray, "n h w"]
    pushes: tuple[int, ...]
    """Pushes to read: 1 is the next."""
    targets: Int[np.ndarray, "n j"]
    """Class of each push of the solution; `NONE` if it has fewer pushes."""
    right: Bool[np.ndarray, "n j c"]
    """Classes that count as right: pushes of any solution with the fewest moves."""

    @property
    def classes(self) -> int:
        """Four directions for each box."""
        return self.right.shape[2]

    @property
    def split(self) -> "Split":
        return split_levels(len(self.cells))


def _find_plans(analysis: Analysis, banks: Sequence[LevelBank], options: ProbeOptions) -> _Plans:
    """Return the levels of some banks that can be solved, with their labels."""
    workers = options.workers or default_workers()
    solved_cells, solved_targets = [], []
    for bank in banks:
        if bank.info.game != "boxoban":
            raise UserError(f"{bank.name} holds levels of {bank.info.game}: plans are pushes of Boxoban")
        count = min(options.count or len(bank), len(bank))
        with analysis.progress(f"solving {pathlib.Path(bank.name).name}") as report:
            solutions = solve_bank(
                bank,
                count=count,
                node_limit=NODE_LIMIT,
                workers=workers,
                parts=analysis.parts / "solutions",
                progress=report,
            )
        solved = solutions.status == SolveStatus.SOLVED.value
        if not solved.any():
            raise UserError(f"{bank.name}: no level was solved within {NODE_LIMIT:,} states")
        solved_cells.append(bank.cells(slice(0, count))[solved])
        solved_targets.append(push_targets(solutions, options.pushes)[solved])
    boxes = [((cells & Cell.BOX) != 0).sum(axis=(1, 2)) for cells in solved_cells]
    if len({cells.shape[1:] for cells in solved_cells}) > 1 or len(np.unique(np.concatenate(boxes))) > 1:
        raise UserError("all levels that are probed must have one size and the same number of boxes")
    cells, targets = np.concatenate(solved_cells), np.concatenate(solved_targets)
    # Several checkpoints are mostly probed on the same levels, whose solutions are searched once.
    job = {"boards": _checksum(cells), "pushes": options.pushes, "node_limit": NODE_LIMIT}
    path = analysis.parts / f"{key_of(job)}.right"
    if not path.is_file():
        with analysis.progress("finding all shortest solutions") as report:
            right = right_pushes(
                cells, targets, options.pushes, node_limit=NODE_LIMIT, workers=workers, progress=report
            )
        write_whole(path, safetensors.numpy.save({"right": right}))
    right = safetensors.numpy.load_file(path)["right"]
    return _Plans(cells=cells, pushes=options.pushes, targets=targets, right=right)


def _checksum(cells: np.ndarray) -> str:
    return hashlib.sha256(cells.tobytes()).hexdigest()


def _record_latents(
    analysis: Analysis, name: str, policy: Policy, loops: tuple[int, ...], plans: _Plans, part: str
) -> Latents:
    def observe(first: int, last: int) -> np.ndarray:
        return planes_of(plans.cells[first:last], len(Cell))

    recorder = LatentsRecorder(policy.spec.definition, loops, analysis.mesh)
    folder, source = analysis.parts / part, _checksum(plans.cells)
    with analysis.progress(f"{name}: recording latents") as report:
        return recorder.record(
            policy.weights, observe, len(plans.cells), folder, source=source, progress=report
        )


def _train_or_load(
    analysis: Analysis, name: str, latents: Latents, place: int, plans: _Plans, config: "ProbeConfig"
) -> "ProbeResult":
    """Train the probes of one loop, or find them among the parts."""
    job = {"latents": latents.info.source, "place": place, "pushes": plans.pushes, "right": "any shortest"}
    path = analysis.parts / f"{key_of({**job, **asdict(config)})}.probes"
    if not path.is_file():
        with analysis.progress(f"{name}: probing {'input' if place == INPUT else f'loop {place}'}") as report:
            result = train_probes(latents.at(place), plans.targets, plans.right, plans.split, config, report)
        counts = {"correct": result.correct, "tested": result.tested}
        write_whole(path, safetensors.numpy.save({**_to_tensors(result.probes), **counts}))
    tensors = safetensors.numpy.load_file(path)
    correct, tested = tensors.pop("correct"), tensors.pop("tested")
    return ProbeResult(_from_tensors(tensors), correct, tested)


def _result_rows(columns: Row, place: int, result: "ProbeResult", plans: _Plans) -> list[Row]:
    return [
        {
            **columns,
            "place": "input" if place == INPUT else place,
            "push": push,
            "seed": seed,
            "correct": int(correct),
            "tested": int(tested),
            "accuracy": int(correct) / int(tested) if tested else None,
            "classes": plans.classes,
        }
        for push, of_push, tested in zip(plans.pushes, result.correct, result.tested, strict=True)
        for seed, correct in enumerate(of_push)
    ]


def _guess_row(columns: Row, plans: _Plans) -> Row:
    """Return the accuracy of a random possible push on the test levels."""
    test = plans.split.test
    right = plans.right[test, plans.pushes.index(1)]
    return {
        **columns,
        "place": "guess",
        "push": 1,
        "seed": None,
        "correct": None,
        "tested": int(right.any(axis=1).sum()),
        "accuracy": guess_accuracy(plans.cells[test], right),
        "classes": plans.classes,
    }


# Attentive probes


@dataclass(frozen=True)
class ProbeConfig:
    """Size and training of probes."""

    heads: int = 4
    hidden: int = 64
    """Units of the hidden layer."""
    seeds: int = 3
    """Probes of each target, with different initial weights."""
    epochs: int = 40
    """Epochs of training. The weights after the epoch with the best validation accuracy are tested."""
    batch: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        at_least_one(self, "heads", "hidden", "seeds", "epochs", "batch")
        above_zero(self, "learning_rate")
        if not self.weight_decay >= 0:
            raise UserError(f"weight_decay is {self.weight_decay}; it must be at least 0")


class Probe(NamedTuple):
    """Weights of a probe, or of many with leading axes."""

    query: Float[Array | np.ndarray, "*p d k"]
    """A learned query for each head."""
    hidden: Float[Array | np.ndarray, "*p kd u"]
    hidden_bias: Float[Array | np.ndarray, "*p u"]
    output: Float[Array | np.ndarray, "*p u c"]
    output_bias: Float[Array | np.ndarray, "*p c"]


def init_probe(key: Key[Array, ""], width: int, classes: int, config: ProbeConfig) -> Probe:
    """Return random weights."""
    keys = jax.random.split(key, 3)

    def weights(key: Array, rows: int, columns: int) -> Array:
        return jax.random.normal(key, (rows, columns)) / np.sqrt(rows)

    return Probe(
        query=weights(keys[0], width, config.heads),
        hidden=weights(keys[1], config.heads * width, config.hidden),
        hidden_bias=jnp.zeros(config.hidden),
        output=weights(keys[2], config.hidden, classes),
        output_bias=jnp.zeros(classes),
    )


def probe_logits(probe: Probe, latents: Float[Array, "b t d"]) -> Float[Array, "b c"]:
    """Return the logits of one probe. Tokens are scaled to unit length, as the heads of policies do."""
    scale = jax.lax.rsqrt(jnp.mean(latents**2, axis=-1, keepdims=True) + 1e-5)
    tokens = latents * scale
    attention = jax.nn.softmax(tokens @ probe.query, axis=1)
    means = jnp.einsum("btk,btd->bkd", attention, tokens).reshape(len(latents), -1)
    return jax.nn.gelu(means @ probe.hidden + probe.hidden_bias) @ probe.output + probe.output_bias


class Split(NamedTuple):
    """Indices of training, validation and test levels."""

    train: Int[np.ndarray, " a"]
    validation: Int[np.ndarray, " b"]
    test: Int[np.ndarray, " c"]


def split_levels(count: int, seed: int = 0) -> Split:
    """Return a random split into 70, 10 and 20 percent of the levels."""
    if count < 10:
        raise UserError(f"{count} levels are too few for a 70/10/20 split; give at least 10")
    order = np.random.default_rng(seed).permutation(count)
    first, second = round(0.7 * count), round(0.8 * count)
    return Split(np.sort(order[:first]), np.sort(order[first:second]), np.sort(order[second:]))


class ProbeResult(NamedTuple):
    """Trained probes of one place, and their accuracy on the test levels."""

    probes: Probe
    """Leading axes: target, seed."""
    correct: Int[np.ndarray, "j s"]
    """Number of test levels whose class is right."""
    tested: Int[np.ndarray, " j"]
    """Number of test levels that have the target."""


def train_probes(
    latents: Shaped[np.ndarray, "n t d"],
    targets: Int[np.ndarray, "n j"],
    right: Bool[np.ndarray, "n j c"],
    split: Split,
    config: ProbeConfig,
    progress: Progress = no_progress,
) -> ProbeResult:
    """Train a probe for each target and seed, all together.

    Args:
      latents: latents of each level; may be a memory map.
      targets: classes to learn; `NONE` if a level does not have the target.
      right: classes that count as right when a probe is tested.
      split: split of the levels.
      config: size and training of the probes.
      progress: called with the number of finished and of all epochs.
    """
    target_count = targets.shape[1]
    # The initial weights of a seed are equal for all targets.
    keys = jnp.stack([jax.random.key(seed) for seed in range(config.seeds)])
    init = functools.partial(init_probe, width=latents.shape[2], classes=right.shape[2], config=config)
    probes = jax.tree.map(lambda a: jnp.repeat(a[None], target_count, axis=0), jax.vmap(init)(keys))
    optimizer = _make_optimizer(config, len(split.train))
    state = jax.vmap(jax.vmap(optimizer.init))(probes)
    best, best_accuracy = probes, jnp.full((target_count, config.seeds), -1.0)
    update, random = _make_update(optimizer), np.random.default_rng(0)
    for epoch in range(config.epochs):
        order = random.permutation(split.train)
        for first in range(0, len(order), config.batch):
            rows = np.resize(order[first : first + config.batch], config.batch)
            probes, state = update(probes, state, _read_rows(latents, rows), jnp.asarray(targets[rows]))
        correct, tested = _test_probes(probes, latents, right, split.validation, config)
        accuracy = correct / np.maximum(tested, 1)[:, None]
        best, best_accuracy = _keep_best(probes, accuracy, best, best_accuracy)
        progress(epoch + 1, config.epochs)
    correct, tested = _test_probes(best, latents, right, split.test, config)
    return ProbeResult(jax.tree.map(np.asarray, best), correct, tested)


def _make_optimizer(config: ProbeConfig, levels: int) -> optax.GradientTransformation:
    steps = config.epochs * -(-levels // config.batch)
    rate = optax.cosine_decay_schedule(config.learning_rate, steps)
    return optax.adamw(rate, weight_decay=config.weight_decay)


def _make_update(optimizer: optax.GradientTransformation) -> Callable[..., tuple[Probe, Any]]:
    """Return a compiled update of all probes on one minibatch."""

    def loss(probe: Probe, latents: Array, target: Int[Array, " b"]) -> Float[Array, ""]:
        exists = target != NONE
        losses = optax.softmax_cross_entropy_with_integer_labels(
            probe_logits(probe, latents), jnp.maximum(target, 0)
        )
        return jnp.where(exists, losses, 0).sum() / jnp.maximum(exists.sum(), 1)

    def update(probe: Probe, state: Any, latents: Array, target: Array) -> tuple[Probe, Any]:
        gradient = jax.grad(loss)(probe, latents, target)
        change, state = optimizer.update(gradient, state, probe)
        return Probe(*optax.apply_updates(probe, change)), state  # type: ignore[misc]

    over_seeds = jax.vmap(update, in_axes=(0, 0, None, None))
    over_targets = jax.vmap(over_seeds, in_axes=(0, 0, None, 1))
    return jax.jit(over_targets, donate_argnums=1)


def _keep_best(probes: Probe, accuracy: Any, best: Probe, best_accuracy: Any) -> tuple[Probe, Any]:
    """Return the more accurate of two versions of each probe, and its accuracy."""
    better = accuracy > best_accuracy

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - 2)), new, old)

    return jax.tree.map(choose, probes, best), jnp.where(better, accuracy, best_accuracy)


def _test_probes(
    probes: Probe, latents: np.ndarray, right: np.ndarray, levels: np.ndarray, config: ProbeConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return for how many levels each probe is right, and how many have its target."""
    correct = np.zeros(probes.query.shape[:2], np.int64)
    for first in range(0, len(levels), config.batch):
        rows = levels[first : first + config.batch]
        padded = np.resize(rows, config.batch)
        is_right = right_predictions(probes, _read_rows(latents, padded), jnp.asarray(right[padded]))
        correct += np.asarray(is_right)[:, :, : len(rows)].sum(axis=-1)
    return correct, right[levels].any(axis=2).sum(axis=0)


def _read_rows(latents: np.ndarray, rows: np.ndarray) -> Float[Array, "b t d"]:
    return jnp.asarray(np.asarray(latents[rows]), jnp.float32)


@jax.jit
def right_predictions(
    probes: Probe, latents: Float[Array, "b t d"], right: Bool[Array, "b j c"]
) -> Bool[Array, "j s b"]:
    """Return whether the most probable class of each probe is right for each level."""

    def predict(probe: Probe, right: Bool[Array, "b c"]) -> Bool[Array, " b"]:
        predicted = jnp.argmax(probe_logits(probe, latents), axis=-1)
        return jnp.take_along_axis(right, predicted[:, None], axis=1)[:, 0]

    over_seeds = jax.vmap(predict, in_axes=(0, None))
    return jax.vmap(over_seeds, in_axes=(0, 1))(probes, right)


# Files of probes


class ProbeSet(NamedTuple):
    """Probes of several places, as files keep them."""

    probes: Probe
    """Leading axes: place, push, seed."""
    places: tuple[int, ...]
    """Loops, and 0 for the input embedding."""
    pushes: tuple[int, ...]
    boxes: int


_TENSOR_NAMES = {
    "query": "look",
    "hidden": "read",
    "hidden_bias": "read_bias",
    "output": "name",
    "output_bias": "name_bias",
}
"""Names of the weights in files."""


def _to_tensors(probes: Probe) -> dict[str, np.ndarray]:
    return {_TENSOR_NAMES[name]: np.ascontiguousarray(array) for name, array in probes._asdict().items()}


def _from_tensors(tensors: dict[str, np.ndarray]) -> Probe:
    return Probe(**{name: tensors[in_file] for name, in_file in _TENSOR_NAMES.items()})


def write_probes(probes: ProbeSet, config: ProbeConfig, path: pathlib.Path) -> None:
    """Write probes as a safetensors file."""
    header = {
        "format": FORMAT,
        "places": list(probes.places),
        "pushes": list(probes.pushes),
        "boxes": probes.boxes,
        "config": asdict(config),
    }
    metadata = {"probes": json.dumps(header, sort_keys=True)}
    write_whole(path, safetensors.numpy.save(_to_tensors(probes.probes), metadata=metadata))


def read_probes(path: str | os.PathLike) -> ProbeSet:
    """Read probes. Nothing in the file is executed."""
    with reading("file of probes", path, lambda problem: FileError(f"{path}: {problem}")):
        metadata, tensors = read_tensors(path)
        header = json.loads(metadata["probes"])
        if header["format"] != FORMAT:
            raise UserError(f"format {header['format']!r} instead of {FORMAT!r}")
        return ProbeSet(
            probes=_from_tensors(tensors),
            places=tuple(header["places"]),
            pushes=tuple(header["pushes"]),
            boxes=int(header["boxes"]),
        )


# The figure


def _draw_probes(rows: Sequence[Row]) -> CaptionedFigure:
    """Draw accuracy against the push, a line for each loop, and against the loop, a line for each push."""
    probed = [row for row in rows if row["place"] != "guess"]
    guesses = [row["accuracy"] for row in rows_where(rows, place="guess")]
    places, pushes = distinct(probed, "place"), distinct(probed, "push")
    loops = [place for place in places if place != "input"]
    figure, axes = new_axes(2)
    by_push, by_loop = axes[0]

    def draw_line(axis: Any, points: Sequence[tuple[Any, int]], **style: Any) -> None:
        means, deviations = zip(*(_accuracy(probed, *point) for point in points), strict=True)
        axis.errorbar(range(len(points)), means, deviations, marker="o", markersize=3, capsize=2, **style)

    for loop, colour in zip(loops, shades(len(loops)), strict=True):
        draw_line(by_push, [(loop, push) for push in pushes], color=colour, label=f"loop {loop}")
    if "input" in places:
        style = {"color": "#8a8f99", "linestyle": "--", "label": "input embedding"}
        draw_line(by_push, [("input", push) for push in pushes], **style)
    for push, colour in zip(pushes, shades(len(pushes))[::-1], strict=True):
        draw_line(by_loop, [(loop, push) for loop in loops], color=colour, label=f"push {push}")
    by_push.axhline(1 / rows[0]["classes"], color=FAINT, linewidth=1, label="chance")
    if guesses:
        by_push.plot(pushes.index(1), np.mean(guesses), "x", color=INK, label="random possible push")
    by_push.set_xticks(range(len(pushes)), [str(push) for push in pushes])
    by_push.set(xlabel="push ahead", ylabel="accuracy of the probe, test levels", ylim=(0, 1))
    by_loop.set_xticks(range(len(loops)), [str(loop) for loop in loops])
    by_loop.set(xlabel="loop", ylim=(0, 1))
    for axis in (by_push, by_loop):
        axis.legend(frameon=False, fontsize=8, ncols=2)
    runs, label = len(distinct(probed, "run")), label_of(rows[0])
    figure.suptitle(f"Accuracy of plan probes: {label}, {runs} checkpoint{'s' * (runs > 1)}")
    return CaptionedFigure(figure, f"{label}: {_summarize(probed, pushes[0], loops, guesses)}")


def _summarize(rows: Sequence[Row], push: int, loops: Sequence[int], guesses: Sequence[float]) -> str:
    """Return the accuracies of one push in words."""
    first, last, control = (
        f"{_accuracy(rows, place, push)[0]:.2f}" for place in (loops[0], loops[-1], "input")
    )
    guess = f"; a random possible push scores {np.mean(guesses):.2f}" if guesses else ""
    return (
        f"probes read push {push} from the latent with accuracy {first} after loop {loops[0]} and {last} "
        f"after loop {loops[-1]}, and from the input embedding with accuracy {control} "
        f"({rows_where(rows, push=push)[0]['tested']:,} test levels{guess})."
    )


def _accuracy(rows: Sequence[Row], place: Any, push: int) -> tuple[float, float]:
    """Return mean and deviation over checkpoints, each averaged over its seeds; NaN if nothing was tested."""
    tested = [row for row in rows_where(rows, place=place, push=push) if row["tested"]]
    if not tested:
        return np.nan, np.nan
    means = [
        np.mean([row["accuracy"] for row in rows_where(tested, run=run)]) for run in distinct(tested, "run")
    ]
    return float(np.mean(means)), float(np.std(means))


PROBES = FigureKind(
    "probes",
    (*RUN_COLUMNS, "place", "push", "seed", "correct", "tested", "accuracy", "classes"),
    _draw_probes,
)
