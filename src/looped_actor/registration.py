"""Registration of the puzzles with Gymnasium. Their code is imported only when one is made."""

from typing import Any

from looped_actor.utils.errors import UserError

GAME_OF_ID = {"looped_actor/Boxoban-v0": "boxoban", "looped_actor/RushHour-v0": "rush-hour"}


def register_environments() -> None:
    """Make the games known to `gymnasium.make` and `gymnasium.make_vec`."""
    from gymnasium.envs.registration import register, registry

    for env_id, game in GAME_OF_ID.items():
        if env_id not in registry:
            register(
                env_id,
                entry_point=f"{__name__}:make_puzzle",
                vector_entry_point=f"{__name__}:make_puzzle_vector",
                kwargs={"game": game},
            )


def make_puzzle(game: str, levels: Any = None, **options: Any) -> Any:
    """Return one board of a game, with levels of a bank or those that come with the package."""
    from looped_actor.puzzles.gymnasium import PuzzleGym

    return PuzzleGym(_open_bank(game, levels), **options)


def make_puzzle_vector(num_envs: int, game: str, levels: Any = None, time_limit: int | None = None) -> Any:
    """Return many boards of a game, computed by JAX."""
    from looped_actor.envs.gymnasium import VectorGym

    bank = _open_bank(game, levels)
    limit = bank.game.time_limit if time_limit is None else time_limit
    return VectorGym(bank.game.environment(bank.on_device(), limit), num_envs)


def _open_bank(game: str, levels: Any) -> Any:
    """Return a bank, that of a file, or the levels that come with the package."""
    from looped_actor.puzzles.banks import LevelBank, open_bank, starter_bank

    bank = starter_bank(game) if levels is None else levels
    bank = bank if isinstance(bank, LevelBank) else open_bank(bank)
    if bank.info.game != game:
        raise UserError(f"{bank.name} holds levels of {bank.info.game}, not of {game}")
    return bank
