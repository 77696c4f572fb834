"""`looped-actor eval`: success rate and loops of a policy, with intervals."""

import json
import pathlib
from typing import Any

from looped_actor.cli.shared import DeviceOptions, Folder, Json, PolicyOptions, check_files, progress_bar
from looped_actor.evaluation.options import EvaluationOptions


def evaluate(
    policy: Folder,
    /,
    *,
    evaluation: EvaluationOptions,
    of: PolicyOptions,
    devices: DeviceOptions,
    out: pathlib.Path | None = None,
    as_json: Json = False,
) -> None:
    """Play every level of a bank once, or episodes of an environment, with the most probable actions.

    Prints the success rate with its 95% interval, success and loops by the length of the optimal solution or
    by task, and a histogram of loops per decision. For an environment that does not report success, prints
    the mean return. Cap and threshold of the loop can differ from training.

    Example: looped-actor eval runs/first --json

    Example: looped-actor eval runs/first --checkpoint best --max-loops 32 --threshold 1e-4

    Example: looped-actor eval runs/cubes --count 50 --tasks 1 2

    Example: looped-actor eval runs/walk --code examples/custom_environment.py

    Args:
      policy: Folder of a run or of its policy, or a name that `looped-actor pretrained` lists.
      out: File for the JSON.
      as_json: Print JSON instead of a table.
    """
    of.check_policies(policy)
    check_files(evaluation.levels, evaluation.solutions)
    from looped_actor.runs.evaluate import evaluate_policy
    from looped_actor.utils.files import write_whole

    mesh = devices.start()
    loaded = of.policy(policy)
    with progress_bar("playing") as progress:
        results = evaluate_policy(loaded, evaluation, mesh, progress)
    text = json.dumps(results, indent=1)
    if out is not None:
        write_whole(out, (text + "\n").encode())
    if as_json:
        print(text)
    else:
        _print_evaluation(results)


def _print_evaluation(results: dict[str, Any]) -> None:
    from rich.console import Console

    from looped_actor.cli.tables import evaluation_table

    console = Console(markup=False)
    console.print(evaluation_table(results))
    histogram = {int(loops): n for loops, n in results["loop_histogram"].items() if n}
    decisions, most = sum(histogram.values()), max(histogram.values())
    console.print(f"loops of {decisions:,} decisions; {results['capped']:.1%} stopped by the cap")
    for loops, n in sorted(histogram.items()):
        console.print(f"{loops:4d} {'█' * max(1, round(40 * n / most))} {n / decisions:.1%}", highlight=False)
