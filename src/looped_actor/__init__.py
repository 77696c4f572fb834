"""Policies that think in loops: adaptive-depth transformers for reinforcement learning, in JAX."""

from looped_actor.version import __version__

__all__ = ["__version__"]
