"""`looped-actor bench`: timings, as ratios; `plan`: times of other chips; `tune`: what suits this one."""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from looped_actor.cli.shared import DeviceOptions, Json
from looped_actor.cli.train import RunOptions
from looped_actor.utils.errors import UserError

if TYPE_CHECKING:
    from looped_actor.planning.bench_work import Saving

app = tyro.extras.SubcommandApp()


@app.command(name="loop")
def loop(
    *,
    batch: int | None = None,
    chunk: int | None = None,
    rounds: int | None = None,
    expectation_error: float = 0.0,
    quick: bool = False,
    as_json: Json = False,
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

    from looped_actor.cli.tables import gradient_table
    from looped_actor.planning.bench_gradient import LoopBench, bench_loop

    preset = LoopBench(batch=64, rounds=2, seconds=50, cache_control=False) if quick else LoopBench()
    given = {"batch": batch, "chunk": chunk, "rounds": rounds, "expectation_error": expectation_error}
    bench = dataclasses.replace(preset, **{k: v for k, v in given.items() if v is not None})
    with _bar() as progress:
        timings = bench_loop(bench, progress)
    if as_json:
        print(json.dumps({name: timing._asdict() for name, timing in timings.items()}))
        return
    Console().print(gradient_table(timings, bench.batch))


def _at_least_one(**options: float | None) -> None:
    for name, value in options.items():
        if value is not None and not value >= 1:
            raise UserError(f"--{name} is {value}; it must be at least 1")


@dataclass(frozen=True)
class WorkOptions(DeviceOptions):
    """What to time, and how often."""

    policy: Annotated[pathlib.Path | None, tyro.conf.Positional] = None
    """Folder or name of a policy, as `looped-actor policies` lists. Default: random weights."""
    loops: Literal["boxoban", "rush_hour", "easy"] = "boxoban"
    """Without a policy: the depths asked for, with means of 9.8, 15.1 and 4 of 16."""
    levels: pathlib.Path | None = None
    """With a policy: a bank to play. Default: new levels of the policy's recipe."""
    rounds: int = 4
    """Turns each contestant takes after compiling; the fastest counts."""
    quick: bool = False
    """Answer within a minute, from so little work that the draining of the stream shows. The time of an
    iteration is then the sum of its halves."""
    as_json: Json = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        _at_least_one(rounds=self.rounds)
        if self.policy is None and self.levels is not None:
            raise UserError(
                "--levels is for a policy: random weights are asked for depths, whatever the level"
            )


@app.command(name="act")
def act(*, work: WorkOptions) -> None:
    """Time a rollout: streaming against the frozen version, Iso-FLOPs, and the bare engine.

    With a policy: on its own task. Without: the paper's net (width 128, cap 16) with random weights on
    10x10 boards, asked for depths like those of the paper's policies.

    Example: looped-actor bench act --quick --json

    Example: looped-actor bench act runs/first
    """
    from looped_actor.planning.bench_work import bench_acting

    _bench(bench_acting, "rollout", work)


@app.command(name="train")
def train(*, work: WorkOptions) -> None:
    """Time an iteration of PPO, and its rollout and updates apart, as `bench act` does.

    Example: looped-actor bench train --quick

    Example: looped-actor bench train results/micro_boxoban --json
    """
    import functools

    from looped_actor.planning.bench_work import bench_training

    _bench(functools.partial(bench_training, whole=not work.quick), "iteration", work)


@app.command(name="eval")
def evaluate(*, work: WorkOptions) -> None:
    """Time an evaluation, as `bench act` does. The frozen version plays on until its last level ends.

    Example: looped-actor bench eval results/micro_rush_hour --quick
    """
    from looped_actor.planning.bench_work import bench_evaluation

    _bench(bench_evaluation, "evaluation", work)


def _bench(bench: Callable[..., dict[str, "Saving"]], main: str, asked: WorkOptions) -> None:
    """Time some work and print it; `main` is what the JSON is about, the others are within it."""
    begin = time.perf_counter()
    from rich.console import Console

    from looped_actor.cli.tables import savings_table
    from looped_actor.planning.bench_work import Turns, asked_work, policy_work
    from looped_actor.puzzles.banks import open_bank
    from looped_actor.runs.load import load_policy

    mesh = asked.start()
    with _bar() as progress:
        progress(0.0, "preparing levels")
        if asked.policy is None:
            work, what = asked_work(asked.loops, asked.quick), f"random weights, loops like {asked.loops}"
        else:
            bank = None if asked.levels is None else open_bank(asked.levels)
            work, what = policy_work(load_policy(asked.policy), bank, asked.quick), str(asked.policy)
        turns = Turns(asked.rounds, begin + 50) if asked.quick else Turns(asked.rounds)
        savings = bench(work, mesh, turns, progress)
    if asked.as_json:
        rest = {name: saving._asdict() for name, saving in savings.items() if name != main}
        about = {"work": main, "policy": what, "devices": mesh.size}
        print(json.dumps({**about, **savings[main]._asdict(), **rest}))
    else:
        Console().print(savings_table(savings, what, mesh.size))


@contextmanager
def _bar() -> Iterator[Callable[[float, str], Any]]:
    """A bar on the terminal; told the fraction done, and what comes next."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    from looped_actor.utils.progress import Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bar(*columns, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda fraction, what: bar.update(task, completed=fraction, description=what)


def plan(
    *,
    run: RunOptions,
    topology: str = "v5e:1",
    loops: float | None = None,
    chunk: int | None = None,
    slots: int | None = None,
    no_cache: bool = False,
    as_json: Json = False,
) -> None:
    """Estimate a run on TPUs or GPUs that are not here, by compiling its programs for them.

    Memory, kernels and exchanges are what the compiler plans, times are estimates from its text. Needs the
    extra `plan`; for GPUs jax-cuda12-plugin and jax-cuda12-pjrt. Compiling takes minutes, and is kept.

    Example: looped-actor plan boxoban --scale paper --topology v5e:2x4

    Example: looped-actor plan cube-double --scale paper --topology h100:8 --json

    Args:
      topology: The chips: v5e, v5p, v6e or h100, and how many along each side, as v5e:16x16 or h100:8.
      loops: Mean loops of a decision. Default: as the paper reports them, or 0.6 of the cap.
      chunk: Examples that are learned from together. Default: what suits the chip.
      slots: States that are thought about together. Default: what suits the chip.
      no_cache: Compile anew, and keep nothing in the user's cache folder.
      as_json: Print one JSON object instead of tables.
    """
    from rich.console import Console

    from looped_actor.cli.tables import plan_tables
    from looped_actor.loop.hardware import computing
    from looped_actor.planning.chips import Topology
    from looped_actor.planning.plan import default_cache, plan_run
    from looped_actor.runs.registry import run_of

    _at_least_one(chunk=chunk, slots=slots, loops=loops)
    chips = Topology.named(topology)
    planned = run_of(run.chosen, mesh=chips.compile_only_mesh(), own=run.own)
    with Console(stderr=True).status(f"planning for {topology}") as status, computing(chunk, slots):
        kept = None if no_cache else default_cache()
        found = plan_run(planned, chips, loops=loops, cache=kept, progress=status.update)
    if as_json:
        print(json.dumps(found.facts))
        return
    for table in plan_tables(found):
        Console().print(table)


@app.command(name="serve")
def serve(
    policy: Annotated[pathlib.Path | None, tyro.conf.Positional] = None,
    /,
    *,
    seconds: float = 10.0,
    rounds: int = 2,
    depths: Literal["boxoban", "rush_hour", "easy"] = "boxoban",
    as_json: Json = False,
) -> None:
    """Ask two servers of one policy the same: one of slots, and the obvious one, of batches.

    Throughput of 64 askers at a time, then latencies at 50 and 80% of what the slower one can do, asked at
    random times. All of it on this machine; it ends after about 12 loads of so many seconds.

    Example: looped-actor bench serve --seconds 5 --json

    Args:
      policy: Folder of a run or policy. Default: the paper's net for Boxoban, with random weights.
      seconds: How long each load lasts.
      rounds: Turns of each server.
      depths: How long thoughts are, as in `bench loop`.
      as_json: Print one JSON object instead of a table.
    """
    from rich.console import Console

    from looped_actor.cli.tables import serving_table
    from looped_actor.planning.bench_serving import ServeBench, bench_serving

    _at_least_one(rounds=rounds, seconds=seconds)
    with _bar() as progress:
        found = bench_serving(policy, ServeBench(seconds, rounds, depths), progress)
    if as_json:
        print(json.dumps(found))
        return
    Console().print(serving_table(found))


def tune(*, on: DeviceOptions, rounds: int = 4, as_json: Json = False) -> None:
    """Find how much to compute at once on this hardware, and remember it for every later command.

    Rollouts and updates of the paper's net are timed for a few numbers of slots and chunks. Results change by
    rounding only; a run that was begun before goes on, but not bit for bit.

    Example: looped-actor tune

    Args:
      rounds: Turns that each candidate takes after compiling; the fastest counts.
      as_json: Print one JSON object instead of a table.
    """
    from rich.console import Console

    from looped_actor.cli.tables import tuned_table
    from looped_actor.loop.hardware import remember, tuned_file
    from looped_actor.planning.tune import tune as time_candidates
    from looped_actor.planning.tune import tuning_work

    _at_least_one(rounds=rounds)
    mesh = on.start()
    with _bar() as progress:
        found = time_candidates(tuning_work(mesh), mesh, rounds, progress)
    remember(found.kind, found.chunk * found.latent, found.slot * found.latent)
    if as_json:
        print(json.dumps(found._asdict() | {"chunk": found.chunk, "slot": found.slot}))
        return
    Console().print(tuned_table(found))
    print(f"remembered in {tuned_file()}; remove that file to forget it")
