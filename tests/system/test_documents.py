"""Tests of README and documentation: blocks run, commands parse, links lead somewhere.

The blocks of a page run in order in one folder, which has a run in `runs/first`. Commands run at a size that
takes seconds (`smaller`). Without THOROUGH=1, those of a few pages run, and all others are parsed.
"""

import functools
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import tyro
from test_commands import COMMAND, command

from looped_actor.cli import main as entry
from tiny import CHANGES, LOOPED_CHANGES, ROBOT_CHANGES

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"```(\w*)[^\n]*\n(.*?)```", re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run by the tests: [^>]+ -->\n\n```\w*\n(.*?)```", re.DOTALL)
"""A block that cannot be run has a comment before it, which readers do not see."""
RUN_IN_CI = ("export.md", "theory.md")
PUBLIC = ("offline", "serving")
"""Packages whose names are public, in addition to those that `looped_actor` exports."""

_spec = importlib.util.spec_from_file_location("reference", DOCS / "tools" / "reference.py")
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


def blocks(page, *kinds):
    """Return kind and code of the blocks of a page, except examples that have a test of their own."""
    shown = {code for _, code in reference.EXAMPLE.findall(page.read_text())}
    return [
        (kind, code) for kind, code in FENCE.findall(page.read_text()) if kind in kinds and code not in shown
    ]


def runnable(page, *kinds):
    """Return the blocks of a page without those that are marked as not run."""
    skipped = NOT_RUN.findall(page.read_text())
    return [(kind, code) for kind, code in blocks(page, *kinds) if code not in skipped]


def lines(code):
    """Return the commands of a block, each as words."""
    joined = code.replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in joined.splitlines() if line and line[0] != "#"]


def every_command():
    for page in PAGES:
        found = [words for _, code in blocks(page, "bash") for words in lines(code)]
        found += [
            shlex.split(text) for text in re.findall(r"^- `(looped-actor [^`]+)`$", page.read_text(), re.M)
        ]
        yield from ((page.name, words[1:]) for words in found if words[:1] == ["looped-actor"])


def test_blocks_are_of_a_known_kind():
    """Python and commands are run; text is output. Other kinds would be left out."""
    for page in PAGES:
        assert {kind for kind, _ in FENCE.findall(page.read_text())} <= {"bash", "python", "text"}, page.name


def test_every_command_that_is_shown_parses(monkeypatch):
    """Parse all of them, with their options, by the command line itself."""
    ran = []

    def silent(function):
        @functools.wraps(function)
        def instead(*_, **__):
            ran.append(function)

        instead.__signature__ = inspect.signature(function)
        return instead

    def silence(group):
        for name, spec in list(group._subcommands.items()):
            if isinstance(spec.target, tyro.extras.SubcommandApp):
                silence(spec.target)
            else:
                monkeypatch.setitem(
                    group._subcommands, name, type(spec)(**{**vars(spec), "target": silent(spec.target)})
                )

    for name, (one, about) in list(entry.COMMANDS.items()):
        if isinstance(one, tyro.extras.SubcommandApp):
            silence(one)
        else:
            monkeypatch.setitem(entry.COMMANDS, name, (silent(one), about))
    shown = [(page, words) for page, words in every_command() if words != ["--help"]]
    assert len(shown) > 60
    for page, words in shown:
        monkeypatch.setattr("sys.argv", ["looped-actor", *words])
        try:
            entry.main()
        except SystemExit as end:
            raise AssertionError(f"{page}: looped-actor {' '.join(words)}") from end
    assert len(ran) == len(shown)


def settings(words):
    """Return changes that make a run tiny."""
    if "--code" in words:
        return [f"algorithm.{name}" for name in ("num_envs=16", "rollout_steps=8", "minibatch=32")] + [
            "episodes=8"
        ]
    if {"cube-double", "cube-triple", "puzzle-3x3", "scene"} & set(words):
        tiny = ROBOT_CHANGES
    else:
        looped = "--arm" not in words or "looped" in words
        tiny = CHANGES | (LOOPED_CHANGES if looped and "reproduce" not in words else {})
    return [f"{name}={json.dumps(value)}" for name, value in tiny.items()]


def smaller(words):
    """Return a command that does the same in seconds."""
    words = list(words)

    def give(option, *values):
        if option in words:
            at = words.index(option) + 1
            end = next((i for i in range(at, len(words)) if words[i].startswith("--")), len(words))
            values = (*words[at:end], *values) if option == "--set" else values
            words[at:end] = values
        else:
            words.extend((option, *values))

    match words[0], words[1:2]:
        case "train", _ if "--dry-run" not in words:
            if "--steps" in words:
                give("--steps", "768")
            give("--set", *settings(words))
        case "reproduce", ["run"]:
            give("--set", *settings(words))
            give("--seeds", "1")
            give("--arms", "looped")
        case "eval", _:
            give("--count", "2")
        case "analyze", ["probes"]:
            give("--count", "12")
            give("--epochs", "1")
            give("--seeds", "1")
        case "analyze", [_]:
            give("--count", "4")
        case "levels", ["build"] if not {"--source", "--enumerate-all"} & set(words):
            for option in ("--train", "--valid", "--test"):
                give(option, "6")
        case "robots", ["collect"]:
            give("--transitions", "40")
        case "reproduce", ["theorem"]:
            give("--exhaustive", "3")
            give("--samples", "1")
            give("--lengths", "2", "4", "8")
    return words


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A run of the kind that the documentation begins with."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        command(patch, *smaller(["train", "rush-hour", "--steps", "8e4", "--out", "runs/first"]))
    return folder / "runs" / "first"


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A folder like a clone in use."""
    for name in ("results", "examples", "benchmarks", "constraints.txt", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(DOCS, tmp_path / "docs")  # one of the commands writes there
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_block(kind, code, monkeypatch):
    if kind == "python":
        if "__main__" in code or "subprocess" in code:  # what starts processes needs its own process
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
        else:
            exec(compile(code, "a block of a page", "exec"), {"__name__": "block"})
        return
    for words in lines(code):
        # This process has one device, and MuJoCo without pictures.
        if "--devices" in words or "film" in words:
            subprocess.run([*COMMAND, *smaller(words[1:])], check=True, timeout=600)
        elif words[0] == "looped-actor":
            command(monkeypatch, *smaller(words[1:]))
        else:
            assert words[0] == "python", f"{words} is neither Python nor a command: mark it as not run"
            subprocess.run([sys.executable, *words[1:]], check=True, timeout=600, env=os.environ)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page, workshop, monkeypatch, request):
    thorough = bool(os.environ.get("THOROUGH"))
    commands_too = thorough or page.name in RUN_IN_CI
    found = runnable(page, "python", "bash") if commands_too else runnable(page, "python")
    if not found:
        pytest.skip("no blocks to run")
    if any("runs/first" in code for _, code in found):
        run = request.getfixturevalue("first_run") if thorough else ROOT / "results" / "micro_rush_hour"
        shutil.copytree(run, workshop / "runs" / "first")
    for kind, code in found:
        if "looped-actor train" in code and "--out runs/first" in code:
            shutil.rmtree(workshop / "runs" / "first", ignore_errors=True)
        run_block(kind, code, monkeypatch)


def outputs():
    """Yield the Python blocks that are followed by what they print."""
    for page in PAGES:
        code = [code for _, code in runnable(page, "python")]
        found = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", page.read_text(), re.DOTALL)
        yield from (pytest.param(block, text, id=page.name) for block, text in found if block in code)


@pytest.mark.parametrize(("code", "text"), list(outputs()))
def test_a_block_prints_what_the_page_shows(code, text):
    """Run the block as a user does, so that readers see success and loops that vary."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, text), done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


@pytest.mark.parametrize("package", ["looped_actor", *(f"looped_actor.{name}" for name in PUBLIC)])
def test_every_public_name_is_explained_on_a_page_of_the_reference(package):
    text = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    named = re.findall(rf"^::: {package}\.(\w+)$", text, re.M)
    assert sorted(named) == sorted(set(importlib.import_module(package).__all__) - {"__version__"})


def test_what_is_made_from_the_code_is_as_the_code_is():
    for name, page in reference.pages().items():
        assert (DOCS / name).read_text() == page, f"docs/{name}: run python docs/tools/reference.py"


def test_every_field_and_option_is_explained():
    commands_page = (DOCS / "commands.md").read_text()
    unexplained = re.findall(r"^\| `(--[\w-]+|[A-Z_]+)` \|[^|]+\|\s*\|$", commands_page, re.M)
    fields = re.findall(r"^\| `([\w.]+)` \|.*\|\s*\|$", (DOCS / "configuration.md").read_text(), re.M)
    assert (unexplained, fields) == ([], [])


def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},  # an announcement of the theme's
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert {path.parent.name for path in tmp_path.glob("*/index.html")} == pages
    # Nothing is fetched from elsewhere by a page that is read.
    for path in tmp_path.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)"', path.read_text())
        assert fetched == [], (path, fetched)
