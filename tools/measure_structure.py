"""Measure the structure of the package: lines, packages, layers, frames to the first gradient, options.

    python tools/measure_structure.py [--frames]

Prints the rows of the table that docs/contributing.md refers to. With --frames it also starts a small
training run in a temporary folder, and counts the frames of this package between the command line and the
first gradient.
"""

import argparse
import ast
import pathlib
import re
import sys
import tempfile
import tomllib
import traceback
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
SOURCE = ROOT / "src" / "looped_actor"


def count_lines(paths: list[pathlib.Path]) -> int:
    """Return the number of lines of some files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def list_layers() -> list[str]:
    """Return the layers of the import contract, highest first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return next(contract["layers"] for contract in config["contracts"] if contract["type"] == "layers")


def count_any(paths: list[pathlib.Path]) -> tuple[int, int]:
    """Return the uses of `Any` in annotations, and the untyped bags of options (`name: Any = {...}`)."""
    uses = bags = 0
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            annotations: list[Any] = []
            if isinstance(node, ast.AnnAssign):
                annotations = [node.annotation]
                bags += isinstance(node.value, ast.Dict) and "Any" in ast.dump(node.annotation)
            elif isinstance(node, ast.FunctionDef):
                arguments = [*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
                annotations = [node.returns, *(a.annotation for a in arguments if a is not None)]
            for annotation in filter(None, annotations):
                uses += sum(isinstance(n, ast.Name) and n.id == "Any" for n in ast.walk(annotation))
    return uses, bags


def count_frames() -> dict[str, tuple[int, int]]:
    """Return frames and files of this package from the command to the first loop and the first gradient."""
    import jax

    from looped_actor.cli.main import main
    from looped_actor.loop import packing, streaming

    found: dict[str, tuple[int, int]] = {}

    def watch(name: str, function: Any) -> Any:
        def watched(*arguments: Any, **options: Any) -> Any:
            stack = [frame.filename for frame in traceback.extract_stack() if str(SOURCE) in frame.filename]
            found.setdefault(name, (len(stack), len(set(stack))))
            return function(*arguments, **options)

        return watched

    class JaxWithWatch:
        value_and_grad = staticmethod(watch("gradient", jax.value_and_grad))

        def __getattr__(self, name: str) -> Any:
            return getattr(jax, name)

    packing.jax = JaxWithWatch()  # type: ignore[assignment]
    streaming.advance = watch("acting", streaming.advance)
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = f"looped-actor train rush-hour --out {folder}/run --devices 1 --steps 64".split()
        for change in (
            "algorithm.num_envs=8",
            "algorithm.rollout_steps=8",
            "algorithm.minibatch=32",
            "levels.train_count=20",
            "levels.held_out_count=10",
            "levels.evaluate_count=10",
        ):
            sys.argv += ["--set", change] if "--set" not in sys.argv else [change]
        main()
    return found


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--frames", action="store_true", help="count frames by a small training run")
    given = options.parse_args()
    files = sorted(SOURCE.rglob("*.py"))
    packages = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file())
    uses, bags = count_any(files)
    ppo = [SOURCE / "algorithms" / name for name in ("ppo.py", "online.py", "rollout.py", "optim.py")]
    rows: dict[str, Any] = {
        "lines in src": f"{count_lines(files):,}",
        "packages, layers": f"{len(packages)}, {len(list_layers())}",
        "root modules": len([path for path in SOURCE.glob("*.py") if not path.name.startswith("__")]),
        "lines of algorithms/ppo.py": count_lines(ppo[:1]),
        "lines of PPO with what it shares": count_lines(ppo),
        "`Any` in annotations, untyped option bags": f"{uses}, {bags}",
    }
    from looped_actor.cli.main import COMMANDS
    from looped_actor.runs.presets import preset
    from looped_actor.utils.codec import field_paths

    rows["commands"] = len(COMMANDS)
    for task in ("boxoban", "cube-double"):
        rows[f"fields of a run on {task}"] = len(field_paths(preset(task, "micro")))
    results = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    rows["results/, MB and files"] = f"{sum(p.stat().st_size for p in results) / 1e6:.1f}, {len(results)}"
    if given.frames:
        for name, (frames, distinct) in count_frames().items():
            rows[f"frames and files from the command to the first {name}"] = f"{frames}, {distinct}"
    for name, value in rows.items():
        print(f"{re.sub(' +', ' ', name):60} {value}")


if __name__ == "__main__":
    main()
