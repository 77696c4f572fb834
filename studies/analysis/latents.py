"""Memory, bytes and time of recorded latents at the paper's shape, per level.

python studies/analysis/latents.py --levels 5000 --out results/latents.json

A net of the paper's width, cap and board with random weights decides for 10x10 levels, and its latents after
loops 1, 2, 4, 8 and 16 are recorded. All 16 loops are computed for every level: the time is that of the
deepest policy.
"""

import argparse
import pathlib
import resource
import tempfile
import time

import jax
import numpy as np

from looped_actor.analysis.latents import LatentsRecorder, open_latents
from looped_actor.loop import FixedLoops
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.teachers import planes_of
from looped_actor.reproduction.record import write_record
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import start_devices


def main() -> None:
    """Record latents, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--levels", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=32, help="levels that are computed together")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    mesh, spec = start_devices(), run_of(preset("boxoban", "paper")).spec
    weights = spec.init_weights()
    cells = starter_bank("boxoban").cells(slice(None))

    def observe(first: int, last: int) -> np.ndarray:
        return planes_of(cells[[row % len(cells) for row in range(first, last)]], 4)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        deepest = FixedLoops(spec.max_loops)
        recorder = LatentsRecorder(spec.definition, (1, 2, 4, 8, 16), mesh, deepest, options.batch)
        recorder.record(weights, observe, 2 * options.batch, folder / "compiled")
        begin = time.perf_counter()
        recorder.record(weights, observe, options.levels, folder / "latents")
        seconds = time.perf_counter() - begin
        info = open_latents(folder / "latents").info
        size = sum(path.stat().st_size for path in (folder / "latents").glob("*.npy"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    write_record(
        options.out,
        {
            "devices": jax.device_count(),
            "levels": options.levels,
            "tokens": info.tokens,
            "width": info.width,
            "places": ["input", *info.places[1:]],
            "bytes_per_level": round(size / options.levels),
            "gigabytes_on_disk": size / 1e9,
            "peak_memory_mib": peak / 1024,
            "memory_before_recording_mib": before / 1024,
            "seconds": seconds,
            "levels_per_second": options.levels / seconds,
            "paper_50000_levels": {
                "gigabytes_on_disk": 50_000 * size / options.levels / 1e9,
                "minutes_at_this_rate": 50_000 * seconds / options.levels / 60,
                "peak_memory": "the same: nothing grows with the number of levels",
            },
        },
    )


if __name__ == "__main__":
    main()
