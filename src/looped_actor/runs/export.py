"""A policy for those who have JAX and not this package: its numbers, and itself as a StableHLO program."""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from looped_actor.algorithms import deciding
from looped_actor.codec import to_json
from looped_actor.configs.requests import ExportRequest
from looped_actor.files import write_whole
from looped_actor.loop import EarlyExit, Memory
from looped_actor.models.arms import STARTS
from looped_actor.runs.policy import Policy, save_policy

PROGRAM_FILE = "policy.stablehlo"
SIGNATURE_FILE = "signature.json"
FORMAT = "looped-actor program 1"
BATCH = "batch"
"""The name of the axis whose length is left open."""


def export(policy: Policy, out: str | os.PathLike, **asked: Any) -> dict[str, Any]:
    """Write a policy so that it runs without this package, as `looped-actor export` does.

    Args:
      policy: what to write.
      out: folder for the files.
      asked: fields of `ExportRequest`, as `max_loops` and `platforms`.

    Returns:
      What the program reads and returns, as signature.json has it.
    """
    return export_policy(policy, ExportRequest(**asked), pathlib.Path(out))


def export_policy(policy: Policy, request: ExportRequest, out: pathlib.Path) -> dict[str, Any]:
    """Write a policy and its program into a folder; returns the program's signature."""
    policy = policy.with_start(request.start and STARTS[request.start])
    config, halting = policy.config, policy.rule(request)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), policy.weights)
    program = policy.run.program(request.board)
    decide: Any = deciding(policy.run.definition, weights)

    def decided(inputs: Sequence[Any], memory: Memory | None = None) -> Any:
        # Other executions want to know the batch.
        given = {"memory": memory, "halting": halting, "execution": EarlyExit()}
        return decide(program.observation(*inputs), **given)

    (batch,) = jax_export.symbolic_shape(BATCH)
    shapes = [jax.ShapeDtypeStruct((batch, *one.shape), one.dtype) for one in program.inputs.values()]
    observed = len(shapes)
    memory = jax.eval_shape(
        lambda *inputs: policy.starting.begin(lambda: decided(inputs).loop.latent), *shapes
    )
    carried = {} if memory is None else memory._asdict()
    shapes += carried.values()

    def act(*inputs: jax.Array) -> dict[str, jax.Array]:
        memory = Memory(*inputs[observed:]) if carried else None
        decision = decided(inputs[:observed], memory)
        after: dict[str, Any] = {}
        if memory is not None:
            after["latent"] = memory.after(decision.loop.latent).latent
        return {**program.outputs(decision), "loops": decision.loop.loops, **after}

    names = [*program.inputs, *carried]
    exported = jax_export.export(jax.jit(act), platforms=tuple(request.platforms))(*shapes)
    rule = halting or policy.halting
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
        "start": str(policy.starting),
        "inputs": {name: _shape(shape) for name, shape in zip(names, shapes, strict=True)},
        "outputs": {name: _shape(shape) for name, shape in results.items()},
    }
    save_policy(config, weights, out)
    write_whole(out / PROGRAM_FILE, bytes(exported.serialize()))
    write_whole(out / SIGNATURE_FILE, (json.dumps(signature, indent=1) + "\n").encode())
    return signature


def _shape(shape: Any) -> dict[str, Any]:
    return {"shape": [BATCH, *shape.shape[1:]], "dtype": str(shape.dtype)}
