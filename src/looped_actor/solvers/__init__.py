"""Optimal solutions of the puzzles, compiled by Numba."""

from looped_actor.solvers.boxoban import BoxobanSolution, Push
from looped_actor.solvers.rush_hour import RushHourSolution, Slide
from looped_actor.solvers.status import SolveStatus

__all__ = ["BoxobanSolution", "Push", "RushHourSolution", "Slide", "SolveStatus"]
