"""Serving: requests that converge early are answered early, instead of waiting for the deepest of a batch."""

from looped_actor.serving.engine import Answer, BusyError, Engine, LateError

__all__ = ["Answer", "BusyError", "Engine", "LateError"]
