"""What the Gymnasium names stand for: puzzles with levels from a bank, or from those of the package."""

import os
from typing import Any

from looped_actor.envs import Boxoban, RushHour
from looped_actor.envs.gymnasium import BoxobanGym, RushHourGym, VectorGym
from looped_actor.levels import LevelBank, open_bank, starter_bank

Levels = LevelBank | str | os.PathLike | None


def _bank(game: str, levels: Levels) -> LevelBank:
    bank = starter_bank(game) if levels is None else levels
    bank = bank if isinstance(bank, LevelBank) else open_bank(bank)
    if bank.info.game != game:
        raise ValueError(f"{bank.name} holds levels of {bank.info.game}, not of {game}")
    return bank


def boxoban(levels: Levels = None, **options: Any) -> BoxobanGym:
    """One board of Boxoban."""
    return BoxobanGym(_bank("boxoban", levels), **options)


def rush_hour(levels: Levels = None, **options: Any) -> RushHourGym:
    """One board of Rush Hour."""
    return RushHourGym(_bank("rush-hour", levels), **options)


def boxoban_vector(num_envs: int, levels: Levels = None, **options: Any) -> VectorGym:
    """Many boards of Boxoban."""
    return VectorGym(Boxoban(_bank("boxoban", levels).on_device(), **options), num_envs)


def rush_hour_vector(num_envs: int, levels: Levels = None, **options: Any) -> VectorGym:
    """Many boards of Rush Hour."""
    return VectorGym(RushHour(_bank("rush-hour", levels).on_device(), **options), num_envs)
