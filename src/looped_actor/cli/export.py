"""`looped-actor export`: a policy for those who do not have this package."""

import pathlib
from typing import Annotated, Literal

import tyro


def export(
    policy: Annotated[pathlib.Path, tyro.conf.Positional],
    /,
    *,
    out: pathlib.Path = pathlib.Path("exported"),
    checkpoint: str | None = None,
    board: tuple[int, int] | None = None,
    max_loops: int | None = None,
    min_loops: int | None = None,
    threshold: float | None = None,
    platforms: tuple[Literal["cpu", "cuda", "rocm", "tpu"], ...] = ("cpu", "cuda", "tpu"),
) -> None:
    """Write a policy so that it runs without this package: where there is JAX, and nothing else.

    Writes policy.safetensors and config.json, which `load_policy` reads and which hold numbers only;
    policy.stablehlo, the policy as a program for batches of any size; and signature.json, which says what
    the program reads and returns.

    Example: looped-actor export runs/first --out exported

    Example: looped-actor export runs/first --board 6 6 --max-loops 32 --platforms cpu

    Args:
      policy: The folder of a run, or of a policy that a run has written.
      out: Folder for the files.
      checkpoint: Of a run: best, latest, or an iteration. Default: the finished policy, or else latest.
      board: Of puzzles: rows and columns of the boards that the program reads. Default: as in training.
      max_loops: Another cap.
      min_loops: Another least number of loops.
      threshold: Another KL below which to halt.
      platforms: What the program is to run on.
    """
    from looped_actor.devices import start_devices
    from looped_actor.experiments.export import PROGRAM_FILE, ExportRequest, export_policy

    start_devices(1)
    request = ExportRequest(policy, checkpoint, board, max_loops, min_loops, threshold, platforms)
    signature = export_policy(request, out)
    size = (out / PROGRAM_FILE).stat().st_size
    print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    print(f"{PROGRAM_FILE}: {size / 1024:,.0f} KiB, for {', '.join(signature['platforms'])}")
    for kind in ("inputs", "outputs"):
        for name, array in signature[kind].items():
            print(f"  {kind[:-1]:>6} {name}: {array['dtype']}[{', '.join(map(str, array['shape']))}]")
