"""The rules of the puzzles: boards, text, and the same moves in plain Python and in JAX. No rewards here."""

from looped_actor.games.boxoban import BoxobanBoard
from looped_actor.games.grid import Direction, LevelError
from looped_actor.games.rush_hour import RushHourBoard, Vehicle

__all__ = ["BoxobanBoard", "Direction", "LevelError", "RushHourBoard", "Vehicle"]
