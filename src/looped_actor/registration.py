"""Names for Gymnasium. Given as text, so that importing the package does not import what they stand for."""

import gymnasium


def register_environments() -> None:
    """Make both games known to `gymnasium.make` and `gymnasium.make_vec`."""
    for name, function in (("Boxoban", "boxoban"), ("RushHour", "rush_hour")):
        env_id, module = f"looped_actor/{name}-v0", "looped_actor.experiments.gymnasium"
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point=f"{module}:{function}",
                vector_entry_point=f"{module}:{function}_vector",
            )
