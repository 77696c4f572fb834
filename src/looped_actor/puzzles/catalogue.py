"""The games by name."""

from typing import Any

from looped_actor.puzzles.boxoban.game import BOXOBAN
from looped_actor.puzzles.game import Game
from looped_actor.puzzles.grid import Board, LevelError
from looped_actor.puzzles.rush_hour.game import RUSH_HOUR

GAMES: dict[str, Game[Any]] = {game.name: game for game in (BOXOBAN, RUSH_HOUR)}


def game_named(name: str, *, source: str = "game") -> Game[Any]:
    """Return the game of that name, or raise an error that lists them."""
    if name not in GAMES:
        raise LevelError(f"{name!r} is none of the games {', '.join(GAMES)}", source=source)
    return GAMES[name]


def game_of(board: Board) -> Game[Any]:
    """Return the game that a board belongs to."""
    return next(game for game in GAMES.values() if isinstance(board, game.board))
