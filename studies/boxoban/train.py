"""Imitation of the solver on full-size Boxoban: the net, one update, and a run that resumes exactly."""

import csv
import io
import json
import pathlib
import signal
import time
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy
from evaluate import MAX_LOOPS, evaluate, held_out_accuracy
from flax import nnx
from jaxtyping import Array, Float, PyTree, UInt8
from labels import Labels, read_labels
from looped_actor.files import read_tensors, write_whole
from looped_actor.solvers.advice import planes_of
from looped_actor.weights import named_leaves

from boards import SYMMETRIES, read_levels, transform_actions, transform_boards
from looped_actor.algorithms import (
    Advised,
    LearnerState,
    RunningStatistics,
    Weights,
    deciding,
    descend,
    imitation_loss,
    new_learner,
)
from looped_actor.loop import Execution, Packed, PolicyKL, mean_gradient
from looped_actor.models import CoreConfig
from looped_actor.models.arms import Arm, Looped
from looped_actor.models.tasks import PuzzleTask

PLANE_SHARES = (1 / 2, 1 / 16, 1 / 16, 1 / 64)
"""Share of the cells of a cropped level that are wall (about), box, target and player."""
TASK = PuzzleTask(planes=4, grid=(8, 8), board_actions=4)
MAX_GRADIENT_NORM = 1.0
ADAM_B2, WEIGHT_DECAY = 0.95, 0.1
WARMUP = 200
"""Updates over which the learning rate rises."""
AVERAGING = 0.999
"""Decay per update of the averaged parameters, which are the ones that are evaluated."""
BLOCK = 50
"""Updates between two lines of output."""
SAVE_SECONDS = 120.0


@dataclass(frozen=True)
class Setting:
    """One run."""

    name: str
    width: int
    rate: float
    """Learning rate after the warm-up. Constant until `decay_from`."""
    core_minutes: float
    """Processor time of the updates after which the run ends; evaluations are not counted."""
    layers: int = 1
    heads: int = 2
    batch: int = 64
    chunk: int = 4
    """Examples whose loops run together."""
    seed: int = 0
    decay_from: int | None = None
    """Update from which the learning rate falls linearly, to zero `decay_updates` later, at the end."""
    decay_updates: int = 0
    evaluate_minutes: float = 5.0
    """Processor time of updates between two evaluations."""
    levels: int = 256
    """Validation levels of an evaluation."""

    @property
    def core(self) -> CoreConfig:
        """The paper's block, its hidden width rounded to multiples of 64."""
        return CoreConfig(width=self.width, heads=self.heads, layers=self.layers, hidden_multiple=64)

    def rate_at(self, step: int) -> float:
        """Return the learning rate of an update."""
        rate = self.rate * min(1.0, (step + 1) / WARMUP)
        if self.decay_from is not None:
            rate *= min(1.0, max(0.0, 1 - (step - self.decay_from) / self.decay_updates))
        return rate


class TrainState(NamedTuple):
    """Everything an update reads and writes."""

    learner: LearnerState
    average: PyTree
    """Exponential moving average of the parameters."""
    fixed: PyTree
    """The latent before the first loop."""
    statistics: RunningStatistics
    """Mean and deviation of the planes; never changed."""


class Metrics(NamedTuple):
    """Means over examples."""

    loss: Float[Array, ""]
    accuracy: Float[Array, ""]
    loops: Float[Array, ""]
    gradient_norm: Float[Array, ""]


@dataclass(frozen=True)
class Learner:
    """The net of a setting and its update."""

    setting: Setting
    arm: Arm = field(default_factory=lambda: Looped(PolicyKL(max_loops=MAX_LOOPS)))

    @cached_property
    def definition(self) -> nnx.GraphDef:
        """The net without its weights."""
        return nnx.split(nnx.eval_shape(lambda: self._build(nnx.Rngs(0))))[0]

    def _build(self, rngs: nnx.Rngs) -> Any:
        return self.arm.build(TASK, self.setting.core, rngs)

    def begin(self) -> TrainState:
        """Return the state before the first update."""
        _, parameters, fixed = nnx.split(self._build(nnx.Rngs(self.setting.seed)), nnx.Param, ...)
        learner = new_learner(parameters, self._optimiser(0.0))
        average = jax.tree.map(jnp.copy, parameters)  # its buffers are given away with the state
        shares = jnp.array(PLANE_SHARES)
        statistics = RunningStatistics(jnp.array(1.0), shares, shares * (1 - shares))
        return TrainState(learner, average, fixed, statistics)

    @staticmethod
    def _optimiser(rate: Any) -> optax.GradientTransformation:
        clip = optax.clip_by_global_norm(MAX_GRADIENT_NORM)
        adam = optax.scale_by_adam(b2=ADAM_B2)
        return optax.chain(clip, adam, optax.add_decayed_weights(WEIGHT_DECAY), optax.scale(-rate))

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def update(
        self, state: TrainState, example: Advised, rate: Float[Array, ""], averaging: Float[Array, ""]
    ) -> tuple[TrainState, Metrics]:
        """Return the state after one update on a batch; `averaging` is the decay of the average."""

        def policy(parameters: PyTree, execution: Execution) -> Any:
            weights = Weights(parameters, state.fixed, state.statistics)
            return deciding(self.definition, weights, execution=execution)

        gradient = mean_gradient(
            imitation_loss,
            policy,
            state.learner.parameters,
            example,
            Packed(self.setting.chunk),
            expected_loops=example.loops,
        )
        learner, seen = descend(state.learner, self._optimiser(rate), gradient)
        average = optax.incremental_update(learner.parameters, state.average, 1 - averaging)
        metrics = Metrics(seen.loss, seen.terms.accuracy, seen.terms.loops, seen.gradient_norm)
        return state._replace(learner=learner, average=average), metrics


def draw_examples(labels: Labels, setting: Setting, step: int) -> Advised:
    """Return the batch of an update, each example in a random symmetry; a function of seed and step alone."""
    rng = np.random.default_rng([setting.seed, step])
    rows = rng.integers(len(labels.cells), size=setting.batch)
    symmetries = rng.integers(SYMMETRIES, size=setting.batch)
    cells, optimal = labels.cells[rows], labels.optimal[rows]
    for symmetry in range(SYMMETRIES):
        own = symmetries == symmetry
        cells[own] = transform_boards(cells[own], symmetry)
        optimal[own] = transform_actions(optimal[own], symmetry)
    # States far from the end take more loops: a guess by which `Packed` sorts, and nothing more.
    return Advised(planes_of(cells, 4), optimal, labels.remaining[rows].astype(np.int32))  # pyright: ignore


class Progress(NamedTuple):
    """How far a run is."""

    step: int = 0
    core_seconds: float = 0.0
    """Of updates."""
    evaluated_at: float = 0.0
    """Core seconds at the last evaluation."""
    log: str = ""
    """The rows of log.csv so far."""


class Run:
    """A run in its folder: `state.safetensors` is all that it needs to go on exactly."""

    def __init__(self, setting: Setting, folder: pathlib.Path):
        self.setting, self.learner, self.folder = setting, Learner(setting), folder
        self.state, self.progress = self.learner.begin(), Progress()
        if (folder / STATE).exists():
            self.state, self.progress = read_state(folder / STATE, self.state, setting)

    def save(self) -> None:
        """Write the state, whole or not at all, and the log for readers."""
        write_state(self.folder / STATE, self.state, self.progress, self.setting)
        write_whole(self.folder / "log.csv", self.progress.log.encode())

    @property
    def weights(self) -> Weights:
        """The averaged policy."""
        return Weights(self.state.average, self.state.fixed, self.state.statistics)

    @property
    def finished(self) -> bool:
        """Whether the end of the setting is reached and evaluated."""
        return self._at_end and self.progress.evaluated_at == self.progress.core_seconds

    @property
    def _at_end(self) -> bool:
        setting, progress = self.setting, self.progress
        if setting.decay_from is not None:
            return progress.step >= setting.decay_from + setting.decay_updates
        return progress.core_seconds >= setting.core_minutes * 60

    def go_on(self, material: "Material", stop: "StopSignal") -> None:
        """Train until the end of the run, or until a signal asks to stop."""
        saved, means = time.monotonic(), {}
        while not self.finished and not stop.asked:
            since = self.progress.core_seconds - self.progress.evaluated_at
            due = self._at_end or since >= self.setting.evaluate_minutes * 60
            if due or time.monotonic() - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
            if due:
                self._evaluate(material, means, stop)
            else:
                means = self._block(material.labels, stop)
        self.save()

    def _block(self, labels: Labels, stop: "StopSignal") -> dict[str, float]:
        """Update until the next multiple of `BLOCK`, or a signal, or an evaluation."""
        begun, step, all_metrics = time.process_time(), self.progress.step, []
        while not stop.asked and (not all_metrics or step % BLOCK):
            averaging = min(AVERAGING, (1 + step) / (10 + step))
            example, rate = draw_examples(labels, self.setting, step), self.setting.rate_at(step)
            self.state, metrics = self.learner.update(self.state, example, rate, averaging)
            all_metrics.append(jax.block_until_ready(metrics))
            if len(all_metrics) == 1 and not self._compiled:
                begun, self._compiled = time.process_time(), True  # compilation is not learning
            step += 1
        took, count = time.process_time() - begun, len(all_metrics)
        seconds = self.progress.core_seconds + took
        self.progress = self.progress._replace(step=step, core_seconds=seconds)
        if not count:
            return {}
        means = {
            name: float(np.mean([getattr(metrics, name) for metrics in all_metrics]))
            for name in Metrics._fields
        }
        means["examples_per_core_second"] = count * self.setting.batch / max(took, 1e-3)
        told = " ".join(f"{name} {value:.3f}" for name, value in means.items())
        print(f"{self.setting.name} {step} {seconds / 60:.1f} min {told}", flush=True)
        return means

    _compiled = False

    def _evaluate(self, material: "Material", means: dict[str, float], stop: "StopSignal") -> None:
        setting, progress, definition = self.setting, self.progress, self.learner.definition
        played = evaluate(definition, self.weights, material.levels[: setting.levels], stop)
        if played is None:
            return
        checked = held_out_accuracy(definition, self.weights, material.held_out)
        row: dict[str, Any] = {
            "updates": progress.step,
            "examples": progress.step * setting.batch,
            "core_minutes": round(progress.core_seconds / 60, 2),
            **{
                name: round(means.get(name, float("nan")), 4)
                for name in (*Metrics._fields, "examples_per_core_second")
            },
            **{name: round(value, 4) for name, value in (checked | played).items()},
        }
        text = io.StringIO()
        writer = csv.DictWriter(text, row)
        if not progress.log:
            writer.writeheader()
        writer.writerow(row)
        log = progress.log + text.getvalue()
        self.progress = progress._replace(log=log, evaluated_at=progress.core_seconds)
        print(f"{setting.name} {row}", flush=True)


STATE = "state.safetensors"
CHANGEABLE = {
    "name",
    "core_minutes",
    "decay_from",
    "decay_updates",
    "evaluate_minutes",
    "levels",
    "chunk",
}
"""What of a setting may be another when a run goes on."""


def write_state(file: pathlib.Path, state: TrainState, progress: Progress, setting: Setting) -> None:
    """Write a state and where it stands. The file appears only when it is whole."""
    tensors = {name: np.asarray(leaf) for name, leaf in named_leaves(state).items()}
    about = {"setting": asdict(setting), "progress": progress._asdict()}
    write_whole(file, safetensors.numpy.save(tensors, metadata={"run": json.dumps(about)}))


def read_state(file: pathlib.Path, like: TrainState, setting: Setting) -> tuple[TrainState, Progress]:
    """Return the state of a file in the types of `like`, if it is of a run with this setting."""
    metadata, tensors = read_tensors(file)
    about = json.loads(metadata["run"])
    ours, theirs = (
        {k: v for k, v in s.items() if k not in CHANGEABLE} for s in (asdict(setting), about["setting"])
    )
    if ours != theirs:
        raise ValueError(f"{file}: the run has the setting {theirs}, not {ours}")
    leaves = [jnp.asarray(tensors[name], leaf.dtype) for name, leaf in named_leaves(like).items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), Progress(**about["progress"])


def halved(state: TrainState) -> TrainState:
    """Return the state with average and moments in 16 bits: what is committed, to move to another machine."""
    moments = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if a.ndim else a, state.learner.optimiser)
    average = jax.tree.map(lambda a: a.astype(jnp.float16), state.average)
    return state._replace(learner=state.learner._replace(optimiser=moments), average=average)


class StopSignal:
    """Whether SIGTERM or SIGINT came."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True


class Material(NamedTuple):
    """What a run learns from and is evaluated on."""

    labels: Labels
    held_out: Labels
    """Labels of the first file of validation levels."""
    levels: UInt8[np.ndarray, "n 8 8"]
    """The second file of validation levels."""


def load_material(levels: pathlib.Path, labels: pathlib.Path, files: int) -> Material:
    """Return the labels of the first training files, and what is held out."""
    train, held_out = read_labels(labels / TRAIN, range(files)), read_labels(labels / VALID, range(1))
    return Material(train, held_out, read_levels(levels, VALID, range(1, 2)))


TRAIN, VALID = "unfiltered/train", "unfiltered/valid"
