"""Evaluation of a policy on levels, tasks or an environment, at any cap and threshold."""

import os
import pathlib
from dataclasses import fields, replace
from typing import Any

import gymnasium
from jax.sharding import Mesh

from looped_actor.envs import Environment
from looped_actor.evaluation.options import EvaluationOptions, options_from
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.banks import LevelBank
from looped_actor.runs.config import PuzzleConfig, RobotConfig
from looped_actor.runs.custom import CustomRun, evaluate_in_env
from looped_actor.runs.puzzle import evaluate_on_levels
from looped_actor.runs.registry import run_of
from looped_actor.runs.robots import evaluate_on_tasks
from looped_actor.training.sharding import all_devices
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, no_progress

PLAYABLE = (str, os.PathLike, LevelBank, Environment, gymnasium.Env, gymnasium.vector.VectorEnv)
"""Types to evaluate on, besides functions that make an environment."""


def evaluate(
    policy: Policy,
    on: Any = None,
    *,
    mesh: Mesh | None = None,
    progress: Progress = no_progress,
    **options: Any,
) -> dict[str, Any]:
    """Play with the most probable actions, and return the results that `looped-actor eval --json` prints.

    ```python
    looped_actor.evaluate(policy)["success"]                      # the test levels of its run
    looped_actor.evaluate(policy, "levels/hard.levels", max_loops=32)
    looped_actor.evaluate(policy, gymnasium.make("CartPole-v1"), count=100)
    ```

    Args:
      policy: the policy.
      on: a bank of levels or its file, an environment in JAX, or one of Gymnasium. Default: the test levels
        or tasks of its run.
      mesh: the devices. Default: all.
      progress: called with the number of finished and of all episodes.
      options: fields of `EvaluationOptions`, such as `count` and `max_loops`.
    """
    chosen = options_from(EvaluationOptions, options)
    if not (on is None or callable(on) or isinstance(on, PLAYABLE)):
        raise UserError(
            f"an environment of type {type(on).__name__} cannot be played: give a bank of levels or its "
            "file, an environment, or a function that makes one"
        )
    if isinstance(on, str) and on in gymnasium.registry and not pathlib.Path(on).exists():
        raise UserError(f'{on!r} names an environment of Gymnasium: make it, as gymnasium.make("{on}")')
    return evaluate_policy(policy, chosen, mesh or all_devices(), progress, on)


def evaluate_policy(
    policy: Policy,
    options: EvaluationOptions,
    mesh: Mesh,
    progress: Progress = no_progress,
    on: Any = None,
) -> dict[str, Any]:
    """Return evaluation results as JSON; see `evaluate`."""
    policy = policy.with_carry(options.carry_latent)
    if isinstance(on, str | os.PathLike):
        options, on = replace(options, levels=pathlib.Path(on)), None
    results = _describe(policy, options, on)
    if callable(on) and not isinstance(on, Environment):
        on = on()  # it makes an environment of Gymnasium
    if isinstance(on, Environment | gymnasium.Env | gymnasium.vector.VectorEnv):
        return results | evaluate_in_env(policy, on, options, mesh, progress)
    if isinstance(policy.config, PuzzleConfig):
        return results | evaluate_on_levels(policy, options, mesh, on, progress)
    if isinstance(on, LevelBank):
        raise UserError(f"{policy.spec.task} is not played on levels: give an environment")
    if isinstance(policy.config, RobotConfig):
        return results | evaluate_on_tasks(policy, options, progress)
    run = run_of(policy.config, policy.folder, mesh, policy.code)
    assert isinstance(run, CustomRun)
    try:
        return results | evaluate_in_env(policy, run.evaluation_env, options, mesh, progress)
    finally:
        run.close()


def _describe(policy: Policy, options: EvaluationOptions, on: Any) -> dict[str, Any]:
    """Return the policy, its loop, and the options that differ from the defaults and may change a result."""
    rule = policy.spec.with_loop(options) or policy.halting
    defaults = EvaluationOptions()
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    given = {name: value for name, value in given.items() if value != getattr(defaults, name)}
    given.pop("workers", None)
    if on is not None:
        given["levels" if isinstance(on, LevelBank) else "on"] = getattr(on, "name", type(on).__name__)
    shown = {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in given.items()}
    return {
        "policy": policy.name,
        "task": policy.spec.task,
        "arm": policy.spec.arm,
        "learner": policy.spec.learner,
        "max_loops": (rule or policy.spec).max_loops,
        "min_loops": getattr(rule, "min_loops", None),
        "threshold": getattr(rule, "threshold", None),
        "start": "carried" if policy.carry_latent else "fixed",
        "options": shown,
    }
