"""Evaluation of a policy, at any cap and threshold, on levels, by tasks, or in an environment."""

import os
import pathlib
from dataclasses import fields, replace
from typing import Any

import gymnasium
import jax
from jax.sharding import Mesh

from looped_actor.envs import Environment
from looped_actor.evaluation.requests import EvaluationRequest, request_from
from looped_actor.models.arms import STARTS
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.banks import LevelBank
from looped_actor.runs.custom import played_facts
from looped_actor.training.sharding import all_devices
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, no_progress


def evaluate(
    policy: Policy,
    on: Any = None,
    *,
    mesh: Mesh | None = None,
    progress: Progress = no_progress,
    **asked: Any,
) -> dict[str, Any]:
    """Play with the most probable actions, and return what `looped-actor eval --json` prints.

    ```python
    looped_actor.evaluate(policy)["success"]                      # what was held out in training
    looped_actor.evaluate(policy, "levels/hard.levels", max_loops=32)
    looped_actor.evaluate(policy, gymnasium.make("CartPole-v1"), count=100)
    ```

    Args:
      policy: what plays.
      on: a bank of levels or its file, an environment in JAX, or one of Gymnasium. Default: what was held
        out in training.
      mesh: the devices. Default: all.
      progress: told how much was played, and of how much.
      asked: further fields of `EvaluationRequest`, as `count` and `max_loops`.
    """
    request = request_from(EvaluationRequest, asked)
    if not (on is None or callable(on) or isinstance(on, _PLAYED)):
        raise UserError(
            f"an environment of type {type(on).__name__} cannot be played: give a bank of levels or its "
            "file, an environment, or a function that makes one"
        )
    if isinstance(on, str) and on in gymnasium.registry and not pathlib.Path(on).exists():
        raise UserError(f'{on!r} names an environment of Gymnasium: make it, as gymnasium.make("{on}")')
    return evaluate_policy(policy, request, mesh or all_devices(), progress, on)


_PLAYED = (str, os.PathLike, LevelBank, Environment, gymnasium.Env, gymnasium.vector.VectorEnv)
"""What can be played, apart from functions that make an environment."""


def _options(request: EvaluationRequest, on: Any) -> dict[str, Any]:
    """Return the options that differ from the defaults and may change a result."""
    defaults = EvaluationRequest()
    asked = {field.name: getattr(request, field.name) for field in fields(request)}
    asked = {name: value for name, value in asked.items() if value != getattr(defaults, name)}
    asked.pop("workers", None)
    if on is not None:
        asked["levels" if isinstance(on, LevelBank) else "on"] = getattr(on, "name", type(on).__name__)
    return {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in asked.items()}


def evaluate_policy(
    policy: Policy,
    request: EvaluationRequest,
    mesh: Mesh,
    progress: Progress = no_progress,
    on: Any = None,
) -> dict[str, Any]:
    """Facts about a policy that JSON can hold: what it achieved, at what depth, and what was played."""
    policy = policy.with_start(request.start and STARTS[request.start])
    if isinstance(on, str | os.PathLike):
        request, on = replace(request, levels=pathlib.Path(on)), None
    config, rule = policy.config, policy.rule(request) or policy.halting
    facts = {
        "policy": policy.name,
        "task": config.task,
        "arm": config.arm,
        "learner": config.algorithm,
        "max_loops": (rule or policy.run.net).max_loops,
        "min_loops": getattr(rule, "min_loops", None),
        "threshold": getattr(rule, "threshold", None),
        "start": str(policy.starting),
        "options": _options(request, on),
    }
    if callable(on) and not isinstance(on, Environment):
        on = on()  # it makes an environment of Gymnasium
    with jax.enable_x64(config.double_precision):
        if isinstance(on, Environment | gymnasium.Env | gymnasium.vector.VectorEnv):
            return facts | played_facts(policy, on, request, mesh, progress)
        run = replace(policy.run, mesh=mesh)
        if isinstance(on, LevelBank):
            run, on = replace(run.puzzle, given=on), None
        try:
            return facts | run.play(policy, request, progress)
        finally:
            run.close()
