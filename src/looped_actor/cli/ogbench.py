"""`looped-actor ogbench`: data for offline learning, and films of what was learned from it."""

import pathlib
from typing import Annotated, Literal

import tyro

from looped_actor.cli.progress import progress_bar

World = Annotated[Literal["cube-double", "cube-triple", "puzzle-3x3", "scene"], tyro.conf.Positional]

app = tyro.extras.SubcommandApp()


@app.command(name="collect")
def collect(
    world: World,
    /,
    *,
    transitions: float = 1_000_000,
    episode: int = 1000,
    out: pathlib.Path = pathlib.Path("data"),
    seed: int = 0,
    workers: int | None = None,
) -> None:
    """Make a play dataset with OGBench's scripted oracles: no download needed.

    Writes WORLD-play-v0.npz and, a tenth of its size, WORLD-play-v0-val.npz, in OGBench's own format. The
    same seed gives the same bytes with any number of workers. Interrupted, the same command goes on.

    Example: looped-actor ogbench collect cube-double --transitions 1e5

    Args:
      world: The environment.
      transitions: To learn from; a tenth more is held out. OGBench's own have 1 to 3 million.
      episode: Transitions of an episode, after which the world is reset. OGBench's own have 1000.
      out: Folder for the files.
      seed: Of everything random.
      workers: Processes. Default: one for each core.
    """
    from looped_actor.batches import default_workers
    from looped_actor.offline.collection import CollectionJob, collect
    from looped_actor.offline.dataset import open_dataset

    job = CollectionJob(world, int(transitions), seed, episode)
    with progress_bar(f"{world} transitions") as progress:
        paths = collect(job, out, workers=workers or default_workers(), progress=progress)
    for path in paths:
        made = open_dataset(path, mapped=True)
        print(f"{path}: {made.transitions:,} transitions in {made.episodes:,} episodes")


@app.command(name="download")
def download(world: World, /, *, out: pathlib.Path = pathlib.Path("data")) -> None:
    """Fetch OGBench's own play dataset, by OGBench's own loader.

    Example: looped-actor ogbench download scene --out data

    Args:
      world: The environment.
      out: Folder for the files.
    """
    from looped_actor.offline.collection import download

    for path in download(world, out):
        print(path)
