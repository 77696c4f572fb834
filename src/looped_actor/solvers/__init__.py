"""Optimal solutions of the puzzles, compiled by Numba."""

from looped_actor.solvers.advice import Advice, BoxobanTeacher, RushHourTeacher
from looped_actor.solvers.boxoban import BoxobanSolution, Push
from looped_actor.solvers.rush_hour import RushHourSolution, Slide
from looped_actor.solvers.status import SolveStatus

__all__ = [
    "Advice",
    "BoxobanSolution",
    "BoxobanTeacher",
    "Push",
    "RushHourSolution",
    "RushHourTeacher",
    "Slide",
    "SolveStatus",
]
