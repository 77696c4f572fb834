"""Export of policies for users of JAX without this package: weights, and a StableHLO program."""

import json
import os
import pathlib
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from looped_actor.algorithms import make_policy
from looped_actor.evaluation.options import ExportOptions, options_from
from looped_actor.loop import Carry, EarlyExit, zero_carry
from looped_actor.models import PolicyOutput
from looped_actor.names import WEIGHTS_FILE
from looped_actor.policy.card import Card, read_card, write_card
from looped_actor.policy.policy import FORMAT as POLICY_FORMAT
from looped_actor.policy.policy import TEST_FILE, Policy, find_policy, save_policy
from looped_actor.utils.codec import to_json
from looped_actor.utils.files import read_json, write_whole
from looped_actor.utils.tensors import named_leaves, read_weights

PROGRAM_FILE = "policy.stablehlo"
SIGNATURE_FILE = "signature.json"
FORMAT = "looped-actor program 1"
BATCH = "batch"
"""Name of the axis whose length is left open."""


def export(policy: Policy, out: str | os.PathLike, **options: Any) -> dict[str, Any]:
    """Write a policy so that it runs without this package, as `looped-actor export` does.

    Args:
      policy: the policy.
      out: folder for the files.
      options: fields of `ExportOptions`, such as `max_loops` and `platforms`.

    Returns:
      The inputs and outputs of the program, as in signature.json.
    """
    return export_policy(policy, options_from(ExportOptions, options), pathlib.Path(out))


def export_policy(policy: Policy, options: ExportOptions, out: pathlib.Path) -> dict[str, Any]:
    """Write a policy and its program into a folder; return the signature of the program."""
    policy = policy.with_carry(options.carry_latent)
    spec, halting = policy.spec, policy.spec.with_loop(options)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), policy.weights)
    # Other executions need to know the size of the batch.
    decide = make_policy(spec.definition, weights, halting, EarlyExit())
    inputs = spec.inputs(options.board)

    (batch,) = jax_export.symbolic_shape(BATCH)
    shapes = [jax.ShapeDtypeStruct((batch, *one.shape), one.dtype) for one in inputs.values()]
    carried: dict[str, Any] = {}
    if policy.carry_latent:
        start = jax.eval_shape(lambda *leaves: _zero_carry(decide(spec.to_observation(leaves))), *shapes)
        carried = start._asdict()
    observed, shapes = len(shapes), [*shapes, *carried.values()]

    def act(*leaves: jax.Array) -> dict[str, Any]:
        carry = Carry(*leaves[observed:]) if carried else None
        output = decide(spec.to_observation(leaves[:observed]), carry=carry)
        assert output.loop is not None
        latent = {} if carry is None else {"latent": carry.update(output.loop.latent).latent}
        return {**spec.outputs(output), "loops": output.loop.loops, **latent}

    exported = jax_export.export(jax.jit(act), platforms=tuple(options.platforms))(*shapes)
    rule = halting or policy.halting
    results = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    names = [*inputs, *carried]
    signature = {
        "format": FORMAT,
        "program": PROGRAM_FILE,
        "platforms": list(exported.platforms),
        "jax": jax.__version__,
        "task": spec.task,
        "arm": spec.arm,
        "learner": spec.learner,
        "halting": None if rule is None else to_json(rule),
        "start": "carried" if policy.carry_latent else "fixed",
        "inputs": {name: _shape(shape) for name, shape in zip(names, shapes, strict=True)},
        "outputs": {name: _shape(shape) for name, shape in results.items()},
    }
    save_policy(policy.config, weights, out)
    card = read_card(policy.folder)
    known = {"trained": card.trained if card else "", **_measured(policy, options, card)}
    write_card(make_card(policy, **known), out.resolve().name, out)
    write_whole(out / PROGRAM_FILE, bytes(exported.serialize()))
    write_whole(out / SIGNATURE_FILE, (json.dumps(signature, indent=1) + "\n").encode())
    return signature


def _zero_carry(output: PolicyOutput) -> Carry:
    assert output.loop is not None
    return zero_carry(output.loop.latent)


def make_card(policy: Policy, **known: Any) -> Card:
    """Return the card of a policy; `known` has the fields that the policy does not hold."""
    spec = policy.spec
    return Card(
        task=spec.task,
        arm=spec.arm,
        learner=spec.learner,
        parameters=spec.parameters,
        steps=policy.config.total_steps,
        max_loops=spec.max_loops,
        threshold=getattr(policy.halting, "threshold", None),
        start="carried" if policy.carry_latent else "fixed",
        **known,
    )


def _measured(policy: Policy, options: ExportOptions, card: Card | None) -> dict[str, Any]:
    """Return results on test levels, if exactly this policy was tested with the loop that is exported."""
    finished = find_policy(policy.folder)
    if finished is None or policy.spec.with_loop(options) is not None or options.carry_latent is not None:
        return {}
    tested = read_weights(finished / WEIGHTS_FILE, POLICY_FORMAT)
    if any(not np.array_equal(tested[name], leaf) for name, leaf in named_leaves(policy.weights).items()):
        return {}
    if card is not None:
        return {name: getattr(card, name) for name in ("success", "interval_95", "count", "loops")}
    file = policy.folder / TEST_FILE
    return card_results(read_json(file)) if file.is_file() else {}


def card_results(results: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a card from evaluation results; none if success was not reported."""
    if "interval_95" not in results:
        return {}
    count = results.get("levels", results.get("episodes"))
    fields = {"count": count, "interval_95": tuple(results["interval_95"])}
    return fields | {name: results[name] for name in ("success", "loops")}


def _shape(shape: Any) -> dict[str, Any]:
    return {"shape": [BATCH, *shape.shape[1:]], "dtype": str(shape.dtype)}
