"""The games by their names in Gymnasium. Nothing that they stand for is imported before one is made."""

from typing import Any

from looped_actor.utils.errors import UserError


def register_environments() -> None:
    """Make both games known to `gymnasium.make` and `gymnasium.make_vec`."""
    from gymnasium.envs.registration import register, registry

    for name, function in (("Boxoban", "boxoban"), ("RushHour", "rush_hour")):
        if (env_id := f"looped_actor/{name}-v0") not in registry:
            entry = f"{__name__}:{function}"
            register(env_id, entry_point=entry, vector_entry_point=f"{entry}_vector")


def _bank(game: str, levels: Any) -> Any:
    """A bank, that of a file, or the levels that come with the package."""
    from looped_actor.puzzles.banks import LevelBank, open_bank, starter_bank

    bank = starter_bank(game) if levels is None else levels
    bank = bank if isinstance(bank, LevelBank) else open_bank(bank)
    if bank.info.game != game:
        raise UserError(f"{bank.name} holds levels of {bank.info.game}, not of {game}")
    return bank


def boxoban(levels: Any = None, **options: Any) -> Any:
    """One board of Boxoban, with levels of a bank or those that come with the package."""
    from looped_actor.envs.gymnasium import BoxobanGym

    return BoxobanGym(_bank("boxoban", levels), **options)


def rush_hour(levels: Any = None, **options: Any) -> Any:
    """One board of Rush Hour, with levels of a bank or those that come with the package."""
    from looped_actor.envs.gymnasium import RushHourGym

    return RushHourGym(_bank("rush-hour", levels), **options)


def boxoban_vector(num_envs: int, levels: Any = None, **options: Any) -> Any:
    """Many boards of Boxoban."""
    from looped_actor.envs.gymnasium import VectorGym
    from looped_actor.puzzles.envs import Boxoban

    return VectorGym(Boxoban(_bank("boxoban", levels).on_device(), **options), num_envs)


def rush_hour_vector(num_envs: int, levels: Any = None, **options: Any) -> Any:
    """Many boards of Rush Hour."""
    from looped_actor.envs.gymnasium import VectorGym
    from looped_actor.puzzles.envs import RushHour

    return VectorGym(RushHour(_bank("rush-hour", levels).on_device(), **options), num_envs)
