"""Answers for many askers: each thought as long as it needs, none waiting for the deepest of a batch."""

from looped_actor.serving.engine import Answer, BusyError, Engine, LateError

__all__ = ["Answer", "BusyError", "Engine", "LateError"]
