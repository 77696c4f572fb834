"""`looped-actor export`: a policy as a program that does not need this package."""

import pathlib

from looped_actor.cli.shared import Folder, PolicyOptions
from looped_actor.evaluation.options import ExportOptions


def export(
    policy: Folder,
    /,
    *,
    options: ExportOptions,
    of: PolicyOptions,
    out: pathlib.Path = pathlib.Path("exported"),
) -> None:
    """Write a policy as a program that needs JAX, but not this package.

    Writes policy.safetensors and config.json, which `load_policy` reads; policy.stablehlo, the policy as a
    program for batches of any size; signature.json with its inputs and outputs; and README.md, a model card.

    Example: looped-actor export runs/first --out exported

    Example: looped-actor export runs/first --board 6 6 --max-loops 32 --platforms cpu

    Args:
      policy: Folder of a run or of its policy, or a name that `looped-actor pretrained` lists.
      out: Folder for the files.
    """
    of.check_policies(policy)
    from looped_actor.policy.export import PROGRAM_FILE, export_policy
    from looped_actor.training.sharding import start_devices

    start_devices(1)
    signature = export_policy(of.policy(policy), options, out)
    size = (out / PROGRAM_FILE).stat().st_size
    print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    print(f"{PROGRAM_FILE}: {size / 1024:,.0f} KiB, for {', '.join(signature['platforms'])}")
    for kind in ("inputs", "outputs"):
        for name, array in signature[kind].items():
            print(f"  {kind[:-1]:>6} {name}: {array['dtype']}[{', '.join(map(str, array['shape']))}]")
