"""`looped-actor models`: what the arms of a task cost."""

import json
from typing import Annotated

import tyro

from looped_actor.cli.shared import Json
from looped_actor.names import TaskName
from looped_actor.utils.errors import UserError


def models(
    task: Annotated[TaskName, tyro.conf.Positional] = "boxoban",
    *,
    batch: int = 1024,
    mean_loops: float | None = None,
    as_json: Json = False,
) -> None:
    """Show every arm of a task: parameters, tokens, FLOPs per decision, memory of an update.

    Example: looped-actor models boxoban --batch 256

    Args:
      task: The environment, with its boards and vectors at the paper's sizes.
      batch: Minibatch for which the memory of an update is planned (on this machine's backend).
      mean_loops: Mean loops of the looped arm. Default: the paper's figure, where it reports one.
      as_json: Print one JSON object instead of a table.
    """
    from flax import nnx
    from rich.console import Console

    from looped_actor.cli.tables import arms_table
    from looped_actor.models.arms import arms_for, paper_core
    from looped_actor.models.cost import count_parameters, token_count, update_memory
    from looped_actor.models.tasks import TASKS

    if batch < 1:
        raise UserError(f"--batch is {batch}; it must be at least 1")
    chosen = TASKS[task]
    mean = chosen.reported_mean_loops if mean_loops is None else mean_loops
    core = paper_core(chosen)
    progress = Console(stderr=True)
    rows = {}
    for name, arm in arms_for(chosen).items():
        with progress.status(f"planning an update of {name}"):
            model = nnx.eval_shape(lambda arm=arm: arm.build(chosen, core, nnx.Rngs(0)))
            one, all_loops = chosen.observation(1), arm.max_loops
            rows[name] = {
                "parameters": count_parameters(model),
                "tokens": token_count(model, one),
                "max_loops": all_loops,
                "flops_at_1": model.flops(one, 1) if arm.adaptive else None,
                "flops_at_mean": model.flops(one, mean) if arm.adaptive and mean else None,
                "flops_at_max": model.flops(one, all_loops),
                "update_bytes": update_memory(model, chosen.observation(batch)).activations,
            }
    if as_json:
        print(json.dumps({"task": task, "batch": batch, "mean_loops": mean, "arms": rows}))
        return
    Console().print(arms_table(task, batch, mean, rows))
