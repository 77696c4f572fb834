"""`looped-actor bench`: timings, as ratios taken in one run."""

import dataclasses
import json
from typing import Annotated

import tyro

app = tyro.extras.SubcommandApp()


@app.command(name="loop")
def loop(
    *,
    batch: int | None = None,
    chunk: int | None = None,
    rounds: int | None = None,
    expectation_error: float = 0.0,
    quick: bool = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Time one gradient of the looped actor: Packed against the frozen scan of 16 loops and Iso-FLOPs.

    Width 128, 10x10 boards, random weights, and depths drawn like the paper's policies on Boxoban
    (mean 9.8 of 16) and Rush Hour (15.1), and like an easy task (4). The contestants take turns; the
    fastest turn of each counts.

    Example: looped-actor bench loop --quick --json

    Args:
      batch: Examples of the minibatch. Default: 128, or 64 with --quick.
      chunk: Examples that Packed loops together. Default: what suits this machine.
      rounds: Turns each contestant takes after compiling. Default: 4, or 2 with --quick if time permits.
      expectation_error: Standard deviation, in loops, of the error in the depth Packed is told to expect.
      quick: Answer within a minute.
      as_json: Print one JSON object, keyed by depth distribution, instead of a table.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from looped_actor.evaluation.loop_bench import MAX_LOOPS, LoopBench, bench_loop

    preset = LoopBench(batch=64, rounds=2, seconds=50, cache_control=False) if quick else LoopBench()
    given = {"batch": batch, "chunk": chunk, "rounds": rounds, "expectation_error": expectation_error}
    bench = dataclasses.replace(preset, **{k: v for k, v in given.items() if v is not None})

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        timings = bench_loop(
            bench, lambda fraction, what: bar.update(task, completed=fraction, description=what)
        )
    if as_json:
        print(json.dumps({name: timing._asdict() for name, timing in timings.items()}))
        return

    table = Table(
        title=f"time of a gradient of {bench.batch} examples, relative to a frozen scan of {MAX_LOOPS} loops"
    )
    table.add_column("loops like", no_wrap=True)
    for title in ("mean", "mean/16", "Packed", "Iso-FLOPs", "Packed/\nchunked", "executed/\nasked"):
        table.add_column(title, justify="right")
    for name, t in timings.items():
        ratios = (t.mean_loops / MAX_LOOPS, *t[1:])
        table.add_row(name, f"{t.mean_loops:.1f}", *("-" if r is None else f"{r:.3f}" for r in ratios))
    Console().print(table)
