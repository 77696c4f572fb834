"""Levels: banks, the files of others, generators, and optimal solutions of many."""

from looped_actor.levels.bank import (
    BankInfo,
    DeviceLevels,
    LevelBank,
    make_bank,
    open_bank,
    starter_bank,
    write_bank,
)
from looped_actor.levels.boxoban_generator import BoxobanRecipe
from looped_actor.levels.build import enumerated, generate, split_at_random
from looped_actor.levels.rush_hour_generator import RushHourRecipe
from looped_actor.levels.solutions import Solutions, open_solutions, solve_bank, write_solutions
from looped_actor.levels.sources import read_boxoban, read_boxoban_file, read_rush_hour_database

__all__ = [
    "BankInfo",
    "BoxobanRecipe",
    "DeviceLevels",
    "LevelBank",
    "RushHourRecipe",
    "Solutions",
    "enumerated",
    "generate",
    "make_bank",
    "open_bank",
    "open_solutions",
    "read_boxoban",
    "read_boxoban_file",
    "read_rush_hour_database",
    "solve_bank",
    "split_at_random",
    "starter_bank",
    "write_bank",
    "write_solutions",
]
