"""`looped-actor analyze`, `compare` and `replay`: tables, figures and sentences about trained policies."""

import pathlib

import tyro

from looped_actor.analysis.options import (
    CapsOptions,
    DifficultyOptions,
    FrontierOptions,
    HistogramOptions,
    ProbeOptions,
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


def _report(name: str, out: pathlib.Path, sentence: str) -> None:
    print(sentence)
    print(f"{out / name}.csv, .png, .svg")


@app.command(name="probes")
def probes(
    policies: Folders, /, *, of: CheckpointOptions, options: ProbeOptions, devices: DeviceOptions
) -> None:
    """Train probes that read the pushes of an optimal Boxoban solution from the latent, loop by loop.

    Solves the levels, records the latents of every policy (several are seeds of one kind), and trains small
    attentive probes for every push and loop, and for the input embedding. Writes probes.csv, its figure, and
    the probes, which `replay --probes` can draw. If interrupted, the same command continues.

    Example: looped-actor analyze probes runs/first --out analysis/first

    Example: looped-actor analyze probes runs/a runs/b runs/c --levels levels/boxoban-unfiltered-valid.levels
    levels/boxoban-medium-valid.levels --count 25000

    Args:
      policies: Folders of runs or of their policies, or names that `looped-actor pretrained` lists.
    """
    of.check_policies(*policies)
    check_files(*options.levels)
    from looped_actor.analysis.probes import analyze_probes

    mesh = devices.start()
    _report("probes", options.out, analyze_probes(of.policies(policies), options, mesh, progress_bar))


@app.command(name="difficulty")
def difficulty(
    policies: Folders, /, *, of: CheckpointOptions, options: DifficultyOptions, devices: DeviceOptions
) -> None:
    """Compare the loops of each state with its distance from solved.

    Plays levels and solves every state that was visited: remaining pushes of Boxoban, moves of Rush Hour, for
    solved and failed episodes, with counts and intervals.

    Example: looped-actor analyze difficulty runs/first --count 500 --out analysis/first

    Args:
      policies: Folders of runs or of their policies, or names that `looped-actor pretrained` lists.
    """
    of.check_policies(*policies)
    check_files(options.levels)
    from looped_actor.analysis.difficulty import analyze_difficulty

    mesh = devices.start()
    _report("difficulty", options.out, analyze_difficulty(of.policies(policies), options, mesh, progress_bar))


@app.command(name="histogram")
def histogram(
    policies: Folders, /, *, of: PolicyOptions, options: HistogramOptions, devices: DeviceOptions
) -> None:
    """Count the loops of decisions: one panel for each environment, for any set of policies.

    Example: looped-actor analyze histogram runs/boxoban runs/rush-hour runs/cubes --count 200 --episodes 5

    Args:
      policies: Folders of runs or of their policies, or names that `looped-actor pretrained` lists.
    """
    of.check_policies(*policies)
    check_files(options.levels)
    from looped_actor.analysis.histogram import analyze_histogram

    mesh = devices.start()
    _report("histogram", options.out, analyze_histogram(of.policies(policies), options, mesh, progress_bar))


@app.command(name="caps")
def caps(policies: Folders, /, *, of: PolicyOptions, options: CapsOptions, devices: DeviceOptions) -> None:
    """Evaluate policies at other caps and thresholds than in training.

    Compares adaptive with fixed numbers of loops of the same policy, and success with the FLOPs of a
    decision.

    Example: looped-actor analyze caps runs/first --caps 1 2 4 8 16 32 --thresholds 1e-2 1e-3 1e-4

    Args:
      policies: Folders of runs or of their policies, or names that `looped-actor pretrained` lists.
    """
    of.check_policies(*policies)
    check_files(options.levels)
    from looped_actor.analysis.caps import analyze_caps

    mesh = devices.start()
    _report("caps", options.out, analyze_caps(of.policies(policies), options, mesh, progress_bar))


@app.command(name="frontier")
def frontier(
    policies: Folders, /, *, of: PolicyOptions, options: FrontierOptions, devices: DeviceOptions
) -> None:
    """Compare success with mean loops, over thresholds and minimum loops, with and without carried latents.

    Example: looped-actor analyze frontier runs/fixed runs/carried --count 1000

    Args:
      policies: Folders of runs or of their policies, or names that `looped-actor pretrained` lists.
    """
    of.check_policies(*policies)
    check_files(options.levels)
    from looped_actor.analysis.caps import analyze_frontier

    mesh = devices.start()
    _report("frontier", options.out, analyze_frontier(of.policies(policies), options, mesh, progress_bar))


@app.command(name="plot")
def plot(folder: Folder, /) -> None:
    """Draw all figures of a folder again, from its tables alone.

    Example: looped-actor analyze plot analysis/first

    Args:
      folder: Folder with tables of `analyze` and `compare`.
    """
    from looped_actor.reproduction.figures import draw_folder

    for name, sentence in draw_folder(folder).items():
        _report(name, folder, sentence)


def replay(
    policy: Folder,
    /,
    *,
    level: int = 0,
    levels: pathlib.Path | None = None,
    probes: pathlib.Path | None = None,
    out: pathlib.Path = pathlib.Path("replays"),
    of: CheckpointOptions,
) -> None:
    """Record an episode of a puzzle, loop by loop, as one HTML file and as a GIF.

    Shows the board, the loops of each step as bars, the probability of each action loop by loop, and with
    --probes the pushes that a probe reads from the latent. The page is self-contained.

    Example: looped-actor replay rush-hour-micro --level 3

    Example: looped-actor replay runs/first --level 3 --probes analysis/first/probes-0.safetensors

    Args:
      policy: Folder of a run or of its policy, or a name that `looped-actor pretrained` lists.
      level: Number of the level in the bank, counted from 0.
      levels: Bank of levels. Default: the test levels of the run.
      probes: Probes of this policy, by `looped-actor analyze probes`.
      out: Folder for the files.
    """
    of.check_policies(policy)
    check_files(levels, probes)
    from looped_actor.analysis.replay import record_episode, write_html, write_replay_gif
    from looped_actor.training.sharding import start_devices

    start_devices(1)
    recorded = record_episode(of.policy(policy), level, levels=levels, probes=probes)
    path = out / f"{policy.resolve().name}-level{level}"
    write_html(recorded, path.with_suffix(".html"))
    write_replay_gif(recorded, path.with_suffix(".gif"))
    ending = "solved" if recorded.success else "not solved"
    print(f"{ending} in {len(recorded.steps)} steps: {path}.html, .gif")


def compare(runs: Folders, /, *, out: pathlib.Path = pathlib.Path("analysis")) -> None:
    """Draw the learning curves of several runs in one figure, from the files in their folders.

    Example: looped-actor compare runs/looped runs/iso-params runs/iso-flops --out analysis/arms

    Args:
      runs: Folders of runs.
      out: Folder for the table and the figure.
    """
    check_runs(*runs)
    from looped_actor.analysis.compare import compare_runs

    _report("compare", out, compare_runs(runs, out))
