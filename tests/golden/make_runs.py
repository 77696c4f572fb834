"""Make the run folders of `runs/`: short runs whose metrics later versions must reproduce.

    python tests/golden/make_runs.py FOLDER [NAME ...]

Run it before a change that must not alter behaviour, and never to make a failing test pass.
"""

import csv
import os
import pathlib
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from flags import QUICK_TO_COMPILE

os.environ["XLA_FLAGS"] = QUICK_TO_COMPILE  # as in the tests: initial weights are drawn in float32

from looped_actor.codec import replaced, to_json
from looped_actor.configs.presets import preset
from looped_actor.devices import all_devices

from looped_actor.models import AUTHORS
from looped_actor.runs.folder import begin_run, train_run
from tiny import WORLD_CHANGES, tiny

FOUR_ITERATIONS = {
    "total_steps": 512,
    "double_precision": True,
    "levels__train_count": 40,
    "levels__held_out_count": 20,
}
AUTHORS_RECIPE = {
    "core__initial": to_json(AUTHORS),
    "halting__reverse": True,
    "ppo__bootstrap_timeouts": False,
    "ppo__shuffle": "steps",
    "ppo__hard_resets": 2,
    "ppo__cell_statistics": True,
    "ppo__scale_before_learning": True,
}


def robot(arm="looped", **changes):
    """A run of four iterations on robot data."""
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return replaced(preset("cube-double", "micro", arm), WORLD_CHANGES | {"double_precision": True} | named)


RUNS = {
    "ppo-iso-params": lambda: tiny("rush-hour", "iso-params", **FOUR_ITERATIONS),
    "ppo-fixed-4": lambda: tiny("rush-hour", "fixed-4", **FOUR_ITERATIONS),
    "ppo-carried": lambda: tiny("rush-hour", start="carried", **FOUR_ITERATIONS),
    "ppo-authors": lambda: tiny("boxoban", **FOUR_ITERATIONS, **AUTHORS_RECIPE),
    "ppo-window": lambda: tiny("boxoban", window=2, **FOUR_ITERATIONS),
    "ppo-random-caps": lambda: tiny(
        "rush-hour", ppo__min_cap=2, ppo__measure_gradients=True, **FOUR_ITERATIONS
    ),
    "imitation-carried": lambda: tiny("rush-hour", by="imitation", start="carried", **FOUR_ITERATIONS),
    "gciql-iso-flops": lambda: robot("iso-flops"),
    "gciql-differences": lambda: robot(
        paired=True, differences=True, gciql__n_step=3, goals__near_actor=True
    ),
    "gciql-critics": lambda: robot(learn="critics"),
}


def make(name: str, out: pathlib.Path) -> None:
    """Train a run and keep its configuration, levels or data, and metrics."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place) / name
        config = begin_run(RUNS[name](), folder)
        train_run(config, folder, all_devices(1))
        with (folder / "metrics.csv").open() as file:
            assert len(list(csv.DictReader(file))) == 4
        kept = [folder / "metrics.csv", folder / "config.json"]
        kept += [path for part in ("levels", "data") for path in sorted((folder / part).glob("*"))]
        with zipfile.ZipFile(out / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in kept:
                archive.write(path, path.relative_to(folder))


if __name__ == "__main__":
    out, *names = sys.argv[1:]
    for name in names or RUNS:
        make(name, pathlib.Path(out))
        print(name, flush=True)
