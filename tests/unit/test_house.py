"""The house is as its map says, and as its rules want it."""

import ast
import importlib
import importlib.metadata
import inspect
import pathlib
import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "src" / "looped_actor"
FILES = sorted(SOURCE.rglob("*.py"))
MAP = (ROOT / "docs" / "contributing.md").read_text()


def lines_of(path):
    return len(path.read_text().splitlines())


def test_no_file_is_long():
    assert [str(path) for path in FILES if lines_of(path) > 400] == []


def test_no_function_is_long():
    functions = [
        (path.name, node.name, (node.end_lineno or 0) - node.lineno + 1)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    assert [function for function in functions if function[2] > 60] == []


def packages():
    return sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


@pytest.mark.parametrize("package", packages())
def test_no_package_is_large(package):
    files = list((SOURCE / package).glob("*.py"))
    if package != "cli":  # which has a file for every command, and they know nothing of each other
        assert len(files) <= 12 + 1  # and `__init__`
        assert sum(map(lines_of, files)) <= 2000


def test_the_map_shows_every_package_and_module():
    rows = re.findall(r"^\| \d{0,2} *\| `(\w+)` \|", MAP, re.M)
    assert sorted(rows) == packages()
    beside = {path.name for path in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert (
        set(re.findall(r"`(\w+\.py)`", MAP.partition("Beside the packages")[2].partition("\n\n")[0]))
        == beside
    )


def test_the_floors_are_those_of_the_contract():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    floors = [sorted(layer.split(" | ")) for layer in reversed(contract["layers"])]
    shown, floor = [], 0
    for number, package in re.findall(r"^\| (\d{0,2}) *\| `(\w+)` \|", MAP, re.M):
        floor = int(number or floor)
        shown += [[]] * (floor - len(shown))
        shown[floor - 1] = sorted([*shown[floor - 1], package])
    assert shown == floors


def test_the_way_of_an_observation_leads_through_functions_that_exist():
    hops = re.findall(r"^(\d+)\. `([\w.]+)`", MAP.partition("The way of an observation")[2], re.M)
    assert [int(number) for number, _ in hops] == list(range(1, len(hops) + 1))
    assert 10 <= len(hops) <= 15
    for _, path in hops:
        package, module, *rest = path.split(".")
        found = importlib.import_module(f"looped_actor.{package}.{module}")
        for name in rest:
            found = getattr(found, name)
        assert inspect.isfunction(inspect.unwrap(found)), path


def test_the_kind_of_a_configuration_is_asked_in_one_place():
    asked = [
        f"{path.name}: {line.strip()}"
        for path in FILES
        for line in path.read_text().splitlines()
        if re.search(
            r"isinstance\(.*(Online|Offline|Own|Paper|Run)Config|isinstance\(.*(Puzzle|Control|Own)(Run|Task)",
            line,
        )
    ]
    assert asked == []


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
    needed_by_jax = {"flatbuffers"}  # by `jax.export`, which does not declare it
    assert used == {name.replace("_", "-") for name in declared | optional} - needed_by_jax
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
