"""`looped-actor robots`: data for offline learning, and films of robot policies."""

import pathlib
from typing import Annotated, Literal

import tyro

from looped_actor.cli.shared import CheckpointOptions, Folder, progress_bar
from looped_actor.names import DataKind, RobotName
from looped_actor.utils.errors import UserError

Environment = Annotated[RobotName, tyro.conf.Positional]

app = tyro.extras.SubcommandApp()


@app.command(name="collect")
def collect(
    environment: Environment,
    /,
    *,
    transitions: float = 1_000_000,
    episode: int = 1000,
    out: pathlib.Path = pathlib.Path("data"),
    seed: int = 0,
    workers: int | None = None,
    kind: DataKind = "play",
) -> None:
    """Collect a dataset with OGBench's scripted oracles, without a download.

    Writes ENVIRONMENT-KIND-v0.npz and, a tenth of its size, ENVIRONMENT-KIND-v0-val.npz, in OGBench's own
    format. The same seed gives the same bytes with any number of workers. If interrupted, the same command
    continues.

    Example: looped-actor robots collect cube-double --transitions 1e5

    Example: looped-actor robots collect puzzle-3x3 --kind noisy

    Args:
      environment: OGBench's name.
      transitions: Training transitions; a tenth more is for validation. OGBench's own datasets have 1 to 3
        million.
      episode: Transitions of an episode. OGBench's own datasets have 1000.
      out: Folder for the files.
      seed: Seed of everything random.
      workers: Number of processes. Default: one per core.
      kind: play, as in the paper, or noisy, with random actions.
    """
    from looped_actor.offline.dataset import open_dataset
    from looped_actor.robots.collection import CollectionJob, collect
    from looped_actor.utils.processes import default_workers

    job = CollectionJob(environment, int(transitions), seed, episode, kind)
    with progress_bar(f"{environment} transitions") as progress:
        paths = collect(job, out, workers=workers or default_workers(), progress=progress)
    for path in paths:
        made = open_dataset(path, on_disk=True)
        print(f"{path}: {made.transitions:,} transitions in {made.episodes:,} episodes")


@app.command(name="download")
def download(
    environment: Environment, /, *, out: pathlib.Path = pathlib.Path("data"), kind: DataKind = "play"
) -> None:
    """Download OGBench's own dataset, by OGBench's own loader.

    Example: looped-actor robots download scene --out data

    Args:
      environment: OGBench's name.
      out: Folder for the files.
      kind: play, as in the paper, or noisy.
    """
    from looped_actor.robots.collection import download

    for path in download(environment, out, kind):
        print(path)


@app.command(name="film")
def film(
    policy: Folder,
    /,
    *,
    task: Literal[1, 2, 3, 4, 5] = 1,
    episode: int = 0,
    out: pathlib.Path | None = None,
    of: CheckpointOptions,
    size: int = 320,
    every: int = 2,
    steps: int | None = None,
    deviation: float = 0.0,
) -> None:
    """Write an episode as a GIF, with the loops of every decision drawn below.

    Needs software or hardware rendering; on a machine without a screen, EGL (MUJOCO_GL=egl).

    Example: looped-actor robots film runs/cubes --task 2 --out film.gif

    Args:
      policy: Folder of a run or of its policy, or a name that `looped-actor pretrained` lists.
      task: Number of the task.
      episode: Number of the episode; it starts like the episode of this number in `looped-actor eval`.
      out: File. Default: film-ENVIRONMENT-taskT-episodeN.gif.
      size: Width and height of the picture in pixels.
      every: Steps between two frames.
      steps: Maximum number of steps. Default: the environment's own limit.
      deviation: Standard deviation of noise that is added to the mean action.
    """
    for option, value in (("size", size), ("every", every), ("steps", steps), ("episode", episode + 1)):
        if value is not None and value < 1:
            raise UserError(f"--{option} is too small")
    if not 0 <= deviation <= 1:
        raise UserError(f"--deviation is {deviation}; it must be between 0 and 1")
    of.check_policies(policy)
    from looped_actor.robots.film import film_episode, write_gif
    from looped_actor.training.sharding import start_devices

    start_devices(1)
    loaded = of.policy(policy)
    with progress_bar("filming steps") as progress:
        made = film_episode(
            loaded,
            task=task,
            number=episode,
            size=size,
            time_limit=steps,
            deviation=deviation,
            progress=progress,
        )
    path = out or pathlib.Path(f"film-{loaded.spec.task}-task{task}-episode{episode}.gif")
    write_gif(made, loaded.spec.max_loops, path, every, milliseconds=50 * every)
    ending = "solved" if made.success else "not solved"
    print(f"{path}: {made.title}, {ending} after {len(made.loops)} steps")
