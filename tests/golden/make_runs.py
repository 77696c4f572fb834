"""Make run folders for `runs/`: short runs whose metrics later versions must reproduce.

    JAX_ENABLE_X64=1 python tests/golden/make_runs.py FOLDER [NAME ...]

Run it before a change that must not alter behaviour, and never to make a failing test pass. The folders in
`runs/` were made by version 0.2, the newest of them at commit db50034."""

import csv
import os
import pathlib
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from flags import QUICK_TO_COMPILE

os.environ["XLA_FLAGS"] = QUICK_TO_COMPILE  # as in the tests: initial weights are drawn in float32

from looped_actor.runs.folder import begin_run, train_run
from looped_actor.training.sharding import all_devices
from tiny import tiny, tiny_robot

FOUR_ITERATIONS = {"total_steps": 512, "levels__train_count": 40, "levels__held_out_count": 20}
RUNS = {
    "ppo-looped": lambda: tiny("boxoban", **FOUR_ITERATIONS),
    "ppo-iso-params": lambda: tiny("rush-hour", "iso-params", **FOUR_ITERATIONS),
    "ppo-iso-flops": lambda: tiny("rush-hour", "iso-flops", **FOUR_ITERATIONS),
    "ppo-fixed-4": lambda: tiny("rush-hour", "fixed-4", **FOUR_ITERATIONS),
    "ppo-drc": lambda: tiny("boxoban", "drc", **FOUR_ITERATIONS),
    "ppo-carried": lambda: tiny("rush-hour", arm__carry_latent=True, **FOUR_ITERATIONS),
    "ppo-authors": lambda: tiny("boxoban", recipe="authors", **FOUR_ITERATIONS),
    "imitation": lambda: tiny("boxoban", by="imitation", **FOUR_ITERATIONS),
    "imitation-carried": lambda: tiny("rush-hour", by="imitation", arm__carry_latent=True, **FOUR_ITERATIONS),
    "gciql": lambda: tiny_robot(),
    "gciql-mlp": lambda: tiny_robot(arm="mlp"),
    "gciql-iso-flops": lambda: tiny_robot(arm="iso-flops"),
    "gciql-critics": lambda: tiny_robot(arm=None),
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
