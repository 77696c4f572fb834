"""What several tests need."""

import os
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

thorough = pytest.mark.skipif(
    not os.environ.get("THOROUGH"), reason="too long for every change; THOROUGH=1 runs it"
)


def relative(actual, expected) -> float:
    """The largest error, relative to the largest value."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    error = np.abs(actual - expected).max(initial=0.0)
    return float(error / max(np.abs(expected).max(initial=0.0), np.finfo(expected.dtype).tiny))


def cast(module, dtype):
    """The module with its floating-point variables in another precision."""
    definition, state = nnx.split(module)
    return nnx.merge(definition, jax.tree.map(lambda a: a.astype(dtype), state))


def evaluated(folder, checkpoint=None, **options):
    """What `looped-actor eval` says of a policy, on one device."""
    from looped_actor.evaluation.options import EvaluationOptions
    from looped_actor.runs.evaluate import evaluate_policy
    from looped_actor.runs.load import policy_at
    from looped_actor.training.sharding import all_devices

    return evaluate_policy(policy_at(folder, checkpoint), EvaluationOptions(**options), all_devices(1))


def with_hidden_width(config):
    """The configuration with the hidden width of its core as a number, as version 0.2 had it by a rule."""
    core = getattr(config.arm, "core", None)
    if core is None:
        return config
    return replace(config, arm=replace(config.arm, core=replace(core, hidden=core.hidden_width)))
