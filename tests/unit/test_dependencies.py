"""Declared dependencies are those that the code imports."""

import ast
import importlib.metadata
import pathlib
import sys
import tomllib

from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "src" / "looped_actor"
FILES = sorted(SOURCE.rglob("*.py"))


def imported(path):
    """Top-level names of all imports of a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def test_declared_dependencies_are_the_imported_ones():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {Requirement(text).name.lower() for text in project["dependencies"]}
    optional = {
        Requirement(text).name.lower()
        for name in ("figures", "hub", "ogbench", "ray", "serve", "wandb")
        for text in extras[name]
    }
    names = {name for path in FILES for name in imported(path)} - {"looped_actor", *sys.stdlib_module_names}
    of_module = importlib.metadata.packages_distributions()
    used = {of_module[name][0].lower().replace("_", "-") for name in names}
    undeclared = {
        "flatbuffers",
        "httptools",
        "uvloop",
    }  # used by `jax.export` and uvicorn
    assert used == {name.replace("_", "-") for name in declared | optional} - undeclared
    assert set(extras) == {
        "cuda13",
        "tpu",
        "figures",
        "hub",
        "ogbench",
        "plan",
        "ray",
        "serve",
        "wandb",
        "docs",
        "dev",
    }
