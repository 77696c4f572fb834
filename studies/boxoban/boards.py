"""Boxoban boards as this study sees them: without the outer ring of wall, and in eight symmetries."""

import pathlib

import numpy as np
from jaxtyping import Bool, UInt8
from looped_actor.games.boxoban import Cell
from looped_actor.levels.sources import read_boxoban_file

SYMMETRIES = 8


def crop_border(cells: UInt8[np.ndarray, "n h w"]) -> UInt8[np.ndarray, "n h-2 w-2"]:
    """Return the boards without their outer ring, which must be wall. Outside of a board is wall anyway."""
    ring = np.ones(cells.shape[1:], bool)
    ring[1:-1, 1:-1] = False
    if not (cells[:, ring] == Cell.WALL).all():
        raise ValueError("a board has something else than wall in its outer ring")
    return np.ascontiguousarray(cells[:, 1:-1, 1:-1])


def read_levels(root: pathlib.Path, split: str, files: range) -> UInt8[np.ndarray, "n 8 8"]:
    """Return the cropped boards of some files of a split, for example `unfiltered/train`."""
    return np.concatenate([crop_border(read_boxoban_file(root / split / f"{file:03}.txt")) for file in files])


def transform_boards(cells: UInt8[np.ndarray, "n h h"], symmetry: int) -> UInt8[np.ndarray, "n h h"]:
    """Mirror left to right if `symmetry` is 4 or more, then turn clockwise `symmetry % 4` times."""
    mirrored = cells[:, :, ::-1] if symmetry >= 4 else cells
    return np.rot90(mirrored, -(symmetry % 4), axes=(1, 2))


def transform_actions(optimal: Bool[np.ndarray, "n 4"], symmetry: int) -> Bool[np.ndarray, "n 4"]:
    """Return the action sets of transformed boards. Actions are up, right, down, left."""
    mirrored = optimal[:, [0, 3, 2, 1]] if symmetry >= 4 else optimal
    return np.roll(mirrored, symmetry % 4, axis=1)
