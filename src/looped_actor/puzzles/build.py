"""Whole banks from recipes: the same for any number of workers, resumable, splits disjoint."""

import hashlib
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from looped_actor.puzzles.banks import LevelBank, make_bank
from looped_actor.puzzles.boxoban import generator as boxoban_generator
from looped_actor.puzzles.boxoban.generator import BoxobanRecipe
from looped_actor.puzzles.catalogue import BOXOBAN, RUSH_HOUR, Game
from looped_actor.puzzles.rush_hour import generator as rush_hour_generator
from looped_actor.puzzles.rush_hour.enumeration import enumerate_positions
from looped_actor.puzzles.rush_hour.generator import RushHourRecipe
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Arrays, Pool, Progress, no_progress, run_batches

Recipe = BoxobanRecipe | RushHourRecipe
GENERATED_LICENCE = "CC0-1.0"
_SPARSE_BATCHES = 50  # in a row without a new level: the recipe is exhausted


def generate(
    recipe: Recipe,
    splits: Mapping[str, int],
    *,
    workers: int | Pool = 1,
    parts: pathlib.Path | None = None,
    without: Sequence[LevelBank] = (),
    progress: Progress = no_progress,
) -> dict[str, LevelBank]:
    """A bank for each split, of the size asked for, filled in the order given.

    No level occurs twice. For Rush Hour no two levels share a cluster, so no board of one split can be
    reached from a board of another. Put small splits first, and they stay the same when a later one grows.
    `without` are banks of the same game of which no level is to occur again.
    `parts` keeps finished batches of this recipe (`parts_of`), so that an interrupted job goes on.
    """
    wanted = sum(splits.values())
    if wanted < 1 or min(splits.values()) < 0:
        raise UserError(f"there is nothing to generate: {dict(splits)}")
    game, module = (
        (BOXOBAN, boxoban_generator)
        if isinstance(recipe, BoxobanRecipe)
        else (RUSH_HOUR, rush_hour_generator)
    )
    tasks = ((recipe, batch) for batch in itertools.count())
    collected: list[Arrays] = []
    seen: set[bytes] = set()
    for bank in without:
        _first_seen({"cells": bank.cells(slice(None)), **bank.columns}, seen)
    known = len(seen)
    barren = 0
    batches = run_batches(module.generate_batch, tasks, workers=workers, parts=parts)
    for batch in batches:
        fresh = _first_seen(batch, seen)
        barren = 0 if fresh.any() else barren + 1
        collected.append({name: values[fresh] for name, values in batch.items()})
        found = len(seen) - known
        progress(min(found, wanted), wanted)
        if found >= wanted:
            break
        if barren == _SPARSE_BATCHES:
            raise UserError(
                f"found {found} different levels of {wanted}, and none in the last "
                f"{barren * module.CANDIDATES_PER_BATCH} candidates: ask for fewer, or for other boards"
            )
    batches.close()
    columns = {name: np.concatenate([part[name] for part in collected]) for name in collected[0]}
    return _split(game, columns, splits, recipe)


def parts_of(recipe: Recipe, folder: pathlib.Path) -> pathlib.Path:
    """Where in a folder the finished batches of a recipe are kept: each recipe has a place of its own."""
    text = json.dumps([type(recipe).__name__, asdict(recipe)])
    return folder / hashlib.sha256(text.encode()).hexdigest()[:16]


def enumerated(height: int, width: int, *, progress: Progress = no_progress) -> LevelBank:
    """All interesting Rush Hour positions of a small board, hardest first."""
    puzzles = enumerate_positions(height, width, progress=progress).puzzles
    columns = {
        "moves": np.array([puzzle.moves for puzzle in puzzles], np.uint16),
        "cluster_size": np.array([puzzle.cluster_size for puzzle in puzzles], np.uint32),
    }
    cells = np.array([puzzle.board.to_cells() for puzzle in puzzles], np.uint8).reshape(-1, height, width)
    source = f"all interesting positions of {height}x{width}, by looped-actor"
    return make_bank(RUSH_HOUR, cells, source=source, licence=GENERATED_LICENCE, columns=columns)


def split_at_random(bank: LevelBank, splits: Mapping[str, int], seed: int) -> dict[str, LevelBank]:
    """Disjoint splits of a bank, drawn without replacement; what is left over is `train`."""
    held_out = sum(splits.values())
    if min(splits.values(), default=0) < 0 or held_out >= len(bank):
        raise UserError(f"{dict(splits)} do not leave a level for training out of {len(bank)}")
    order = np.random.default_rng(seed).permutation(len(bank))
    parts = dict(zip([*splits, "train"], np.split(order, np.cumsum(list(splits.values()))), strict=True))
    return {
        name: make_bank(
            bank.game,
            bank.cells(np.sort(chosen)),
            source=f"{bank.info.source}; {name}, drawn with seed {seed}",
            licence=bank.info.licence,
            columns={column: values[np.sort(chosen)] for column, values in bank.columns.items()},
            name=f"{bank.name}, {name}",
        )
        for name, chosen in parts.items()
    }


def _first_seen(batch: Mapping[str, np.ndarray], seen: set[bytes]) -> np.ndarray:
    """Which levels of a batch are new, and remember them."""
    identity = batch["cluster"] if "cluster" in batch else batch["cells"]
    fresh = np.zeros(len(identity), bool)
    for i, value in enumerate(identity):
        key = value.tobytes()
        if key not in seen:
            seen.add(key)
            fresh[i] = True
    return fresh


def _split(game: Game, columns: Arrays, splits: Mapping[str, int], recipe: Recipe) -> dict[str, LevelBank]:
    cells = columns.pop("cells")
    banks, first = {}, 0
    for name, count in splits.items():
        if count == 0:
            continue
        chosen = slice(first, first + count)
        first += count
        described = ", ".join(f"{key} {value}" for key, value in asdict(recipe).items())
        banks[name] = make_bank(
            game,
            cells[chosen],
            source=f"generated by looped-actor: {described}; levels {chosen.start} to {chosen.stop - 1}",
            licence=GENERATED_LICENCE,
            columns={column: values[chosen] for column, values in columns.items()},
            name=name,
        )
    return banks
