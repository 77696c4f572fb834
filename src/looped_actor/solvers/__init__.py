"""Optimal solutions of the puzzles, compiled by Numba."""

from looped_actor.solvers.boxoban import BoxobanSolution, Push, SolveStatus
from looped_actor.solvers.rush_hour import RushHourSolution, Slide

__all__ = ["BoxobanSolution", "Push", "RushHourSolution", "Slide", "SolveStatus"]
