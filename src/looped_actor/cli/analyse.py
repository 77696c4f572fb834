"""`looped-actor analyse` and `compare`: tables, figures and sentences about trained policies."""

import pathlib
from typing import Annotated

import tyro

from looped_actor.cli.progress import progress_bar

Runs = Annotated[tuple[pathlib.Path, ...], tyro.conf.Positional]

app = tyro.extras.SubcommandApp()


def _tell(name: str, out: pathlib.Path, sentence: str) -> None:
    print(sentence)
    print(f"{out / name}.csv, .png, .svg")


@app.command(name="probes")
def probes(
    runs: Runs,
    /,
    *,
    levels: tuple[pathlib.Path, ...] = (),
    count: int | None = None,
    pushes: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16),
    loops: tuple[int, ...] = (1, 2, 4, 8, 16),
    seeds: int = 3,
    epochs: int = 40,
    checkpoint: str | None = None,
    node_limit: int = 3_000_000,
    workers: int | None = None,
    devices: int | None = None,
    out: pathlib.Path = pathlib.Path("analysis"),
) -> None:
    """Is the plan in the latent? Read the pushes of an optimal solution from it, loop by loop.

    Solves the levels, records the latents of every run (several runs are checkpoints of one kind), and
    trains small attentive probes for every push and loop, and for the input embedding. Writes probes.csv,
    its figure, and the probes themselves, which `replay --probes` can draw. Interrupted, the same command
    goes on.

    Example: looped-actor analyse probes runs/first --out analysis/first

    Example: looped-actor analyse probes runs/a runs/b runs/c --levels levels/boxoban-unfiltered-valid.levels
    levels/boxoban-medium-valid.levels --count 25000

    Args:
      runs: Folders of runs of Boxoban, or of policies that runs have written.
      levels: Banks to probe on. Default: the one held out in training.
      count: Levels of each bank. Default: all.
      pushes: Which pushes of the solution to read: 1 is the next.
      loops: After which loops; those beyond a policy's cap are left out.
      seeds: Probes of each kind.
      epochs: Rounds of training over the levels.
      checkpoint: Of runs: best, latest, or an iteration. Default: the finished policy, or else latest.
      node_limit: States after which the search for a solution gives up; such levels are left out.
      workers: Processes that solve. Default: one for each core.
      devices: Use so many of each process. Default: all; of a CPU, one for each core, up to 8.
      out: Folder for what is written.
    """
    from looped_actor.analysis.probes import ProbeConfig
    from looped_actor.devices import start_devices
    from looped_actor.experiments.probing import ProbeRequest, analyse_probes

    config = ProbeConfig(seeds=seeds, epochs=epochs)
    request = ProbeRequest(levels, count, pushes, loops, config, checkpoint, node_limit, workers)
    sentence = analyse_probes(runs, start_devices(devices), out, request, progress_bar)
    _tell("probes", out, sentence)


@app.command(name="difficulty")
def difficulty(
    runs: Runs,
    /,
    *,
    levels: pathlib.Path | None = None,
    count: int | None = None,
    checkpoint: str | None = None,
    node_limit: int = 300_000,
    workers: int | None = None,
    devices: int | None = None,
    out: pathlib.Path = pathlib.Path("analysis"),
) -> None:
    """Is computation spent where it is needed? Loops of each state against its distance from solved.

    Plays levels and solves every state that was visited: remaining pushes of Boxoban, moves of Rush Hour,
    for solved and failed episodes, with counts and intervals.

    Example: looped-actor analyse difficulty runs/first --count 500 --out analysis/first

    Args:
      runs: Folders of runs of puzzles, or of policies that runs have written.
      levels: The bank to play. Default: the one held out in training.
      count: Play only the first so many levels.
      checkpoint: Of runs: best, latest, or an iteration. Default: the finished policy, or else latest.
      node_limit: States after which a search gives up; the state is then counted as unknown.
      workers: Processes that solve. Default: one for each core.
      devices: Use so many of each process. Default: all; of a CPU, one for each core, up to 8.
      out: Folder for what is written.
    """
    from looped_actor.devices import start_devices
    from looped_actor.experiments.analyses import analyse_difficulty

    sentence = analyse_difficulty(
        runs,
        start_devices(devices),
        out,
        levels=levels,
        count=count,
        checkpoint=checkpoint,
        node_limit=node_limit,
        workers=workers,
        stage=progress_bar,
    )
    _tell("difficulty", out, sentence)


@app.command(name="histogram")
def histogram(
    runs: Runs,
    /,
    *,
    levels: pathlib.Path | None = None,
    count: int | None = None,
    episodes: int | None = None,
    checkpoint: str | None = None,
    devices: int | None = None,
    out: pathlib.Path = pathlib.Path("analysis"),
) -> None:
    """How many loops do decisions take? One panel for each environment, for any set of runs.

    Example: looped-actor analyse histogram runs/boxoban runs/rush-hour runs/cubes --count 200 --episodes 5

    Args:
      runs: Folders of runs of any environment, or of policies that runs have written.
      levels: Of puzzles: the bank to play. Default: the one held out in training.
      count: Of puzzles: play only the first so many levels.
      episodes: Of worlds: episodes of each task. Default: as in training.
      checkpoint: Of runs: best, latest, or an iteration. Default: the finished policy, or else latest.
      devices: Use so many of each process. Default: all; of a CPU, one for each core, up to 8.
      out: Folder for what is written.
    """
    from looped_actor.devices import start_devices
    from looped_actor.experiments.analyses import analyse_histogram

    sentence = analyse_histogram(
        runs,
        start_devices(devices),
        out,
        levels=levels,
        count=count,
        episodes=episodes,
        checkpoint=checkpoint,
        stage=progress_bar,
    )
    _tell("histogram", out, sentence)


@app.command(name="caps")
def caps(
    runs: Runs,
    /,
    *,
    caps: tuple[int, ...] = (1, 2, 4, 8, 16),
    thresholds: tuple[float, ...] = (1e-3,),
    fixed: tuple[int, ...] = (4, 8, 16),
    levels: pathlib.Path | None = None,
    count: int | None = None,
    checkpoint: str | None = None,
    devices: int | None = None,
    out: pathlib.Path = pathlib.Path("analysis"),
) -> None:
    """What if it thought less or more? Success against the cap and the threshold at test time.

    Adaptive loops beside fixed ones of the same policy, and success against the FLOPs of a decision.

    Example: looped-actor analyse caps runs/first --caps 1 2 4 8 16 32 --thresholds 1e-2 1e-3 1e-4

    Args:
      runs: Folders of runs of the looped arm, or of policies that runs have written.
      caps: Most loops of an adaptive decision.
      thresholds: KL below which it halts.
      fixed: Loops of decisions that are not adaptive.
      levels: Of puzzles: the bank to play. Default: the one held out in training.
      count: Play only the first so many levels; of a world, so many episodes of each task.
      checkpoint: Of runs: best, latest, or an iteration. Default: the finished policy, or else latest.
      devices: Use so many of each process. Default: all; of a CPU, one for each core, up to 8.
      out: Folder for what is written.
    """
    from looped_actor.devices import start_devices
    from looped_actor.experiments.analyses import analyse_caps

    sentence = analyse_caps(
        runs,
        start_devices(devices),
        out,
        caps=caps,
        thresholds=thresholds,
        fixed=fixed,
        levels=levels,
        count=count,
        checkpoint=checkpoint,
        stage=progress_bar,
    )
    _tell("caps", out, sentence)


@app.command(name="plot")
def plot(folder: Annotated[pathlib.Path, tyro.conf.Positional], /) -> None:
    """Draw all figures of a folder again, from its tables alone: no policy is needed.

    Example: looped-actor analyse plot analysis/first

    Args:
      folder: Holds tables that `analyse` and `compare` have written.
    """
    from looped_actor.analysis.figures import draw_folder

    for name, sentence in draw_folder(folder).items():
        _tell(name, folder, sentence)


def replay(
    run: Annotated[pathlib.Path, tyro.conf.Positional],
    /,
    *,
    level: int = 0,
    levels: pathlib.Path | None = None,
    checkpoint: str | None = None,
    probes: pathlib.Path | None = None,
    out: pathlib.Path = pathlib.Path("replays"),
    devices: int | None = None,
) -> None:
    """Watch an episode of a puzzle, thought by thought: as one HTML file for any browser, and as a GIF.

    The board, the loops of each step as bars, the probability of each action loop by loop, and with
    --probes the pushes that a probe reads from the latent. The page loads nothing from anywhere.

    Example: looped-actor replay runs/first --level 3

    Example: looped-actor replay runs/first --level 3 --probes analysis/first/probes-0.safetensors

    Args:
      run: The folder of a run of a puzzle, or of a policy that a run has written.
      level: Which level of the bank, counted from 0.
      levels: The bank. Default: the one held out in training.
      checkpoint: Of a run: best, latest, or an iteration. Default: the finished policy, or else latest.
      probes: Probes of this policy, by `looped-actor analyse probes`.
      out: Folder for the files.
      devices: Use so many of each process. Default: all; of a CPU, one for each core, up to 8.
    """
    from looped_actor.analysis.replay import write_html, write_replay_gif
    from looped_actor.devices import start_devices
    from looped_actor.experiments.evaluate import replay_policy

    mesh = start_devices(devices)
    with progress_bar("thinking") as progress:
        made = replay_policy(
            run, mesh, level, levels=levels, checkpoint=checkpoint, probes=probes, progress=progress
        )
    path = out / f"{run.resolve().name}-level{level}"
    write_html(made, path.with_suffix(".html"))
    write_replay_gif(made, path.with_suffix(".gif"))
    ending = "solved" if made.success else "not solved"
    print(f"{ending} in {len(made.steps)} steps: {path}.html, .gif")


def compare(runs: Runs, /, *, out: pathlib.Path = pathlib.Path("analysis")) -> None:
    """Curves and final numbers of several runs in one picture, from what they have written down.

    Example: looped-actor compare runs/looped runs/iso-params runs/iso-flops --out analysis/arms

    Args:
      runs: Folders of runs.
      out: Folder for what is written.
    """
    from looped_actor.experiments.analyses import compare_runs

    _tell("compare", out, compare_runs(runs, out))
