"""A policy for those who have JAX and not this package: its numbers, and itself as a StableHLO program."""

import json
import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import export, symbolic_shape

from looped_actor.algorithms import Weights, deciding
from looped_actor.devices import all_devices
from looped_actor.experiments.codec import to_json
from looped_actor.experiments.config import OfflineConfig, RunConfig
from looped_actor.experiments.evaluate import another_rule, own_rule, policy_at
from looped_actor.experiments.policies import definition_of, save_policy
from looped_actor.experiments.tasks import PuzzleTask
from looped_actor.files import write_whole
from looped_actor.loop import EarlyExit, HaltingRule
from looped_actor.models import GoalObservation

PROGRAM_FILE = "policy.stablehlo"
SIGNATURE_FILE = "signature.json"
FORMAT = "looped-actor program 1"
Platform = Literal["cpu", "cuda", "rocm", "tpu"]
PLATFORMS: tuple[Platform, ...] = ("cpu", "cuda", "tpu")
BATCH = "batch"
"""The name of the axis whose length is left open."""


class ExportRequest(NamedTuple):
    """What to export, and how."""

    policy: pathlib.Path
    """The folder of a run or of a policy."""
    checkpoint: str | None = None
    board: tuple[int, int] | None = None
    """Rows and columns of the boards that the program reads. Default: as in training."""
    max_loops: int | None = None
    min_loops: int | None = None
    threshold: float | None = None
    platforms: Sequence[Platform] = PLATFORMS


def export_policy(request: ExportRequest, out: pathlib.Path) -> dict[str, Any]:
    """Write a policy and its program into a folder; returns the program's signature."""
    config, weights, _ = policy_at(request.policy, all_devices(1), request.checkpoint)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), weights)
    halting = another_rule(config, request.max_loops, request.min_loops, request.threshold)
    inputs = _inputs(config, request.board)
    (batch,) = symbolic_shape(BATCH)
    shapes = [jax.ShapeDtypeStruct((batch, *one.shape), one.dtype) for one in inputs.values()]
    program = jax.jit(_decider(config, weights, halting))
    exported = export(program, platforms=tuple(request.platforms))(*shapes)
    rule = halting or own_rule(config)
    results = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    signature = {
        "format": FORMAT,
        "program": PROGRAM_FILE,
        "platforms": list(exported.platforms),
        "jax": jax.__version__,
        "task": config.task,
        "arm": config.arm,
        "learner": config.algorithm,
        "halting": None if rule is None else to_json(rule),
        "inputs": {name: _shape(shape) for name, shape in zip(inputs, shapes, strict=True)},
        "outputs": {name: _shape(shape) for name, shape in results.items()},
    }
    save_policy(config, weights, out)
    write_whole(out / PROGRAM_FILE, bytes(exported.serialize()))
    write_whole(out / SIGNATURE_FILE, (json.dumps(signature, indent=1) + "\n").encode())
    return signature


def _inputs(config: RunConfig, board: tuple[int, int] | None) -> dict[str, jax.ShapeDtypeStruct]:
    """What the program reads of one example, by name, in the types that environments give."""
    if isinstance(config, OfflineConfig):
        if board is not None:
            raise ValueError(f"{config.task} has no board: leave --board out")
        vector = jax.ShapeDtypeStruct((config.shape.size,), jnp.float32)
        return {"state": vector, "goal": vector}
    shape = config.shape
    assert isinstance(shape, PuzzleTask)
    if board is not None and board != shape.grid and config.arm == "drc":
        raise ValueError(f"this DRC plays boards of {shape.grid}, and no others")
    if board is not None and min(board) < 1:
        raise ValueError(f"a board of {board[0]} x {board[1]} has no cells")
    shape = shape if board is None else replace(shape, grid=board)
    return {"observation": jax.ShapeDtypeStruct(shape.observation(1).shape[1:], jnp.uint8)}


def _decider(config: RunConfig, weights: Weights, halting: HaltingRule | None) -> Any:
    """The policy as a function of arrays; other executions want to know the batch."""
    decide: Any = deciding(definition_of(config), weights)

    def act(*inputs: jax.Array) -> dict[str, jax.Array]:
        if isinstance(config, OfflineConfig):
            decision = decide(GoalObservation(*inputs), halting=halting, execution=EarlyExit())
            mean = decision.distribution.mean
            told = {"action": jnp.clip(mean, -1, 1), "mean": mean}
        else:
            decision = decide(inputs[0], halting=halting, execution=EarlyExit())
            policy = decision.distribution
            told = {"action": policy.mode(), "logits": policy.logits, "value": decision.value}
        return {**told, "loops": decision.loop.loops}

    return act


def _shape(shape: Any) -> dict[str, Any]:
    return {"shape": [BATCH, *shape.shape[1:]], "dtype": str(shape.dtype)}
