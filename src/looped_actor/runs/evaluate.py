"""Evaluation of a policy, at any cap and threshold: puzzles on a bank of levels, worlds by their tasks."""

from typing import Any

import jax
from jax.sharding import Mesh

from looped_actor.processes import Progress, no_progress
from looped_actor.runs.folder import run_of
from looped_actor.runs.policy import Policy
from looped_actor.runs.requests import EvaluationRequest


def evaluate_policy(
    policy: Policy, request: EvaluationRequest, mesh: Mesh, progress: Progress = no_progress
) -> dict[str, Any]:
    """Facts about a policy that JSON can hold: what it achieved, at what depth, and what was played."""
    config, rule = policy.config, policy.rule(request) or policy.halting
    facts = {
        "policy": policy.name,
        "task": config.task,
        "arm": config.arm,
        "learner": config.algorithm,
        "max_loops": (rule or config.chosen_arm).max_loops,
        "threshold": getattr(rule, "threshold", None),
    }
    with jax.enable_x64(config.double_precision):
        return facts | run_of(config, policy.folder, mesh).play(policy, request, progress)
