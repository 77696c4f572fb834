"""The command line: completion, help, plans, and input that is refused."""

import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest

import looped_actor
from flags import QUICK_TO_COMPILE
from helpers import thorough
from looped_actor.version import __version__
from tiny import tiny

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = [str(pathlib.Path(sys.executable).with_name("looped-actor"))]


UNOPTIMISED = {"XLA_FLAGS": QUICK_TO_COMPILE}  # where compiling is most of the work


def run(*command: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a process to its end, with the compiler's default flags unless others are given."""
    clean = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=clean, cwd=ROOT)


def command(monkeypatch, *words):
    """Run a command in this process: starting another for each would take most of the time."""
    from looped_actor.cli.main import main

    monkeypatch.setattr("sys.argv", ["looped-actor", *words])
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)  # devices are there already
    main()


WITH_EXAMPLES = [
    ["plan"],
    ["pretrained"],
    *(["analyze", name] for name in ("probes", "difficulty", "histogram", "caps", "plot")),
    ["replay"],
    ["compare"],
    ["serve"],
    ["reproduce", "theorem"],
]


@pytest.mark.parametrize(("line", "completed"), [("tr", "train"), ("train --sc", "--scale")])
def test_a_shell_completes_what_is_typed(line, completed):
    script = """
    source <("$@" --tyro-print-completion bash)
    COMP_WORDS=(looped-actor $LINE); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _tyro_looped_actor looped-actor "${COMP_WORDS[-1]}"
    echo "${COMPREPLY[@]}"
    """
    done = run("bash", "-c", script, "bash", *COMMAND, LINE=line)
    assert (done.returncode, done.stdout.strip()) == (0, completed), done.stderr


def test_the_version_is_printed():
    done = run(*COMMAND, "--version")
    assert (done.returncode, done.stdout) == (0, f"looped-actor {__version__}\n")


@pytest.mark.parametrize("command", [[], ["analyze"], *WITH_EXAMPLES])
def test_help_is_fast_and_shows_an_example(command):
    """JAX and Flax, which take most of a start, are not imported."""
    done = run(sys.executable, "-X", "importtime", "-m", "looped_actor", *command, "--help")
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "tyro" in imported
    assert not {"jax", "flax", "numba", "orbax"} & imported
    if not command:
        assert len(done.stdout.splitlines()) <= 40  # one screen
    if command in WITH_EXAMPLES:
        assert "Example: looped-actor " + " ".join(command) in done.stdout


def test_a_plan_as_json():
    done = run(*COMMAND, "plan", "rush-hour", "--json", "--set", "algorithm.minibatch=8", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    arms = plan["arms"]
    assert set(arms) == {"looped", "iso-params", "iso-flops", "drc"}
    looped, params = arms["looped"], arms["iso-params"]
    assert looped["parameters"] == params["parameters"] == plan["parameters"]
    assert looped["flops_per_decision"] == plan["flops_per_decision"]
    assert params["flops_per_decision"] < looped["flops_per_decision"] < looped["flops_per_step"]
    assert (params["max_loops"], looped["max_loops"]) == (1, plan["max_loops"])
    assert plan["update_bytes"] > 0
    assert plan["seconds"] is None


def test_a_plan_as_tables():
    done = run(*COMMAND, "plan", "rush-hour", "--scale", "paper", COLUMNS="120", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    for words in ("528,003", "drc", "parameters that are trained", "MFLOPs", "memory: a gradient"):
        assert words in done.stdout


@thorough
def test_gradients_are_timed(tmp_path):
    script = [
        sys.executable,
        str(ROOT / "benchmarks" / "gradient.py"),
        "--out",
        str(tmp_path / "timings.json"),
    ]
    done = run(*script, "--batch", "8", "--microbatch", "4", "--rounds", "1", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    timings = json.loads((tmp_path / "timings.json").read_text())["timings"]
    assert set(timings) == {"boxoban", "rush-hour", "easy"}
    for timing in timings.values():
        assert timing["packed_over_frozen"] > 0
        assert timing["iso_flops_over_frozen"] > 0
        assert timing["executed_over_needed"] >= 1
    assert timings["easy"]["packed_over_frozen"] < 0.7, "a quarter of the loops cannot take this long"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["plan", "chess"], "boxoban"),
        (["plan", "boxoban", "--set", "algorithm.minibatch=0"], "minibatch is 0; it must be at least 1"),
        (["plan", "boxoban", "--rounds", "0"], "rounds is 0; it must be at least 1"),
        (["plan", "boxoban", "--rounds", "none"], "rounds"),
        (["plan"], "which environment?"),
        (["nothing"], "train"),
    ],
)
def test_mistakes_end_in_a_message(command, message):
    done = run(*COMMAND, *command, COLUMNS="200")
    assert done.returncode == 2
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (["--out", "gs://bucket/run"], "gs://bucket/run is a URL, and only local files can be written"),
        (["--out=s3://bucket/run"], "s3://bucket/run is a URL, and only local files can be written"),
        (["--out", ""], "the path to write to is empty"),
        (["--out="], "the path to write to is empty"),
        (["--out={tmp_path}/file/run"], "is a file, not a folder"),
    ],
)
def test_paths_that_cannot_be_written_are_refused_before_jax_is_imported(out, message, tmp_path):
    (tmp_path / "file").touch()
    words = [word.format(tmp_path=tmp_path) for word in out]
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        [*COMMAND, "train", "boxoban", *words], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    printed = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert (done.returncode, len(printed)) == (2, 1), printed
    assert message in printed[0]
    assert not re.search(r"\| +jax$", done.stderr, re.M)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("folder", "message"), [("gs://bucket/run", "gs://bucket/run is a URL"), ("", "is empty")]
)
def test_training_into_a_url_or_nowhere_is_refused(folder, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        looped_actor.train(tiny(), folder)
    assert not list(tmp_path.iterdir())
