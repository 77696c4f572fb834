"""The recorder of latents at the paper's size in shape: memory, bytes and time of each level.

Example: python benchmarks/latents.py --levels 5000 --out results/latents.json

A net of the paper's width, cap and board with random weights looks at generated 10x10 levels after loops
1, 2, 4, 8 and 16. All 16 loops are computed for every level: the time is that of the deepest policy.
"""

import argparse
import pathlib
import resource
import tempfile
import time

import jax
from record import write_record

from looped_actor.training.sharding import start_devices


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", type=int, default=5000)
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--out")
    options = parser.parse_args()
    mesh = start_devices()

    from flax import nnx

    from looped_actor.algorithms import Weights, no_statistics
    from looped_actor.analysis.latents import LatentsRecorder, open_latents
    from looped_actor.loop import FixedLoops
    from looped_actor.puzzles.banks import starter_bank
    from looped_actor.puzzles.teachers import planes_of
    from looped_actor.runs.presets import preset
    from looped_actor.runs.registry import run_of

    config = preset("boxoban", "paper")
    _, trained, fixed = nnx.split(run_of(config).build(nnx.Rngs(0)), nnx.Param, ...)
    weights = Weights(trained, fixed, no_statistics(config.shape.features))
    bank = starter_bank("boxoban")
    cells = bank.cells(slice(None))

    def observe(first, last):
        return planes_of(cells[[row % len(cells) for row in range(first, last)]], 4)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        deepest = FixedLoops(config.halting.max_loops)
        recorder = LatentsRecorder(run_of(config).definition, (1, 2, 4, 8, 16), mesh, deepest, options.chunk)
        recorder.record(weights, observe, 2 * options.chunk, pathlib.Path(folder) / "compiled")
        start = time.perf_counter()
        recorder.record(weights, observe, options.levels, pathlib.Path(folder) / "latents")
        seconds = time.perf_counter() - start
        info = open_latents(pathlib.Path(folder) / "latents").info
        files = [path.stat().st_size for path in (pathlib.Path(folder) / "latents").glob("*.npy")]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    per_level = sum(files) / options.levels
    write_record(
        options.out,
        {
            "devices": jax.device_count(),
            "levels": options.levels,
            "tokens": info.tokens,
            "width": info.width,
            "places": ["input", *info.places[1:]],
            "bytes_per_level": round(per_level),
            "gigabytes_on_disk": sum(files) / 1e9,
            "peak_memory_mib": peak / 1024,
            "memory_before_recording_mib": before / 1024,
            "seconds": seconds,
            "levels_per_second": options.levels / seconds,
            "paper_50000_levels": {
                "gigabytes_on_disk": 50_000 * per_level / 1e9,
                "minutes_at_this_rate": 50_000 * seconds / options.levels / 60,
                "peak_memory": "the same: nothing grows with the number of levels",
            },
        },
    )


if __name__ == "__main__":
    main()
