"""Configurations of earlier versions, translated to those of today."""

import math
from typing import Any, get_args

from looped_actor.names import RobotName
from looped_actor.utils.codec import ConfigError

TYPES = {"OnlineConfig": "PuzzleConfig", "OfflineConfig": "RobotConfig", "OwnConfig": "CustomConfig"}
"""Type names of version 0.2, with those of today."""
DROPPED = ("scale", "keep_checkpoints", "max_skipped_in_a_row", "synchronous", "double_precision")
RECIPE = ("bootstrap_timeouts", "shuffle", "hard_resets", "cell_statistics", "scale_before_learning")
"""Fields of version 0.2's algorithms that `recipe` replaces."""
AUTHORS = {
    "bootstrap_timeouts": (False,),
    "shuffle": ("steps",),
    "hard_resets": (100,),
    "cell_statistics": (True,),
    "scale_before_learning": (True,),
}


def upgrade_config(data: Any, where: str, resumable: bool) -> Any:
    """Return a configuration as today's version would have written it; those of today are not changed.

    With `resumable`, raise an error if the run used an option that training does not have any more.
    """
    if not isinstance(data, dict):
        return data
    kind = data.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        if kind is not None or not isinstance(data.get("task"), str):
            return data
        kind = "OfflineConfig" if data["task"] in get_args(RobotName) else "OnlineConfig"
    data = _copy(data)
    missing = _missing_options(data)
    if missing and (resumable or "window" in missing):
        raise ConfigError(
            f"{where} was written by version 0.2 with {', '.join(missing)}, which this version does not "
            "have: continue the run with version 0.2"
        )
    for name in DROPPED:
        data.pop(name, None)
    data["type"] = TYPES[kind]
    return {"OnlineConfig": _puzzle, "OfflineConfig": _robot, "OwnConfig": _custom}[kind](data)


def _copy(data: Any) -> Any:
    return {name: _copy(value) for name, value in data.items()} if isinstance(data, dict) else data


def _part(data: dict, name: str) -> dict:
    """Take a nested object out of the data; an empty one if it is missing or something else."""
    part = data.pop(name, None)
    return part if isinstance(part, dict) else {}


def _missing_options(data: dict) -> list[str]:
    """Return options in use that this version does not have."""
    used = [name for name in ("window",) if data.get(name) is not None]
    used += ["double_precision"] if data.get("double_precision") and not _x64() else []
    learner = data.get("learner", "ppo")
    algorithm = data.get(learner) if isinstance(learner, str) else None
    if not isinstance(algorithm, dict):
        return used
    used += [name for name in ("min_cap", "measure_gradients") if algorithm.get(name)]
    found = {name: algorithm[name] for name in RECIPE if name in algorithm}
    authors = [value in AUTHORS[name] for name, value in found.items()]
    if any(authors) and not all(authors) and learner == "ppo":
        used.append("a part of the authors' recipe")
    return used


def _x64() -> bool:
    import jax

    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def _puzzle(data: dict) -> dict:
    learner = data.pop("learner", "ppo")
    parts = {name: _part(data, name) for name in ("ppo", "imitation")}
    kind = {"ppo": "PPOConfig", "imitation": "ImitationConfig"}.get(str(learner), learner)
    algorithm = parts.get(str(learner), {})
    data["recipe"] = "authors" if algorithm.get("cell_statistics") else "default"
    data["algorithm"] = _algorithm(algorithm, kind)
    data["arm"] = _arm(data)
    data.pop("window", None)
    levels = data.get("levels")
    if isinstance(levels, dict):
        for name in ("train_checksum", "held_out_checksum"):  # in provenance.json since 0.2
            levels.pop(name, None)
        for recipe in (levels.get("recipe"), levels.get("held_out_recipe")):
            if isinstance(recipe, dict):
                recipe.pop("node_limit", None)
    return data


def _robot(data: dict) -> dict:
    core = data.get("core")
    initial = core.get("initial") if isinstance(core, dict) else None
    token = initial.get("token_deviation") if isinstance(initial, dict) else None
    data["recipe"] = "default" if token is None else "authors"
    gciql = _part(data, "gciql")
    if "behaviour_cost" in gciql:
        gciql["bc_weight"] = gciql.pop("behaviour_cost")
    data["algorithm"] = {**gciql, "type": "GCIQLConfig"}
    learn, arm = data.pop("learn", "all"), _arm(data)
    data["arm"] = None if learn == "critics" else arm
    if isinstance(data.get("data"), dict):
        part = data["data"]
        for name in ("train_checksum", "held_out_checksum"):
            part.pop(name, None)
        if "mapped" in part:
            part["on_disk"] = part.pop("mapped")
    return data


def _custom(data: dict) -> dict:
    ppo = _part(data, "ppo")
    data["recipe"] = "authors" if ppo.get("cell_statistics") else "default"
    data["algorithm"] = _algorithm(ppo, "PPOConfig")
    data["net"] = data.pop("arm", "looped")
    return data


def _algorithm(data: dict, kind: Any) -> dict:
    data = {**data, "type": kind}
    for name in (*RECIPE, "min_cap", "measure_gradients"):
        data.pop(name, None)
    if "trace" in data:
        data["gae_lambda"] = data.pop("trace")
    return data


def _arm(data: dict) -> dict:
    """Take the fields of the arm out of the data, and return the arm."""
    name, start = data.pop("arm", "looped"), data.pop("start", "fixed")
    drc, mlp, halting = _part(data, "drc"), data.pop("mlp", None), _part(data, "halting")
    core = _core(_part(data, "core"))
    if name == "drc":
        return {**drc, "type": "RepeatedConvLSTM"}
    if name == "mlp":
        return {"type": "Perceptron", **({} if mlp is None else {"hidden": mlp})}
    if name in ("iso-params", "iso-flops"):
        copies = 1 if name == "iso-params" else halting.get("max_loops", 16)
        return {"type": "Stacked", "core": core, "copies": copies}
    if name in ("fixed-4", "fixed-8", "fixed-16"):
        halting = {"type": "FixedLoops", "loops": int(name.removeprefix("fixed-"))}
    elif name == "looped":
        halting = {**halting, "type": "PolicyKL"}
    else:
        return {"type": name}  # not an arm: the error that follows says so
    return {"type": "Looped", "core": core, "halting": halting, "carry_latent": start != "fixed"}


def _core(core: dict) -> dict:
    """Return a core, whose hidden width is now a number, and whose convolution the tokenizer decides."""
    core = {**core, "type": "CoreConfig"}
    multiple, expansion = core.pop("hidden_multiple", 256), core.pop("expansion", 4.0)
    width = core.get("width", 128)
    if all(
        isinstance(value, int | float) and 2**-31 < value < 2**31 for value in (multiple, expansion, width)
    ):
        core["hidden"] = math.ceil(expansion * width * 2 / 3 / multiple) * multiple
    for name in ("convolution", "initial"):
        core.pop(name, None)
    return core
