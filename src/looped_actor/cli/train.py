"""`looped-actor train`, `resume` and `eval`: from a preset to a number one can trust."""

import json
import math
import pathlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from looped_actor.experiments.config import RunConfig
    from looped_actor.training.runner import Report

Task = Literal["boxoban", "rush-hour", "cube-double", "cube-triple", "puzzle-3x3", "scene"]
Scale = Literal["micro", "small", "paper"]
LearnerName = Literal["ppo", "imitation"]
ArmName = Literal["looped", "iso-params", "iso-flops", "drc", "mlp", "fixed-4", "fixed-8", "fixed-16"]


def train(
    task: Annotated[Task | None, tyro.conf.Positional] = None,
    /,
    *,
    scale: Scale = "micro",
    arm: ArmName | None = None,
    learner: LearnerName | None = None,
    seed: int | None = None,
    steps: float | None = None,
    levels: tuple[pathlib.Path, pathlib.Path] | None = None,
    data: pathlib.Path | None = None,
    config: pathlib.Path | None = None,
    change: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = (),
    out: pathlib.Path | None = None,
    dry_run: bool = False,
    devices: int | None = None,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> None:
    """Train a policy, into a folder that holds all of the run: puzzles by PPO or by imitation of
    their solver, robots offline by GCIQL.

    The folder gets config.json, metrics.csv, TensorBoard events, checkpoints, evaluations on held-out
    levels or on OGBench's tasks, and at the end the policy as safetensors. SIGTERM or Ctrl-C saves and ends;
    `looped-actor resume` goes on exactly from there, and after a crash from the newest checkpoint.

    On several hosts, start the same command on each, with --coordinator, --processes and --process.

    Example: looped-actor train boxoban --out runs/first

    Example: looped-actor train rush-hour --arm iso-flops --steps 2e5 --set ppo.learning_rate=3e-4

    Example: looped-actor train boxoban --learner imitation --out runs/imitation

    Example: looped-actor train cube-double --arm mlp --data data/cube-double-play-v0.npz

    Example: looped-actor train boxoban --scale paper --dry-run

    Args:
      task: The environment. May be left out where --config gives it.
      scale: The preset to start from: two CPU cores and minutes, one GPU and an hour, or the paper.
      arm: What to train. Default: looped.
      learner: Of puzzles: learn from rewards by ppo, or what the solver would do by imitation, which takes
        far fewer steps and has a preset of its own. Default: ppo.
      seed: Of everything random. Default: 0.
      steps: Environment steps, or gradient steps offline, of the whole run. Default: the preset's.
      levels: Of puzzles: banks to learn from and to evaluate on. Default: the preset's, or generated.
      data: Of robots: a dataset as OGBench writes it, with its -val beside it. Default: the preset's, or
        collected.
      config: A config.json to start from, instead of a preset.
      change: Other fields to change, as ppo.learning_rate=3e-4. --dry-run lists all fields.
      out: The folder of the run. Default: runs/TASK-SCALE-ARM-seedN.
      dry_run: Print the configuration and what the run would cost, and stop.
      devices: Use so many of each process. Default: all; of a CPU, one for each core, up to 8.
      coordinator: Of several processes: host:port of the first, or auto on a cluster that JAX knows.
      processes: How many processes there are.
      process: Which one this is, counted from 0.
    """
    from looped_actor.devices import start_devices
    from looped_actor.experiments.runs import begin_run
    from looped_actor.games.catalogue import GAMES

    chosen = _configured(task, scale, arm, learner, seed, steps, levels, data, config, change)
    mesh = start_devices(devices, coordinator, processes, process)
    if dry_run:
        _print_plan(chosen, mesh.size)
        return
    by = [] if learner is None else [learner]
    name = "-".join([chosen.task, chosen.scale, *by, chosen.arm, f"seed{chosen.seed}"])
    folder = out or pathlib.Path("runs", name)
    from looped_actor.cli.progress import progress_bar

    with progress_bar("preparing levels" if chosen.task in GAMES else "preparing data") as progress:
        chosen = begin_run(chosen, folder, progress)
    _train(chosen, folder, mesh)


def resume(
    run: Annotated[pathlib.Path, tyro.conf.Positional],
    /,
    *,
    devices: int | None = None,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> None:
    """Go on with a run from its newest checkpoint, exactly as if it had not been interrupted.

    The number of devices may differ from before; numbers then agree up to rounding.

    Example: looped-actor resume runs/first

    Args:
      run: The folder of the run.
      devices: Use so many of each process. Default: all; of a CPU, one for each core, up to 8.
      coordinator: Of several processes: host:port of the first, or auto on a cluster that JAX knows.
      processes: How many processes there are.
      process: Which one this is, counted from 0.
    """
    from looped_actor.devices import start_devices
    from looped_actor.experiments.runs import read_run

    config = read_run(run)
    mesh = start_devices(devices, coordinator, processes, process)
    _train(config, run, mesh)


def evaluate(
    policy: Annotated[pathlib.Path, tyro.conf.Positional],
    /,
    *,
    levels: pathlib.Path | None = None,
    solutions: pathlib.Path | None = None,
    checkpoint: str | None = None,
    max_loops: int | None = None,
    min_loops: int | None = None,
    threshold: float | None = None,
    count: int | None = None,
    baselines: bool = False,
    tasks: tuple[int, ...] = (1, 2, 3, 4, 5),
    workers: int | None = None,
    devices: int | None = None,
    out: pathlib.Path | None = None,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Play every level of a bank once, or episodes of a world's tasks, with the most probable actions.

    Says the share solved with its 95% interval, success and loops by the length of the optimal solution or
    by task, and how many loops decisions took. The looped arm may think longer or shorter than in training.

    Example: looped-actor eval runs/first --json

    Example: looped-actor eval runs/first --checkpoint best --max-loops 32 --threshold 1e-4

    Example: looped-actor eval runs/cubes --count 50 --tasks 1 2

    Args:
      policy: The folder of a run, or of a policy that a run has written.
      levels: The bank to play. Default: the one held out in training.
      solutions: Optimal solutions of that bank, by `looped-actor levels solve`, where it has no lengths.
      checkpoint: Of a run: best, latest, or an iteration. Default: the finished policy, or else latest.
      max_loops: Another cap.
      min_loops: Another least number of loops.
      threshold: Another KL below which to halt.
      count: Play only the first so many levels; of a world, so many episodes of each task.
      baselines: Play also at random, and puzzles greedily, which is slow.
      tasks: Of a world: which of its five tasks.
      workers: Of a world: processes that step MuJoCo. Default: one for each core.
      devices: Use so many of each process. Default: all; of a CPU, one for each core, up to 8.
      out: A file for the JSON.
      as_json: Print JSON instead of a table.
    """
    from looped_actor.cli.progress import progress_bar
    from looped_actor.devices import start_devices
    from looped_actor.experiments.evaluate import EvaluationRequest, evaluate_policy
    from looped_actor.files import write_whole

    request = EvaluationRequest(
        policy,
        levels,
        solutions,
        checkpoint,
        max_loops,
        min_loops,
        threshold,
        count,
        baselines,
        tasks,
        workers,
    )
    mesh = start_devices(devices)
    with progress_bar("playing") as progress:
        facts = evaluate_policy(request, mesh, progress)
    text = json.dumps(facts, indent=1)
    if out is not None:
        write_whole(out, (text + "\n").encode())
    if as_json:
        print(text)
    else:
        _print_evaluation(facts)


def _configured(
    task: str | None,
    scale: Any,
    arm: Any,
    learner: Any,
    seed: int | None,
    steps: float | None,
    levels: tuple[pathlib.Path, pathlib.Path] | None,
    data: pathlib.Path | None,
    config: pathlib.Path | None,
    change: tuple[str, ...],
) -> "RunConfig":
    from looped_actor.experiments.codec import replaced
    from looped_actor.experiments.config import read_config
    from looped_actor.experiments.presets import preset

    if config is not None:
        chosen = read_config(config)
        if task not in (None, chosen.task):
            raise ValueError(f"{config} is of {chosen.task}, not of {task}")
        if learner not in (None, getattr(chosen, "learner", None)):
            raise ValueError(f"{config} is not of {learner}: change its field learner")
    elif task is None:
        raise ValueError("which environment? looped-actor train boxoban, for example")
    else:
        chosen = preset(task, scale, learner=learner or "ppo")
    for option, value, field in (("--levels", levels, "levels"), ("--data", data, "data")):
        if value is not None and not hasattr(chosen, field):
            raise ValueError(f"{chosen.task} does not learn from {field}: leave {option} out")
    given = {"arm": arm, "seed": seed, "total_steps": steps, "data.train": data and str(data)}
    changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    chosen = replaced(chosen, changes | changes_of(change))
    return _with_banks(chosen, levels) if levels else chosen


def changes_of(options: tuple[str, ...]) -> dict[str, Any]:
    """What `--set FIELD=VALUE` asks for."""
    changes = {}
    for one in options:
        field, equals, text = one.partition("=")
        if not equals:
            raise ValueError(f"--set {one}: write FIELD=VALUE, as ppo.learning_rate=3e-4")
        changes[field] = _value(text)
    return changes


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_banks(config: Any, levels: tuple[pathlib.Path, pathlib.Path]) -> "RunConfig":
    from dataclasses import replace

    from looped_actor.experiments.config import LevelsConfig
    from looped_actor.levels import open_bank

    about = open_bank(levels[0]).info
    named = LevelsConfig(str(levels[0]), str(levels[1]), evaluate_count=config.levels.evaluate_count)
    return replace(config, levels=named, board=(about.height, about.width))


def _train(config: "RunConfig", folder: pathlib.Path, mesh: "Mesh") -> None:
    import jax

    from looped_actor.experiments.runs import train_run
    from looped_actor.training.runner import Ending

    first = jax.process_index() == 0
    with _training_bar(config, shown=first) as report:
        ending = train_run(config, folder, mesh, report)
    if not first:
        return
    if ending is Ending.FINISHED:
        print(f"{folder}: finished; the policy is in {folder / 'policy'}")
    else:
        print(f"{folder}: saved; go on with: looped-actor resume {folder}")


@contextmanager
def _training_bar(config: "RunConfig", shown: bool):
    """Steps, rate, success, loops, and time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    with Progress(
        *columns, console=Console(stderr=True), disable=not shown, speed_estimate_period=600
    ) as bar:
        name = f"{config.algorithm}: {config.task} {config.arm}"
        task = bar.add_task(name, total=None, numbers="compiling")
        begun = False

        def show(report: "Report") -> None:
            nonlocal begun
            loops = f"{report.loops:.1f} loops, {report.utilisation:.0%} of those computed"
            numbers = [f"{report.steps_per_second:,.0f} steps/s", loops]
            if not math.isnan(report.success):  # no episode may have ended
                numbers.append(f"success {report.success:.0%}")
            if report.evaluated is not None:
                numbers.append(f"held out {report.evaluated:.0%}")
            # What was done before a resumption, and what compiling took, say nothing of the time left.
            put = bar.update if begun else bar.reset
            put(task, completed=report.steps, total=report.all_steps, numbers=", ".join(numbers))
            begun = True

        yield show


def _print_plan(config: "RunConfig", devices: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from looped_actor.experiments.codec import field_paths
    from looped_actor.experiments.config import OfflineConfig
    from looped_actor.experiments.estimate import estimate

    fields = Table(title="configuration", show_header=False)
    for path in field_paths(config):
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name)
        fields.add_row(path, str(value))
    cost = estimate(config, devices)
    a_step, experience = "an environment step, learning included", "a rollout"
    if isinstance(config, OfflineConfig):
        a_step, experience = "a gradient step", "the data, on each device"
    table = Table(title="cost", show_header=False)
    hours, kind = cost.seconds / 3600, "device" if cost.devices == 1 else "devices"
    for name, value in (
        ("parameters", f"{cost.parameters:,}"),
        (f"a decision, at {cost.max_loops} loops", f"{cost.flops_per_decision / 1e6:,.1f} MFLOPs"),
        (a_step, f"{cost.flops_per_step / 1e6:,.1f} MFLOPs"),
        ("the whole run, at most", f"{cost.flops_per_step * config.total_steps:.2e} FLOPs"),
        ("iterations and updates", f"{cost.iterations:,} and {cost.updates:,}"),
        ("memory: parameters and optimiser", f"{cost.state_bytes / 2**20:,.1f} MiB"),
        (f"memory: {experience}", f"{cost.experience_bytes / 2**20:,.1f} MiB"),
        ("memory: an update, on each device", f"{cost.update_bytes / 2**20:,.1f} MiB"),
        (
            f"time on {cost.devices} {kind} like this one",
            f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:,.0f} min",
        ),
    ):
        table.add_row(name, value)
    console = Console()
    console.print(fields)
    console.print(table)


def _print_evaluation(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    puzzle = "bank" in facts
    table = Table(title=f"{facts['policy']} on {facts['bank' if puzzle else 'task']}")
    table.add_column("optimal moves" if puzzle else "task", no_wrap=True)
    played = "levels" if puzzle else "episodes"
    for title in (played, "solved", "95% interval", "loops", "steps"):
        table.add_column(title, justify="right")

    def add(name: str, row: dict[str, Any]) -> None:
        low, high = row["interval_95"]
        loops = f"{row['loops']:.2f}" if "loops" in row else "-"
        table.add_row(
            name,
            f"{row[played]:,}",
            f"{row['success']:.1%}",
            f"{low:.1%} - {high:.1%}",
            loops,
            f"{row['mean_steps']:.1f}",
        )

    for row in facts.get("by_optimal_moves", ()):
        low, high = row["moves"]
        add(f"{low} - {high}" if low != high else str(low), row)
    for name, row in facts.get("by_task", {}).items():
        add(name, row)
    table.add_section()
    add("all", facts)
    for name, row in facts.get("baselines", {}).items():
        add(name, row)
    console = Console()
    console.print(table)
    histogram = {int(loops): n for loops, n in facts["loop_histogram"].items() if n}
    decisions, most = sum(histogram.values()), max(histogram.values())
    console.print(f"loops of {decisions:,} decisions; {facts['capped']:.1%} stopped by the cap")
    for loops, n in sorted(histogram.items()):
        console.print(f"{loops:4d} {'█' * max(1, round(40 * n / most))} {n / decisions:.1%}", highlight=False)
