"""Plan probes of Boxoban policies: solve, record, probe, and write down."""

import hashlib
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import safetensors.numpy
from jax.sharding import Mesh

from looped_actor.analysis.drawing import ABOUT, FAINT, INK, Drawn, FigureKind, label_of, new_axes, shades
from looped_actor.analysis.latents import INPUT, Latents, LatentsRecorder, loops_within
from looped_actor.analysis.probes import (
    Probe,
    ProbeConfig,
    Probed,
    ProbeSet,
    split_levels,
    train_probes,
    write_probes,
)
from looped_actor.analysis.requests import ProbeRequest
from looped_actor.analysis.study import Stage, Subject, finish, parts_of, quietly, subjects
from looped_actor.analysis.tables import Row, distinct, of
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.banks import LevelBank, open_bank
from looped_actor.puzzles.boxoban.plans import guess_accuracy, push_targets, right_pushes
from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.solutions import solve_bank
from looped_actor.puzzles.solve_status import SolveStatus
from looped_actor.puzzles.teachers import planes_of
from looped_actor.utils.codec import key_of
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole
from looped_actor.utils.processes import default_workers


class _Plans:
    """Boards that could be solved: the pushes of a solution, and which are those of any as short."""

    def __init__(self, cells: np.ndarray, targets: np.ndarray, right: np.ndarray):
        self.cells, self.targets, self.right = cells, targets, right
        self.split = split_levels(len(cells))
        self.classes = right.shape[2]


def analyse_probes(
    policies: Sequence[Policy], request: ProbeRequest, mesh: Mesh, stage: Stage = quietly
) -> str:
    """Whether the pushes of an optimal solution can be read from the latents of Boxoban policies."""
    rows: list[Row] = []
    out = request.out
    for number, subject in enumerate(subjects(policies, mesh)):
        run = subject.run.puzzle
        if run.config.task != "boxoban":
            raise UserError(f"{run.folder} is of {run.config.task}: plans are pushes of Boxoban")
        if run.config.window is not None:
            raise UserError(f"{run.folder} sees a window of the board: probes look at whole boards")
        loops = loops_within(subject.halting.max_loops, request.loops)
        banks = [open_bank(path) for path in request.levels] or [run.bank_to_play()]
        plans = _plans(banks, request, out, stage)
        parts = parts_of(out, "probes")
        latents = _recorded(subject, plans, loops, mesh, parts / f"latents-{number}", stage)
        places = latents.info.places
        found = [_probed(subject, plans, latents, place, request, parts, stage) for place in places]
        for place, probed in zip(places, found, strict=True):
            rows += _rows(subject, plans, place, probed, request)
        if 1 in request.pushes:
            rows.append(_guess(subject, plans, request))
        probes = Probe(*(np.stack(arrays) for arrays in zip(*(p.probes for p in found), strict=True)))
        kept = ProbeSet(probes, places, request.pushes, plans.classes // 4)
        write_probes(kept, _config(request), out / f"probes-{number}.safetensors")
    return finish(out, "probes", rows, PROBES)


def _config(request: ProbeRequest) -> ProbeConfig:
    return ProbeConfig(seeds=request.seeds, epochs=request.epochs, batch=request.batch)


def _plans(banks: Sequence[LevelBank], request: ProbeRequest, out: pathlib.Path, stage: Stage) -> _Plans:
    """The levels of some banks that can be solved."""
    cells, targets = [], []
    for bank in banks:
        if bank.info.game != "boxoban":
            raise UserError(f"{bank.name} holds levels of {bank.info.game}: plans are pushes of Boxoban")
        wanted = min(request.count or len(bank), len(bank))
        with stage(f"solving {pathlib.Path(bank.name).name}") as progress:
            solutions = solve_bank(
                bank,
                count=wanted,
                node_limit=request.node_limit,
                workers=request.workers or default_workers(),
                parts=parts_of(out, "probes") / "solutions",
                progress=progress,
            )
        solved = solutions.status == SolveStatus.SOLVED.value
        if not solved.any():
            raise UserError(f"{bank.name}: no level was solved within {request.node_limit:,} states")
        cells.append(bank.cells(slice(0, wanted))[solved])
        targets.append(push_targets(solutions, request.pushes)[solved])
    boxes = [((some & Cell.BOX) != 0).sum(axis=(1, 2)) for some in cells]
    if len({some.shape[1:] for some in cells}) > 1 or len(np.unique(np.concatenate(boxes))) > 1:
        raise UserError("all levels that are probed must be of one size and have as many boxes")
    boards, classes = np.concatenate(cells), np.concatenate(targets)
    # Checkpoints of one kind are mostly probed on the same boards: their ways are searched for once.
    about = {"boards": hashlib.sha256(boards.tobytes()).hexdigest(), "pushes": request.pushes}
    path = parts_of(out, "probes") / f"{key_of({**about, 'node_limit': request.node_limit})}.right"
    if not path.is_file():
        with stage("finding all shortest solutions") as progress:
            options: Any = {"node_limit": request.node_limit, "workers": request.workers or default_workers()}
            right = right_pushes(boards, classes, request.pushes, progress=progress, **options)
        write_whole(path, safetensors.numpy.save({"right": right}))
    return _Plans(boards, classes, safetensors.numpy.load_file(path)["right"])


def _recorded(
    subject: Subject,
    plans: _Plans,
    loops: tuple[int, ...],
    mesh: Mesh,
    folder: pathlib.Path,
    stage: Stage,
) -> Latents:
    def observe(first: int, last: int) -> np.ndarray:
        return planes_of(plans.cells[first:last], len(Cell))

    recorder = LatentsRecorder(subject.run.definition, loops, mesh)
    source = hashlib.sha256(plans.cells.tobytes()).hexdigest()
    with stage(f"{subject.name}: recording latents") as progress:
        return recorder.record(
            subject.policy.weights, observe, len(plans.cells), folder, source=source, progress=progress
        )


def _probed(
    subject: Subject,
    plans: _Plans,
    latents: Latents,
    place: int,
    request: ProbeRequest,
    parts: pathlib.Path,
    stage: Stage,
) -> Probed:
    """All probes of one loop; remembered until the analysis is finished."""

    def train() -> Probed:
        with stage(f"{subject.name}: probing {_name(place)}") as progress:
            return train_probes(
                latents.at(place), plans.targets, plans.right, plans.split, _config(request), progress
            )

    key = {"latents": latents.info.source, "place": place, "pushes": request.pushes, "right": "any shortest"}
    return _remembered(parts / f"{key_of({**key, **asdict(_config(request))})}.probes", train)


def _remembered(path: pathlib.Path, train: Callable[[], Probed]) -> Probed:
    if not path.is_file():
        probed = train()
        arrays = {**probed.probes._asdict(), "correct": probed.correct, "tested": probed.tested}
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_whole(path, safetensors.numpy.save(contiguous))
    kept = safetensors.numpy.load_file(path)
    correct, tested = kept.pop("correct"), kept.pop("tested")
    return Probed(Probe(**kept), correct, tested)


def _name(place: int) -> str:
    return "input" if place == INPUT else f"loop {place}"


def _rows(subject: Subject, plans: _Plans, place: int, probed: Probed, request: ProbeRequest) -> list[Row]:
    rows = []
    for column, push in enumerate(request.pushes):
        tested = int(probed.tested[column])
        for seed in range(_config(request).seeds):
            correct = int(probed.correct[column, seed])
            rows.append(
                {
                    **subject.about,
                    "place": "input" if place == INPUT else place,
                    "push": push,
                    "seed": seed,
                    "correct": correct,
                    "tested": tested,
                    "accuracy": correct / tested if tested else None,
                    "classes": plans.classes,
                }
            )
    return rows


def _guess(subject: Subject, plans: _Plans, request: ProbeRequest) -> Row:
    """What a guess among the possible pushes would score on the test levels."""
    right = plans.right[plans.split.test, request.pushes.index(1)]
    return {
        **subject.about,
        "place": "guess",
        "push": 1,
        "seed": None,
        "correct": None,
        "tested": int(right.any(axis=1).sum()),
        "accuracy": guess_accuracy(plans.cells[plans.split.test], right),
        "classes": plans.classes,
    }


def _draw(rows: Sequence[Row]) -> Drawn:
    """Accuracy against the push, a line for each loop; beside it against the loop, a line for each push."""
    probed, guesses = [row for row in rows if row["place"] != "guess"], of(rows, place="guess")
    places, pushes = distinct(probed, "place"), distinct(probed, "push")
    loops = [place for place in places if place != "input"]
    figure, axes = new_axes(2)
    by_push, by_loop = axes[0]

    def line(axis: Any, cells: Sequence[tuple[Any, int]], **style: Any) -> None:
        means, deviations = zip(*(_accuracy(probed, *cell) for cell in cells), strict=True)
        axis.errorbar(range(len(cells)), means, deviations, marker="o", markersize=3, capsize=2, **style)

    for loop, colour in zip(loops, shades(len(loops)), strict=True):
        line(by_push, [(loop, push) for push in pushes], color=colour, label=f"loop {loop}")
    if "input" in places:
        style = {"color": "#8a8f99", "linestyle": "--", "label": "input embedding"}
        line(by_push, [("input", push) for push in pushes], **style)
    for push, colour in zip(pushes, shades(len(pushes))[::-1], strict=True):
        line(by_loop, [(loop, push) for loop in loops], color=colour, label=f"push {push}")
    by_push.axhline(1 / rows[0]["classes"], color=FAINT, linewidth=1, label="chance")
    said = ""
    if guesses:
        guess = np.mean([row["accuracy"] for row in guesses])
        by_push.plot(pushes.index(1), guess, "x", color=INK, label="guess a possible push")
        said = f"; a guess among the pushes that are possible scores {guess:.2f}"
    by_push.set_xticks(range(len(pushes)), [str(push) for push in pushes])
    by_push.set(xlabel="push ahead", ylabel="accuracy of the probe, test levels", ylim=(0, 1))
    by_loop.set_xticks(range(len(loops)), [str(loop) for loop in loops])
    by_loop.set(xlabel="loop", ylim=(0, 1))
    for axis in (by_push, by_loop):
        axis.legend(frameon=False, fontsize=8, ncols=2)
    runs = len(distinct(probed, "run"))
    figure.suptitle(f"Is the plan in the latent? {label_of(rows[0])}, {runs} checkpoint{'s' * (runs > 1)}")
    push, first, last = pushes[0], loops[0], loops[-1]
    accuracies = [f"{_accuracy(probed, place, push)[0]:.2f}" for place in (first, last, "input")]
    tested = of(probed, push=push)[0]["tested"]
    sentence = (
        f"{label_of(rows[0])}: push {push} can be read from the latent with accuracy {accuracies[0]} after "
        f"loop {first} and {accuracies[1]} after loop {last}, and from the input embedding with "
        f"{accuracies[2]} ({tested:,} test levels{said})."
    )
    return Drawn(figure, sentence)


def _accuracy(rows: Sequence[Row], place: Any, push: int) -> tuple[float, float]:
    """Mean and deviation over checkpoints, each averaged over its seeds; NaN where nothing was tested."""
    tested = [row for row in of(rows, place=place, push=push) if row["tested"]]
    if not tested:
        return np.nan, np.nan
    means = [np.mean([row["accuracy"] for row in of(tested, run=run)]) for run in distinct(tested, "run")]
    return float(np.mean(means)), float(np.std(means))


PROBES = FigureKind((*ABOUT, "place", "push", "seed", "correct", "tested", "accuracy", "classes"), _draw)
