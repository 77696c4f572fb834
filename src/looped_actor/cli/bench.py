"""`looped-actor bench`: timings, as ratios taken in one run."""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from looped_actor.experiments.bench import Saving

Loops = Literal["boxoban", "rush_hour", "easy"]
Policy = Annotated[pathlib.Path | None, tyro.conf.Positional]

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
    from rich.table import Table

    from looped_actor.evaluation.asked import MAX_LOOPS
    from looped_actor.evaluation.loop_bench import LoopBench, bench_loop

    preset = LoopBench(batch=64, rounds=2, seconds=50, cache_control=False) if quick else LoopBench()
    given = {"batch": batch, "chunk": chunk, "rounds": rounds, "expectation_error": expectation_error}
    bench = dataclasses.replace(preset, **{k: v for k, v in given.items() if v is not None})

    with _bar() as progress:
        timings = bench_loop(bench, progress)
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


@app.command(name="act")
def act(
    policy: Policy = None,
    /,
    *,
    loops: Loops = "boxoban",
    levels: pathlib.Path | None = None,
    rounds: int = 4,
    devices: int | None = None,
    quick: bool = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Time a rollout: streaming against the frozen version, Iso-FLOPs, and the bare engine.

    With a policy: on its own task. Without: the paper's net (width 128, cap 16) with random weights on
    10x10 boards, asked for depths like those of the paper's policies.

    Example: looped-actor bench act --quick --json

    Example: looped-actor bench act runs/first

    Args:
      policy: The folder of a run, or of a policy that a run has written. Default: random weights.
      loops: Without a policy: the depths asked for, with means of 9.8, 15.1 and 4 of 16.
      levels: With a policy: a bank to play. Default: new levels of the policy's recipe.
      rounds: Turns each contestant takes after compiling; the fastest counts.
      devices: Use so many. Default: all there are; of a CPU, one for each core, up to 8.
      quick: Answer within a minute, from so little work that the draining of the stream shows.
      as_json: Print one JSON object instead of a table.
    """
    from looped_actor.experiments.bench import bench_acting

    _bench(bench_acting, "rollout", policy, loops, levels, rounds, devices, quick, as_json)


@app.command(name="train")
def train(
    policy: Policy = None,
    /,
    *,
    loops: Loops = "boxoban",
    levels: pathlib.Path | None = None,
    rounds: int = 3,
    devices: int | None = None,
    quick: bool = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Time an iteration of PPO, and its rollout and updates apart, as `bench act` does.

    Example: looped-actor bench train --quick

    Example: looped-actor bench train results/micro_boxoban --json

    Args:
      policy: The folder of a run, or of a policy that a run has written. Default: random weights.
      loops: Without a policy: the depths asked for, with means of 9.8, 15.1 and 4 of 16.
      levels: With a policy: a bank to play. Default: new levels of the policy's recipe.
      rounds: Turns each contestant takes after compiling; the fastest counts.
      devices: Use so many. Default: all there are; of a CPU, one for each core, up to 8.
      quick: Answer within a minute, from so little work that the draining of the stream shows; the time of
        an iteration is then the sum of its halves'.
      as_json: Print one JSON object, of the iteration and in it of its rollout and update.
    """
    import functools

    from looped_actor.experiments.bench import bench_training

    work = functools.partial(bench_training, whole=not quick)
    _bench(work, "iteration", policy, loops, levels, rounds, devices, quick, as_json)


@app.command(name="eval")
def evaluate(
    policy: Policy = None,
    /,
    *,
    loops: Loops = "boxoban",
    levels: pathlib.Path | None = None,
    rounds: int = 4,
    devices: int | None = None,
    quick: bool = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Time an evaluation, as `bench act` does. The frozen version plays on until its last level ends.

    Example: looped-actor bench eval results/micro_rush_hour --quick

    Args:
      policy: The folder of a run, or of a policy that a run has written. Default: random weights.
      loops: Without a policy: the depths asked for, with means of 9.8, 15.1 and 4 of 16.
      levels: With a policy: a bank to play. Default: new levels of the policy's recipe.
      rounds: Turns each contestant takes after compiling; the fastest counts.
      devices: Use so many. Default: all there are; of a CPU, one for each core, up to 8.
      quick: Answer within a minute, from so little work that the draining of the stream shows.
      as_json: Print one JSON object instead of a table.
    """
    from looped_actor.experiments.bench import bench_evaluation

    _bench(bench_evaluation, "evaluation", policy, loops, levels, rounds, devices, quick, as_json)


def _bench(
    bench: Callable[..., dict[str, "Saving"]],
    main: str,
    policy: pathlib.Path | None,
    loops: str,
    levels: pathlib.Path | None,
    rounds: int,
    devices: int | None,
    quick: bool,
    as_json: bool,
) -> None:
    """Time some work and print it; `main` is what the JSON is about, the others are within it."""
    begin = time.perf_counter()
    from looped_actor.devices import start_devices
    from looped_actor.experiments.bench import Turns, asked_work, policy_work
    from looped_actor.experiments.config import OnlineConfig
    from looped_actor.experiments.policies import load_policy
    from looped_actor.levels import open_bank

    if rounds < 1:
        raise ValueError(f"--rounds is {rounds}; it must be at least 1")
    if policy is None and levels is not None:
        raise ValueError("--levels is for a policy: random weights are asked for depths, whatever the level")
    mesh = start_devices(devices)
    with _bar() as progress:
        progress(0.0, "preparing levels")
        if policy is None:
            work, what = asked_work(loops, quick), f"random weights, loops like {loops}"
        else:
            loaded = load_policy(policy)
            if not isinstance(loaded.config, OnlineConfig):
                raise ValueError(f"{policy} is of {loaded.config.task}: only policies of puzzles are timed")
            bank = None if levels is None else open_bank(levels)
            work, what = policy_work(loaded.config, loaded.weights, bank, quick), str(policy)
        turns = Turns(rounds, begin + 50) if quick else Turns(rounds)
        savings = bench(work, mesh, turns, progress)
    if as_json:
        rest = {name: saving._asdict() for name, saving in savings.items() if name != main}
        print(
            json.dumps(
                {"work": main, "policy": what, "devices": mesh.size, **savings[main]._asdict(), **rest}
            )
        )
    else:
        _print_savings(savings, what, mesh.size)


def _print_savings(savings: dict[str, "Saving"], what: str, devices: int) -> None:
    from rich.console import Console
    from rich.table import Table

    cap = next(iter(savings.values())).max_loops
    many = "device" if devices == 1 else "devices"
    table = Table(title=f"{what}, {devices} {many}: time relative to {cap} loops for all")
    table.add_column("", no_wrap=True)
    titles = (
        "mean loops",
        f"ideal\n(mean/{cap})",
        "looped",
        "Iso-FLOPs",
        "executed/\nasked",
        "loops/s\nover bare",
    )
    for title in titles:
        table.add_column(title, justify="right")
    for name, saving in savings.items():
        ratios = (
            saving.mean_loops / cap,
            saving.over_frozen,
            saving.iso_flops_over_frozen,
            saving.executed_over_asked,
            saving.over_bare,
        )
        table.add_row(name, f"{saving.mean_loops:.1f}", *(f"{ratio:.3f}" for ratio in ratios))
    Console().print(table)


@contextmanager
def _bar() -> Iterator[Callable[[float, str], Any]]:
    """A bar on the terminal; told the fraction done, and what comes next."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda fraction, what: bar.update(task, completed=fraction, description=what)
