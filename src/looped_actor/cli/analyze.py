"""`looped-actor analyze`, `compare` and `replay`: tables, figures and sentences about trained policies."""

import pathlib

import tyro

from looped_actor.analysis.requests import (
    CapsRequest,
    DifficultyRequest,
    FrontierRequest,
    HistogramRequest,
    ProbeRequest,
)
from looped_actor.cli.shared import (
    CheckpointOptions,
    DeviceOptions,
    Folder,
    Folders,
    PolicyOptions,
    check_files,
    check_runs,
    progress_bar,
)

app = tyro.extras.SubcommandApp()


def _tell(name: str, out: pathlib.Path, sentence: str) -> None:
    print(sentence)
    print(f"{out / name}.csv, .png, .svg")


@app.command(name="probes")
def probes(runs: Folders, /, *, of: CheckpointOptions, request: ProbeRequest, devices: DeviceOptions) -> None:
    """Is the plan in the latent? Read the pushes of an optimal solution from it, loop by loop.

    Solves the levels, records the latents of every run (several runs are checkpoints of one kind), and
    trains small attentive probes for every push and loop, and for the input embedding. Writes probes.csv,
    its figure, and the probes themselves, which `replay --probes` can draw. If it is interrupted, the same
    command continues.

    Example: looped-actor analyse probes runs/first --out analysis/first

    Example: looped-actor analyse probes runs/a runs/b runs/c --levels levels/boxoban-unfiltered-valid.levels
    levels/boxoban-medium-valid.levels --count 25000

    Args:
      runs: Folders of runs or of their policies, or names that `looped-actor policies` lists.
    """
    of.check_policies(*runs)
    check_files(*request.levels)
    from looped_actor.analysis.plan_probes import analyse_probes

    mesh = devices.start()
    _tell("probes", request.out, analyse_probes(of.policies(runs), request, mesh, progress_bar))


@app.command(name="difficulty")
def difficulty(
    runs: Folders, /, *, of: CheckpointOptions, request: DifficultyRequest, devices: DeviceOptions
) -> None:
    """Is computation spent where it is needed? Loops of each state against its distance from solved.

    Plays levels and solves every state that was visited: remaining pushes of Boxoban, moves of Rush Hour,
    for solved and failed episodes, with counts and intervals.

    Example: looped-actor analyse difficulty runs/first --count 500 --out analysis/first

    Args:
      runs: Folders of runs or of their policies, or names that `looped-actor policies` lists.
    """
    of.check_policies(*runs)
    check_files(request.levels)
    from looped_actor.analysis.difficulty import analyse_difficulty

    mesh = devices.start()
    _tell("difficulty", request.out, analyse_difficulty(of.policies(runs), request, mesh, progress_bar))


@app.command(name="histogram")
def histogram(
    runs: Folders, /, *, of: PolicyOptions, request: HistogramRequest, devices: DeviceOptions
) -> None:
    """How many loops do decisions take? One panel for each environment, for any set of runs.

    Example: looped-actor analyse histogram runs/boxoban runs/rush-hour runs/cubes --count 200 --episodes 5

    Args:
      runs: Folders of runs or of their policies, or names that `looped-actor policies` lists.
    """
    of.check_policies(*runs)
    check_files(request.levels)
    from looped_actor.analysis.histogram import analyse_histogram

    mesh = devices.start()
    _tell("histogram", request.out, analyse_histogram(of.policies(runs), request, mesh, progress_bar))


@app.command(name="caps")
def caps(runs: Folders, /, *, of: PolicyOptions, request: CapsRequest, devices: DeviceOptions) -> None:
    """What if it thought less or more? Success against the cap and the threshold at test time.

    Adaptive loops beside fixed ones of the same policy, and success against the FLOPs of a decision.

    Example: looped-actor analyse caps runs/first --caps 1 2 4 8 16 32 --thresholds 1e-2 1e-3 1e-4

    Args:
      runs: Folders of runs or of their policies, or names that `looped-actor policies` lists.
    """
    of.check_policies(*runs)
    check_files(request.levels)
    from looped_actor.analysis.caps import analyse_caps

    mesh = devices.start()
    _tell("caps", request.out, analyse_caps(of.policies(runs), request, mesh, progress_bar))


@app.command(name="frontier")
def frontier(
    runs: Folders, /, *, of: PolicyOptions, request: FrontierRequest, devices: DeviceOptions
) -> None:
    """What does a loop buy? Success against mean loops, over starts, minimum loops and thresholds.

    A thought may start from the same latent every time, or where the last one of its episode ended.

    Example: looped-actor analyse frontier runs/fixed runs/carried --count 1000

    Args:
      runs: Folders of runs or of their policies, or names that `looped-actor policies` lists.
    """
    of.check_policies(*runs)
    check_files(request.levels)
    from looped_actor.analysis.caps import analyse_frontier

    mesh = devices.start()
    _tell("frontier", request.out, analyse_frontier(of.policies(runs), request, mesh, progress_bar))


@app.command(name="plot")
def plot(folder: Folder, /) -> None:
    """Draw all figures of a folder again, from its tables alone: no policy is needed.

    Example: looped-actor analyse plot analysis/first

    Args:
      folder: Holds tables that `analyse` and `compare` have written.
    """
    from looped_actor.reproduction.figures import draw_folder

    for name, sentence in draw_folder(folder).items():
        _tell(name, folder, sentence)


def replay(
    run: Folder,
    /,
    *,
    level: int = 0,
    levels: pathlib.Path | None = None,
    probes: pathlib.Path | None = None,
    out: pathlib.Path = pathlib.Path("replays"),
    of: CheckpointOptions,
) -> None:
    """Watch an episode of a puzzle, thought by thought: as one HTML file for any browser, and as a GIF.

    The board, the loops of each step as bars, the probability of each action loop by loop, and with
    --probes the pushes that a probe reads from the latent. The page loads nothing from anywhere.

    Example: looped-actor replay rush-hour-micro --level 3

    Example: looped-actor replay runs/first --level 3 --probes analysis/first/probes-0.safetensors

    Args:
      run: Folder of a run of a puzzle or of its policy, or a name that `looped-actor policies` lists.
      level: Which level of the bank, counted from 0.
      levels: The bank. Default: the one held out in training.
      probes: Probes of this policy, by `looped-actor analyse probes`.
      out: Folder for the files.
    """
    of.check_policies(run)
    check_files(levels, probes)
    from looped_actor.analysis.replay import record_episode, write_html, write_replay_gif
    from looped_actor.training.sharding import start_devices

    start_devices(1)
    made = record_episode(of.policy(run), level, levels=levels, probes=probes)
    path = out / f"{run.resolve().name}-level{level}"
    write_html(made, path.with_suffix(".html"))
    write_replay_gif(made, path.with_suffix(".gif"))
    ending = "solved" if made.success else "not solved"
    print(f"{ending} in {len(made.steps)} steps: {path}.html, .gif")


def compare(runs: Folders, /, *, out: pathlib.Path = pathlib.Path("analysis")) -> None:
    """Curves and final numbers of several runs in one picture, from what they have written down.

    Example: looped-actor compare runs/looped runs/iso-params runs/iso-flops --out analysis/arms

    Args:
      runs: Folders of runs.
      out: Folder for what is written.
    """
    check_runs(*runs)
    from looped_actor.analysis.compare import compare_runs

    _tell("compare", out, compare_runs(runs, out))
