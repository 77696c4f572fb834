"""Plan probes of Boxoban policies: solve, record, probe, and write down."""

import hashlib
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import safetensors.numpy
from jax.sharding import Mesh

from looped_actor.analysis.latents import INPUT, Latents, LatentsRecorder, loops_within
from looped_actor.analysis.plans import LOOPS, PUSHES, guess_accuracy, push_targets
from looped_actor.analysis.probes import (
    Probe,
    ProbeConfig,
    Probed,
    ProbeSet,
    split_levels,
    train_probes,
    write_probes,
)
from looped_actor.analysis.tables import Row
from looped_actor.batches import default_workers
from looped_actor.experiments.analyses import (
    Stage,
    Subject,
    finished,
    parts_of,
    quietly,
    subjects,
)
from looped_actor.experiments.codec import key_of
from looped_actor.experiments.evaluate import bank_of, levels_wanted
from looped_actor.experiments.policies import definition_of
from looped_actor.files import write_whole
from looped_actor.games.boxoban import Cell
from looped_actor.levels import LevelBank, open_bank, solve_bank
from looped_actor.solvers import SolveStatus
from looped_actor.solvers.advice import planes_of


@dataclass(frozen=True)
class ProbeRequest:
    """What to probe, and how. The defaults are the paper's."""

    levels: tuple[pathlib.Path, ...] = ()
    """Banks. Default: the one held out in training."""
    count: int | None = None
    """Levels of each bank. Default: all."""
    pushes: tuple[int, ...] = PUSHES
    """Which pushes of a solution to read: 1 is the next."""
    loops: tuple[int, ...] = LOOPS
    """After which loops; those beyond a policy's cap are left out."""
    config: ProbeConfig = field(default_factory=ProbeConfig)
    checkpoint: str | None = None
    node_limit: int = 3_000_000
    """States after which the search for a solution gives up; such levels are left out."""
    workers: int | None = None
    """Processes that solve. Default: one for each core."""

    def __post_init__(self) -> None:
        if not self.pushes or min(self.pushes) < 1 or len(set(self.pushes)) < len(self.pushes):
            raise ValueError(f"pushes are {list(self.pushes)}; give each once, counted from 1")


class _Plans:
    """Boards that could be solved, and the pushes of their solutions."""

    def __init__(self, cells: np.ndarray, targets: np.ndarray):
        self.cells, self.targets = cells, targets
        self.split = split_levels(len(cells))
        self.boxes = int(((cells[0] & Cell.BOX) != 0).sum())

    @property
    def classes(self) -> int:
        return 4 * self.boxes


def analyse_probes(
    folders: Sequence[pathlib.Path],
    mesh: Mesh,
    out: pathlib.Path,
    request: ProbeRequest,
    stage: Stage = quietly,
) -> str:
    """Whether the pushes of an optimal solution can be read from the latents of Boxoban policies."""
    rows: list[Row] = []
    for number, subject in enumerate(subjects(folders, mesh, request.checkpoint)):
        if subject.puzzle.task != "boxoban":
            raise ValueError(f"{subject.folder} is of {subject.config.task}: plans are pushes of Boxoban")
        loops = loops_within(subject.looped.max_loops, request.loops)
        banks = [open_bank(path) for path in request.levels] or [bank_of(subject.folder, subject.puzzle)]
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
        kept = ProbeSet(probes, places, request.pushes, plans.boxes)
        write_probes(kept, request.config, out / f"probes-{number}.safetensors")
    return finished(out, "probes", rows)


def _plans(banks: Sequence[LevelBank], request: ProbeRequest, out: pathlib.Path, stage: Stage) -> _Plans:
    """So many levels of each bank."""
    cells, targets = [], []
    for bank in banks:
        if bank.info.game != "boxoban":
            raise ValueError(f"{bank.name} holds levels of {bank.info.game}: plans are pushes of Boxoban")
        wanted = levels_wanted(request.count, bank)
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
            raise ValueError(f"{bank.name}: no level was solved within {request.node_limit:,} states")
        cells.append(bank.cells(slice(0, wanted))[solved])
        targets.append(push_targets(solutions, request.pushes)[solved])
    boxes = [((some & Cell.BOX) != 0).sum(axis=(1, 2)) for some in cells]
    if len({some.shape[1:] for some in cells}) > 1 or len(np.unique(np.concatenate(boxes))) > 1:
        raise ValueError("all levels that are probed must be of one size and have as many boxes")
    return _Plans(np.concatenate(cells), np.concatenate(targets))


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

    recorder = LatentsRecorder(definition_of(subject.config), loops, mesh)
    source = hashlib.sha256(plans.cells.tobytes()).hexdigest()
    with stage(f"{subject.name}: recording latents") as progress:
        return recorder.record(
            subject.weights, observe, len(plans.cells), folder, source=source, progress=progress
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
                latents.at(place), plans.targets, plans.classes, plans.split, request.config, progress
            )

    key = {"latents": latents.info.source, "place": place, "pushes": request.pushes}
    return _remembered(parts / f"{key_of({**key, **asdict(request.config)})}.probes", train)


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
        for seed in range(request.config.seeds):
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
    first = plans.targets[plans.split.test, request.pushes.index(1)]
    return {
        **subject.about,
        "place": "guess",
        "push": 1,
        "seed": None,
        "correct": None,
        "tested": int((first >= 0).sum()),
        "accuracy": guess_accuracy(plans.cells[plans.split.test], first),
        "classes": plans.classes,
    }
