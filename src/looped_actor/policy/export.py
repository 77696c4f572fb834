"""A policy for those who have JAX and not this package: its numbers, and itself as a StableHLO program."""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from looped_actor.algorithms import policy_fn as deciding
from looped_actor.evaluation.requests import ExportRequest, request_from
from looped_actor.loop import EarlyExit, Memory
from looped_actor.models.arms import STARTS
from looped_actor.models.cost import count_parameters
from looped_actor.policy.card import Card, read_card, write_card
from looped_actor.policy.policy import FORMAT as POLICY_FORMAT
from looped_actor.policy.policy import WEIGHTS_FILE, Policy, finished_policy, save_policy
from looped_actor.runs.folder import TEST_FILE
from looped_actor.utils.codec import to_json
from looped_actor.utils.files import read_json, write_whole
from looped_actor.utils.tensors import named_leaves, read_weights

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
    return export_policy(policy, request_from(ExportRequest, asked), pathlib.Path(out))


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
    there = read_card(policy.folder)
    known = {"trained": there.trained if there else "", **_measured(policy, request, there)}
    write_card(card_of(policy, **known), out.resolve().name, out)
    write_whole(out / PROGRAM_FILE, bytes(exported.serialize()))
    write_whole(out / SIGNATURE_FILE, (json.dumps(signature, indent=1) + "\n").encode())
    return signature


def card_of(policy: Policy, **known: Any) -> Card:
    """What a policy is; `known` has the fields of `Card` that it cannot tell: training and success."""
    config = policy.config
    return Card(
        task=config.task,
        arm=config.arm,
        learner=config.algorithm,
        parameters=count_parameters(policy.run.net),
        steps=config.total_steps,
        max_loops=(policy.halting or policy.run.net).max_loops,
        threshold=getattr(policy.halting, "threshold", None),
        start=str(policy.starting),
        **known,
    )


def _measured(policy: Policy, request: ExportRequest, card: Card | None) -> dict[str, Any]:
    """What is known of its success: only of the very policy that was tested, thinking as it did then."""
    finished = finished_policy(policy.folder)
    if finished is None or policy.rule(request) is not None or request.start is not None:
        return {}
    tested = read_weights(finished / WEIGHTS_FILE, POLICY_FORMAT)
    if any(not np.array_equal(tested[name], leaf) for name, leaf in named_leaves(policy.weights).items()):
        return {}
    if card is not None:
        return {name: getattr(card, name) for name in ("success", "interval_95", "count", "loops")}
    file = policy.folder / TEST_FILE
    return measured(read_json(file)) if file.is_file() else {}


def measured(facts: dict[str, Any]) -> dict[str, Any]:
    """The fields of a card from an evaluation; none where it played a world that is not solved or failed."""
    if "interval_95" not in facts:
        return {}
    known = {"count": facts.get("levels", facts.get("episodes")), "interval_95": tuple(facts["interval_95"])}
    return known | {name: facts[name] for name in ("success", "loops")}


def _shape(shape: Any) -> dict[str, Any]:
    return {"shape": [BATCH, *shape.shape[1:]], "dtype": str(shape.dtype)}
